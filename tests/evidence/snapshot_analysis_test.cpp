#include "src/evidence/snapshot_analysis.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <random>

#include "src/base/json.h"
#include "src/evidence/snapshot_reader.h"
#include "tests/evidence/made_snapshots.h"
#include "tests/evidence/real_snapshots.h"

using namespace lowtide;  // the tests of one header

namespace {

constexpr std::uint64_t kBase = 0x7f0000000000;
constexpr Bytes kMiB = 1 << 20;

Snapshot small() { return read_made(small_snapshot().pickle(Dialect::kPython, 4, {})); }

Bytes sum(const std::vector<LineTotal>& lines) {
  Bytes total = 0;
  for (const LineTotal& line : lines) total += line.bytes;
  return total;
}

Bytes bytes_of(const std::vector<LineTotal>& lines, const std::string& name) {
  for (const LineTotal& line : lines) {
    if (line.line == name) return line.bytes;
  }
  return 0;
}

Bytes bytes_of(const DeviceAnalysis& device, BlockKind kind) {
  return device.kinds[static_cast<std::size_t>(kind)].bytes;
}

// The live blocks after each event by walking the trace with a map: slow, and plainly right.
struct SlowPeak {
  Bytes start = 0;
  Bytes peak = 0;
  std::int64_t event = -1;
  std::uint64_t count = 0;
  Bytes end = 0;
};
SlowPeak slow_peak(const Snapshot& snapshot, std::int64_t device) {
  std::map<std::uint64_t, Bytes> live;
  for (const SnapshotSegment& segment : snapshot.segments) {
    if (segment.device != device) continue;
    for (const SnapshotBlock& block : snapshot.blocks_of(segment)) {
      if (block.is_live()) live[block.address] = block.requested;
    }
  }
  SlowPeak slow;
  const auto total = [&live] {
    Bytes bytes = 0;
    for (const auto& [address, size] : live) bytes += size;
    return bytes;
  };
  slow.end = total();
  const DeviceTrace* trace = snapshot.trace_of(device);
  const std::uint32_t count = trace == nullptr ? 0 : trace->count;
  std::vector<std::pair<Bytes, std::uint64_t>> after(count + 1);
  after[count] = {total(), live.size()};
  for (std::uint32_t i = count; i-- > 0;) {
    const std::uint32_t row = trace->first + i;
    if (snapshot.events.action[row] == EventAction::kAlloc)
      live.erase(snapshot.events.address[row]);
    if (snapshot.events.action[row] == EventAction::kFreeCompleted) {
      live[snapshot.events.address[row]] = snapshot.events.size[row];
    }
    after[i] = {total(), live.size()};
  }
  slow.start = slow.peak = after[0].first;
  slow.count = after[0].second;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (after[i + 1].first <= slow.peak) continue;
    slow.peak = after[i + 1].first;
    slow.event = i;
    slow.count = after[i + 1].second;
  }
  return slow;
}

// A random trace over a handful of addresses, beginning in the middle of a run.
Snapshot random_snapshot(unsigned seed) {
  std::mt19937 random(seed);
  MadeSnapshot made;
  const int count = made.add_stack({{"forward", "/job/model.py", 1}});
  for (int i = 2; i < 6; ++i) made.add_stack({{"forward", "/job/model.py", i}});
  std::map<std::uint64_t, std::int64_t> live;
  const auto slot = [&] { return kBase + random() % 30 * 4096; };
  for (int i = 0; i < 10; ++i) live[slot()] = 1 + random() % 4096;
  std::vector<MadeEvent> events;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t address = slot();
    const auto found = live.find(address);
    if (found == live.end()) {
      const std::int64_t size = 1 + random() % 4096;
      events.push_back({"alloc", address, size, count + static_cast<int>(random() % 5)});
      live[address] = size;
    } else {
      events.push_back({"free_requested", address, found->second});
      events.push_back({"free_completed", address, found->second});
      live.erase(found);
    }
  }
  std::vector<MadeBlock> blocks;
  for (int i = 0; i < 30; ++i) {
    const std::uint64_t address = kBase + static_cast<std::uint64_t>(i) * 4096;
    const auto found = live.find(address);
    blocks.push_back({address, 4096, found == live.end() ? 0 : found->second,
                      found == live.end() ? "inactive" : "active_allocated"});
  }
  made.add_segment(0, kBase, 30 * 4096, blocks);
  made.traces = {events};
  return read_made(made.pickle(Dialect::kPython, 4, {}));
}

}  // namespace

TEST_CASE("the peak counts what lived before the trace") {
  const SnapshotAnalysis analysis = analyse(small());
  REQUIRE(analysis.devices.size() == 2);
  const DeviceAnalysis& device = analysis.devices[0];
  CHECK(device.live_at_start == 4 * kMiB - 100);
  CHECK(device.peak.bytes == 9 * kMiB - 100);
  CHECK(device.peak.event == 1);
  CHECK(device.peak.allocations == 3);
  CHECK(device.live_at_end == 6 * kMiB - 100);
  CHECK(device.reserved == 20 * kMiB);
  CHECK(device.allocated == 6 * kMiB);
  CHECK(analysis.devices[1].pending_free == 512);
  CHECK(analysis.devices[1].peak.event == -1);
  CHECK(analysis.devices[1].peak.bytes == 100);
}

TEST_CASE("every grouping of the peak adds up to it") {
  for (const unsigned seed : {1u, 2u, 3u}) {
    const SnapshotAnalysis analysis = analyse(random_snapshot(seed));
    const DeviceAnalysis& device = analysis.devices[0];
    CHECK(sum(device.sites) == device.peak.bytes);
    CHECK(sum(device.user_lines) == device.peak.bytes);
    CHECK(sum(device.library_lines) == device.peak.bytes);
    Bytes kinds = 0;
    for (const KindTotal& kind : device.kinds) kinds += kind.bytes;
    CHECK(kinds == device.peak.bytes);
    CHECK(sum(device.fragmentation.pinned_by) == device.fragmentation.free_in_partly_used);
  }
}

TEST_CASE("a line is the user's own, a library line the innermost") {
  const DeviceAnalysis device = analyse(small()).devices[0];
  CHECK(bytes_of(device.user_lines, "model.py:41:forward") == 3 * kMiB);
  CHECK(bytes_of(device.library_lines, "functional.py:10:relu") == 3 * kMiB);
  CHECK(bytes_of(device.sites, "model.py:41:forward") == 3 * kMiB);
  CHECK(bytes_of(device.user_lines, "my_optimizer.py:7:step") == 6 * kMiB - 100);
}

TEST_CASE("kinds follow from where a block was made and how long it lives") {
  const DeviceAnalysis device = analyse(small()).devices[0];
  CHECK(bytes_of(device, BlockKind::kOptimizerState) == 6 * kMiB - 100);
  CHECK(bytes_of(device, BlockKind::kActivations) == 3 * kMiB);
  CHECK(bytes_of(device, BlockKind::kUnattributed) == 0);
}

TEST_CASE("a gradient is made in backward and lives until the optimizer has used it") {
  MadeSnapshot made;
  const int forward = made.add_stack({{"forward", "/job/model.py", 1}});
  const int backward =
      made.add_stack({{"torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)",
                       "engine.cpp", 9}});
  const int optimizer = made.add_stack({{"step", "/v/site-packages/torch/optim/sgd.py", 3}});
  const int zero_grad =
      made.add_stack({{"zero_grad", "/v/site-packages/torch/optim/optimizer.py", 3}});
  const int workspace = made.add_stack({{"at::cuda::getNewWorkspace()", "Blas.cpp", 1}});
  const auto at = [](int i) { return kBase + static_cast<std::uint64_t>(i) * kMiB; };
  made.traces = {{{"alloc", at(0), 1000, forward},
                  {"alloc", at(1), 200, backward},  // kept: a gradient
                  {"alloc", at(2), 30, backward},   // gone before the step: workspace
                  {"alloc", at(6), 7, workspace},
                  {"free_completed", at(2), 30, backward},
                  {"free_completed", at(0), 1000, backward},
                  {"alloc", at(3), 4, optimizer},  // kept: state
                  {"alloc", at(4), 5, optimizer},  // gone in the step: workspace
                  {"free_completed", at(4), 5, optimizer},
                  {"free_completed", at(1), 200, zero_grad},
                  {"free_completed", at(5), 60000, zero_grad}}};
  made.add_segment(0, kBase, 20 * kMiB,
                   {{at(0), 3 * kMiB, 0, "inactive"},
                    {at(3), kMiB, 4, "active_allocated"},
                    {at(4), 2 * kMiB, 0, "inactive"},
                    {at(6), kMiB, 7, "active_allocated"},
                    {at(7), 13 * kMiB, 0, "inactive"}});
  const Snapshot snapshot = read_made(made.pickle(Dialect::kPython, 4, {}));
  std::map<Bytes, BlockKind> kinds;
  const std::vector<Allocation> allocations = allocations_of(snapshot, 0);
  const std::vector<BlockKind> found = kinds_of(snapshot, 0, allocations);
  for (std::size_t i = 0; i < found.size(); ++i) kinds[allocations[i].size] = found[i];
  CHECK(kinds[1000] == BlockKind::kActivations);
  CHECK(kinds[200] == BlockKind::kGradients);
  CHECK(kinds[30] == BlockKind::kWorkspace);
  CHECK(kinds[4] == BlockKind::kOptimizerState);
  CHECK(kinds[5] == BlockKind::kWorkspace);
  CHECK(kinds[60000] == BlockKind::kGradients);
  CHECK(kinds[7] == BlockKind::kWorkspace);
}

TEST_CASE("peak, start and end agree with a walk over the trace") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    const Snapshot snapshot = random_snapshot(seed);
    const DeviceAnalysis device = analyse(snapshot).devices[0];
    const SlowPeak slow = slow_peak(snapshot, 0);
    REQUIRE(device.live_at_start == slow.start);
    REQUIRE(device.peak.bytes == slow.peak);
    REQUIRE(device.peak.event == slow.event);
    REQUIRE(device.peak.allocations == slow.count);
    REQUIRE(device.live_at_end == slow.end);
  }
}

TEST_CASE("a hole counts half to each of the blocks beside it") {
  MadeSnapshot made;
  const int stack = made.add_stack({{"left", "/job/model.py", 1}});
  made.add_segment(0, kBase, 20 * kMiB,
                   {{kBase, kMiB, kMiB, "active_allocated"},
                    {kBase + kMiB, 5 * kMiB, 0, "inactive"},
                    {kBase + 6 * kMiB, kMiB, kMiB, "active_allocated"},
                    {kBase + 7 * kMiB, 13 * kMiB, 0, "inactive"}},
                   0);
  made.add_segment(0, kBase + 64 * kMiB, 24 * kMiB,
                   {{kBase + 64 * kMiB, 24 * kMiB, 0, "inactive"}});
  made.traces = {{{"alloc", kBase, kMiB, stack}}};
  const Fragmentation found =
      analyse(read_made(made.pickle(Dialect::kPython, 4, {}))).devices[0].fragmentation;
  CHECK(found.free_in_whole_segments == 24 * kMiB);
  CHECK(found.free_in_partly_used == 18 * kMiB);
  CHECK(found.largest_free == 24 * kMiB);
  CHECK(found.empty_cache_gives == 24 * kMiB);
  CHECK(bytes_of(found.pinned_by, "model.py:1:left") == 5 * kMiB / 2);
  CHECK(bytes_of(found.pinned_by, "<no user frame>") == 5 * kMiB / 2 + 13 * kMiB);
}

TEST_CASE("the line that grows between steps is named, and one that does not is not") {
  MadeSnapshot made;
  const int leak = made.add_stack({{"log", "/job/train.py", 9}});
  const int steady = made.add_stack({{"forward", "/job/model.py", 1}});
  const int optimizer = made.add_stack({{"step", "/v/site-packages/torch/optim/sgd.py", 3}});
  std::vector<MadeEvent> events;
  std::vector<MadeBlock> blocks;
  for (int step = 0; step < 5; ++step) {
    const std::uint64_t kept = kBase + static_cast<std::uint64_t>(step) * 512;
    const std::uint64_t passing = kBase + (1 << 19);
    events.push_back({"alloc", passing, 512, steady});
    events.push_back({"alloc", kept, 300, leak});
    events.push_back({"free_completed", passing, 512, 0});
    events.push_back({"alloc", passing, 100, optimizer});
    events.push_back({"free_completed", passing, 100, optimizer});
    blocks.push_back({kept, 512, 300, "active_allocated"});
  }
  events.push_back({"alloc", kBase + (1 << 19), 512, steady});
  events.push_back({"free_completed", kBase + (1 << 19), 512, 0});
  blocks.push_back({kBase + 5 * 512, 2 * kMiB - 5 * 512, 0, "inactive"});
  made.add_segment(0, kBase, 2 * kMiB, blocks);
  made.traces = {events};
  const Growth growth = analyse(read_made(made.pickle(Dialect::kPython, 4, {}))).devices[0].growth;
  CHECK(growth.steps_from == "optimizer frames");
  REQUIRE(growth.steps.size() == 5);
  CHECK(growth.live == std::vector<Bytes>{300, 600, 900, 1200, 1500});
  REQUIRE(growth.lines.size() == 1);
  CHECK(growth.lines[0].line == "train.py:9:log");
  CHECK(growth.lines[0].bytes == 1200);
}

TEST_CASE("an out-of-memory event is told with its line and the free memory") {
  const DeviceAnalysis device = analyse(small()).devices[0];
  REQUIRE(device.out_of_memory.size() == 1);
  CHECK(device.out_of_memory[0].requested == 64 * kMiB);
  CHECK(device.out_of_memory[0].device_free == 5 * kMiB);
  CHECK(device.out_of_memory[0].line == "model.py:41:forward");
}

TEST_CASE("a failure tells what was live and reserved just then") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    Snapshot snapshot = random_snapshot(seed);
    std::mt19937 random(seed);
    // Some events become failures and events of segments elsewhere; what is live is counted anew.
    Bytes reserved = snapshot.segments[0].size;
    std::vector<std::uint32_t> failures;
    std::vector<std::int64_t> change(snapshot.events.count());
    for (std::uint32_t i = 0; i < snapshot.events.count(); ++i) {
      const bool is_free = snapshot.events.action[i] == EventAction::kFreeRequested;
      if (!is_free || random() % 3 != 0) continue;
      switch (random() % 3) {
        case 0:
          snapshot.events.action[i] = EventAction::kOom;
          failures.push_back(i);
          break;
        case 1:
          snapshot.events.action[i] = EventAction::kSegmentAlloc;
          change[i] = static_cast<std::int64_t>(snapshot.events.size[i]);
          break;
        default:
          snapshot.events.action[i] = EventAction::kSegmentFree;
          change[i] = -static_cast<std::int64_t>(snapshot.events.size[i]);
      }
    }
    const DeviceAnalysis device = analyse(snapshot).devices[0];
    REQUIRE(device.out_of_memory.size() == failures.size());
    for (std::size_t f = 0; f < failures.size(); ++f) {
      const OutOfMemoryEvent& failure = device.out_of_memory[f];
      CHECK(failure.event == failures[f]);
      std::int64_t there = static_cast<std::int64_t>(reserved);
      for (std::size_t i = change.size(); i-- > failures[f];) there -= change[i];
      CHECK(failure.reserved == static_cast<Bytes>(there));
      Bytes live = 0;
      for (const Allocation& allocation : allocations_of(snapshot, 0)) {
        if (allocation.lives_at(failures[f])) live += allocation.size;
      }
      CHECK(failure.live == live);
      const Moment moment = moment_after(snapshot, 0, failures[f]);
      CHECK(moment.live == live);
      Bytes by_line = 0;
      for (const LineTotal& line : moment.lines) by_line += line.bytes;
      Bytes by_kind = 0;
      for (const KindTotal& kind : moment.kinds) by_kind += kind.bytes;
      CHECK(by_line == live);
      CHECK(by_kind == live);
    }
  }
}

TEST_CASE("a trace without completed frees counts the requested ones") {
  MadeSnapshot made;
  made.traces = {
      {{"alloc", kBase, 100}, {"alloc", kBase + 512, 50}, {"free_requested", kBase, 100}}};
  made.add_segment(0, kBase, 2 * kMiB,
                   {{kBase, 512, 0, "inactive"},
                    {kBase + 512, 512, 50, "active_allocated"},
                    {kBase + 1024, 2 * kMiB - 1024, 0, "inactive"}});
  const DeviceAnalysis device = analyse(read_made(made.pickle(Dialect::kPython, 4, {}))).devices[0];
  CHECK(device.peak.bytes == 150);
  CHECK(device.live_at_end == 50);
  CHECK(device.notes.empty());
}

TEST_CASE("a trace that does not fit its segments is said not to") {
  MadeSnapshot made;
  made.traces = {{{"alloc", kBase, 100}}};
  made.add_segment(0, kBase, 2 * kMiB, {{kBase, 2 * kMiB, 0, "inactive"}});
  const DeviceAnalysis device = analyse(read_made(made.pickle(Dialect::kPython, 4, {}))).devices[0];
  REQUIRE(device.notes.size() == 1);
  CHECK(device.notes[0] == "the trace ends with 100 bytes live and the segments hold 0");
}

TEST_CASE("the real snapshots give their known numbers") {
  for (const std::string& path : real_snapshots()) {
    const std::size_t slash = path.rfind('/');
    std::ifstream file(path.substr(0, slash) + "/expected.json");
    if (!file) {
      std::printf("skipped: no expected.json beside %s\n", path.c_str());
      continue;
    }
    const Json all = parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
    const Json* expected = all.find(path.substr(slash + 1));
    if (expected == nullptr) continue;
    CAPTURE(path);
    const Snapshot snapshot = read_snapshot(path);
    const SnapshotAnalysis analysis = analyse(snapshot);
    REQUIRE(analysis.devices.size() == 1);
    const DeviceAnalysis& device = analysis.devices[0];
    const Json& fixed = expected->at("static");
    CHECK(analysis.reserved == fixed.at("reserved_bytes").as_uint64());
    CHECK(analysis.allocated == fixed.at("allocated_bytes").as_uint64());
    CHECK(analysis.requested == fixed.at("requested_bytes").as_uint64());
    CHECK(device.fragmentation.free_in_whole_segments ==
          fixed.at("free_in_wholly_free_segments").as_uint64());
    CHECK(device.fragmentation.free_in_partly_used ==
          fixed.at("free_in_partly_used_segments").as_uint64());
    CHECK(device.fragmentation.largest_free == fixed.at("largest_free_block").as_uint64());
    CHECK(device.segments == fixed.at("segments").as_uint64());
    CHECK(device.blocks == fixed.at("blocks").as_uint64());
    if (const Json* traces = expected->find("trace")) {
      const Json& trace = traces->as_object()[0].second;
      CHECK(device.event_count == trace.at("events").as_uint64());
      CHECK(device.live_at_start == trace.at("requested_live_at_start").as_uint64());
      CHECK(device.peak.bytes == trace.at("requested_live_peak").as_uint64());
      CHECK(device.peak.event == trace.at("peak_event_index").as_int64());
      CHECK(device.peak.allocations == trace.at("live_allocations_at_peak").as_uint64());
      CHECK(device.live_at_end == trace.at("requested_live_at_end").as_uint64());
      const Json::Array& sites = trace.at("top_user_sites_at_peak").as_array();
      REQUIRE(device.sites.size() >= sites.size());
      for (std::size_t i = 0; i < sites.size(); ++i) {
        CHECK(device.sites[i].line == sites[i].as_array()[0].as_string());
        CHECK(device.sites[i].bytes == sites[i].as_array()[1].as_uint64());
      }
    }
  }
}
