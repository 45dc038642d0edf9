// lowtide replay: what the allocator would have done with the same requests.

#include <cstdio>

#include "cli/verbs.h"
#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/evidence/snapshot_reader.h"
#include "src/report/snapshot_report.h"

namespace lowtide {
namespace {

int run(const Arguments& arguments) {
  ReplayRequest request;
  if (arguments.has("capacity")) request.capacity = arguments.bytes("capacity");
  request.settings = arguments.texts("setting");
  request.smallest_capacity = arguments.has("smallest-capacity");
  request.largest_first = arguments.has("largest-first");
  if (arguments.has("empty-cache-at")) {
    const std::int64_t event = arguments.integer("empty-cache-at");
    if (event < 0 || event > 0xfffffffe) {
      throw UsageError("LT0702", concat("cannot read --empty-cache-at \"", event,
                                        "\" as the number of an event"));
    }
    request.empty_cache_before = static_cast<std::uint32_t>(event);
  }
  const Snapshot snapshot = read_snapshot(arguments.words()[0]);
  const std::vector<ReplayOfDevice> replays = replay_snapshot(snapshot, request);
  if (arguments.has("json")) {
    std::puts(to_text(replay_json(snapshot, replays), 2).c_str());
  } else {
    std::fputs(replay_text(snapshot, request, replays).c_str(), stdout);
  }
  return kDone;
}

}  // namespace

Verb replay_verb() {
  Flag setting{"setting", "KEY:VALUE", "as in PYTORCH_CUDA_ALLOC_CONF; may be given several times",
               ""};
  setting.repeats = true;
  return {.name = "replay",
          .summary = "replay a snapshot's trace: on a smaller card, with other settings",
          .words = {{"SNAPSHOT", "a snapshot with recorded history"}},
          .flags = {{"capacity", "BYTES", "device memory, such as 24GiB", ""},
                    setting,
                    {"smallest-capacity", "", "find the least memory that completes", ""},
                    {"empty-cache-at", "EVENT", "empty the cache before this event", ""},
                    {"largest-first", "", "request the peak's sizes once before the trace", ""},
                    {"json", "", "print the result as JSON", ""}},
          .examples = {"lowtide replay snapshot.pickle --smallest-capacity",
                       "lowtide replay snapshot.pickle --capacity 24GiB --setting "
                       "expandable_segments:True"},
          .run = run};
}

}  // namespace lowtide
