#include "src/evidence/snapshot_reader.h"

#include <doctest/doctest.h>

#include <string>

#include "lowtide/error.h"
#include "tests/evidence/made_snapshots.h"

using namespace lowtide;  // the tests of one header

namespace {

constexpr std::uint64_t kBase = 0x7f0000000000;
constexpr Bytes kMiB = 1 << 20;

// Everything that the test snapshot says, as text.
std::string shown(const Snapshot& snapshot) {
  std::string out;
  const auto stack = [&](StackId id) {
    std::string text = "[";
    for (const std::uint32_t frame : snapshot.frames_of(id)) {
      const SnapshotFrame& at = snapshot.frames[frame];
      text += std::string(snapshot.texts.view(at.function)) + "@" +
              std::string(snapshot.texts.view(at.file)) + ":" + std::to_string(at.line) + " ";
    }
    return text + "]";
  };
  for (const SnapshotSegment& segment : snapshot.segments) {
    out += "segment " + std::to_string(segment.device) + " " + std::to_string(segment.address) +
           " " + std::to_string(segment.size) + (segment.is_small ? " small" : " large") + "\n";
    for (const SnapshotBlock& block : snapshot.blocks_of(segment)) {
      out += "  block " + std::to_string(block.address - segment.address) + " " +
             std::to_string(block.size) + " " + std::to_string(block.requested) + " " +
             std::to_string(static_cast<int>(block.state)) + "\n";
    }
  }
  for (const DeviceTrace& trace : snapshot.traces) {
    out += "trace of " + std::to_string(trace.device) + "\n";
    for (std::uint32_t i = trace.first; i < trace.first + trace.count; ++i) {
      out += std::string("  ") + action_name(snapshot.events.action[i]) + " " +
             std::to_string(snapshot.events.address[i]) + " " +
             std::to_string(snapshot.events.size[i]) + " " + stack(snapshot.events.stack[i]) + "\n";
    }
  }
  return out;
}

std::string refusal(const std::string& pickle) {
  try {
    read_made(pickle);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "read";
}

}  // namespace

TEST_CASE("a snapshot reads the same in every protocol and dialect, shared or not") {
  const MadeSnapshot made = small_snapshot();
  const std::string expected = shown(read_made(made.pickle(Dialect::kPython, 4, {})));
  CHECK(expected.find("segment 0 139637976727552 20971520 large") == 0);
  CHECK(expected.find("  block 0 4194304 4194204 1\n  block 4194304 2097152 2097152 1\n"
                      "  block 6291456 14680064 0 0\n") != std::string::npos);
  CHECK(expected.find("segment 1 139639050469376 2097152 small\n  block 0 512 100 2\n") !=
        std::string::npos);
  CHECK(expected.find("trace of 0\n  alloc 139637983019008 3145728 [relu@") != std::string::npos);
  CHECK(expected.find("/model.py:41 ]") != std::string::npos);
  CHECK(expected.find("  oom 5242880 67108864") != std::string::npos);
  CHECK(expected.find("trace of 1") == std::string::npos);
  for (const int protocol : {2, 3, 4, 5}) {
    for (const bool is_shared : {true, false}) {
      CAPTURE(protocol);
      CHECK(shown(read_made(made.pickle(Dialect::kPython, protocol, {.shared = is_shared}))) ==
            expected);
    }
  }
  CHECK(shown(read_made(made.pickle(Dialect::kLibtorch, 2, {}))) == expected);
  CHECK(shown(read_made(made.pickle(Dialect::kPython, 4, {.wide_addresses = true}))) == expected);
  CHECK(shown(read_made(made.pickle(Dialect::kPython, 4, {.unknown_keys = true}))) == expected);
  CHECK(shown(read_made(made.pickle(Dialect::kPython, 4, {.has_pools = false}))) == expected);
}

TEST_CASE("dicts that are filled item by item become the same rows") {
  const MadeSnapshot made = small_snapshot();
  const std::string expected = shown(read_made(made.pickle(Dialect::kPython, 4, {})));
  for (const std::size_t batch : {1, 2, 3}) {
    CAPTURE(batch);
    const std::string pickle = PickleWriter(Dialect::kPython, 4, batch).write(made.value({}));
    CHECK(shown(read_made(pickle)) == expected);
  }
}

TEST_CASE("equal stacks are kept once, however often the file repeats them") {
  const MadeSnapshot made = small_snapshot();
  const Snapshot snapshot = read_made(made.pickle(Dialect::kPython, 4, {.shared = false}));
  CHECK(snapshot.stack_count() == 3);
  CHECK(snapshot.frames.size() == 4);
}

TEST_CASE("a list of segments alone is a snapshot without a trace") {
  const Snapshot snapshot =
      read_made(small_snapshot().pickle(Dialect::kPython, 4, {.list_only = true}));
  CHECK(snapshot.list_only);
  CHECK(snapshot.segments.size() == 2);
  CHECK(snapshot.traces.empty());
  CHECK(snapshot.devices() == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("the form of torch 2.0 has no addresses of blocks, and stacks in a history") {
  const Snapshot snapshot = read_made(
      small_snapshot().pickle(Dialect::kPython, 4, {.history_form = true, .has_pools = false}));
  const auto blocks = snapshot.blocks_of(snapshot.segments[0]);
  REQUIRE(blocks.size() == 3);
  CHECK(blocks[1].address == kBase + 4 * kMiB);
  CHECK(blocks[1].requested == 2 * kMiB);
  CHECK(snapshot.frames_of(blocks[1].stack).size() == 2);
  CHECK(blocks[2].address == kBase + 6 * kMiB);
  CHECK(blocks[2].stack == 0);
}

TEST_CASE("settings and annotations are read, and their absence is known") {
  const Snapshot snapshot = read_made(small_snapshot().pickle(Dialect::kPython, 4, {}));
  CHECK(snapshot.settings.known);
  CHECK(snapshot.settings.max_split_size == 0);
  CHECK(snapshot.settings.garbage_collection_threshold == 0.5);
  CHECK(snapshot.settings.roundup_power2_divisions[8] == 4);
  CHECK(snapshot.settings.roundup_power2_divisions[7] == 0);
  REQUIRE(snapshot.annotations.size() == 2);
  CHECK(snapshot.texts.view(snapshot.annotations[1].stage) == "END");
  const Snapshot older =
      read_made(small_snapshot().pickle(Dialect::kPython, 4, {.has_settings = false}));
  CHECK(!older.settings.known);
  CHECK(older.annotations.empty());
}

TEST_CASE("a trace without times or frames is read") {
  const Snapshot snapshot = read_made(
      small_snapshot().pickle(Dialect::kPython, 4, {.has_times = false, .has_frames = false}));
  CHECK(snapshot.events.count() == 5);
  CHECK(snapshot.events.time_us[0] == 0);
  CHECK(snapshot.stack_count() == 1);
}

TEST_CASE("a sound pickle that is no snapshot is refused") {
  const auto pickled = [](const Made& made) {
    return PickleWriter(Dialect::kPython, 4).write(made);
  };
  CHECK(refusal(pickled(7)).find("neither a list of segments") != std::string::npos);
  CHECK(refusal(pickled(Made::Dict{{"weights", Made::List{}}})).find("[LT0715]") !=
        std::string::npos);
  CHECK(refusal(pickled(Made::List{1, 2})).find("holds something else") != std::string::npos);
  const auto event = [](Made size) {
    return Made::Dict{
        {"segments", Made::List{}},
        {"device_traces", Made::List{Made::List{Made::Dict{{"action", "alloc"}, {"size", size}}}}}};
  };
  CHECK(refusal(pickled(event(-5))).find("\"size\" is negative") != std::string::npos);
  CHECK(refusal(pickled(event(std::uint64_t{1} << 63))).find("\"size\" is over 2^62") !=
        std::string::npos);
  CHECK(refusal(pickled(event("many"))).find("\"size\" is no integer") != std::string::npos);
  CHECK(refusal(pickled(event(5))) == "read");
}

TEST_CASE("more devices than any host has are refused") {
  Made::List segments;
  for (int i = 0; i < 1025; ++i) {
    segments.push_back(Made::Dict{{"device", i}, {"total_size", 512}, {"blocks", Made::List{}}});
  }
  const auto pickled = [](const Made& made) {
    return PickleWriter(Dialect::kPython, 4).write(made);
  };
  CHECK(refusal(pickled(segments)).find("more than 1024 devices") != std::string::npos);
  segments.pop_back();
  CHECK(refusal(pickled(segments)) == "read");
}

TEST_CASE("a file that repeats one segment or event does not grow beyond itself") {
  const auto pickled = [](const Made& made) {
    return PickleWriter(Dialect::kPython, 4).write(made);
  };
  Made segment(
      Made::Dict{{"total_size", 512},
                 {"blocks", Made::List{Made::Dict{{"size", 512}, {"state", "inactive"}}}}});
  segment.shared = 1;
  CHECK(refusal(pickled(Made::List{segment, segment})).find("the same segment twice") !=
        std::string::npos);
  Made event(Made::Dict{{"action", "alloc"}, {"size", 512}});
  event.shared = 2;
  CHECK(refusal(pickled(Made::Dict{{"segments", Made::List{}},
                                   {"device_traces", Made::List{Made::List{event, event}}}}))
            .find("the same event twice") != std::string::npos);
}

TEST_CASE("a damaged snapshot says how many segments and events were good") {
  const std::string whole = small_snapshot().pickle(Dialect::kPython, 4, {});
  const std::string text = refusal(whole.substr(0, whole.find("free_requested") + 3));
  CAPTURE(text);
  CHECK(text.find("2 segments, 5 blocks, 2 events") != std::string::npos);
}
