#include "src/evidence/snapshot_writer.h"

#include <doctest/doctest.h>

#include "src/evidence/snapshot_reader.h"
#include "tests/evidence/made_snapshots.h"
#include "tests/evidence/real_snapshots.h"

using namespace lowtide;  // the tests of one header

namespace {

std::vector<std::string> stack_text(const Snapshot& snapshot, StackId stack) {
  std::vector<std::string> all;
  for (const std::uint32_t id : snapshot.frames_of(stack)) {
    const SnapshotFrame& frame = snapshot.frames[id];
    all.emplace_back(snapshot.texts.view(frame.function));
    all.emplace_back(snapshot.texts.view(frame.file));
    all.push_back(std::to_string(frame.line));
  }
  return all;
}

// The same in everything that a snapshot says; ids may differ.
void check_same(const Snapshot& a, const Snapshot& b) {
  CHECK(a.list_only == b.list_only);
  CHECK(a.is_budget == b.is_budget);
  CHECK(a.refusal == b.refusal);
  REQUIRE(a.segments.size() == b.segments.size());
  for (std::size_t i = 0; i < a.segments.size(); ++i) {
    const SnapshotSegment& x = a.segments[i];
    const SnapshotSegment& y = b.segments[i];
    CHECK(x.device == y.device);
    CHECK(x.address == y.address);
    CHECK(x.size == y.size);
    CHECK(x.lane == y.lane);
    CHECK(x.first_block == y.first_block);
    CHECK(x.block_count == y.block_count);
    CHECK(x.is_small == y.is_small);
    CHECK(x.is_expandable == y.is_expandable);
    CHECK(stack_text(a, x.stack) == stack_text(b, y.stack));
  }
  REQUIRE(a.blocks.size() == b.blocks.size());
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    const SnapshotBlock& x = a.blocks[i];
    const SnapshotBlock& y = b.blocks[i];
    CHECK(x.address == y.address);
    CHECK(x.size == y.size);
    CHECK(x.requested == y.requested);
    CHECK(x.state == y.state);
    CHECK(stack_text(a, x.stack) == stack_text(b, y.stack));
  }
  CHECK(a.events.action == b.events.action);
  CHECK(a.events.address == b.events.address);
  CHECK(a.events.size == b.events.size);
  CHECK(a.events.time_us == b.events.time_us);
  REQUIRE(a.events.count() == b.events.count());
  bool same = true;
  for (std::size_t i = 0; i < a.events.count(); ++i) {
    same = same && a.lanes[a.events.lane[i]] == b.lanes[b.events.lane[i]] &&
           stack_text(a, a.events.stack[i]) == stack_text(b, b.events.stack[i]);
  }
  CHECK(same);
  REQUIRE(a.traces.size() == b.traces.size());
  for (std::size_t i = 0; i < a.traces.size(); ++i) {
    CHECK(a.traces[i].device == b.traces[i].device);
    CHECK(a.traces[i].first == b.traces[i].first);
    CHECK(a.traces[i].count == b.traces[i].count);
  }
  REQUIRE(a.annotations.size() == b.annotations.size());
  for (std::size_t i = 0; i < a.annotations.size(); ++i) {
    CHECK(a.texts.view(a.annotations[i].name) == b.texts.view(b.annotations[i].name));
    CHECK(a.texts.view(a.annotations[i].stage) == b.texts.view(b.annotations[i].stage));
    CHECK(a.annotations[i].time_us == b.annotations[i].time_us);
    CHECK(a.annotations[i].device == b.annotations[i].device);
  }
  CHECK(a.settings.known == b.settings.known);
  CHECK(a.settings.configuration == b.settings.configuration);
  CHECK(a.settings.max_split_size == b.settings.max_split_size);
  CHECK(a.settings.max_non_split_rounding == b.settings.max_non_split_rounding);
  CHECK(a.settings.large_segment_size == b.settings.large_segment_size);
  CHECK(a.settings.garbage_collection_threshold == b.settings.garbage_collection_threshold);
  CHECK(a.settings.expandable_segments == b.settings.expandable_segments);
  CHECK(a.settings.roundup_power2_divisions == b.settings.roundup_power2_divisions);
}

}  // namespace

TEST_CASE("what is written reads back as the same snapshot") {
  for (const bool list_only : {false, true}) {
    MadeSnapshot::Form form;
    form.list_only = list_only;
    form.wide_addresses = true;
    Snapshot snapshot = read_made(small_snapshot().pickle(Dialect::kPython, 4, form));
    if (!list_only) {
      snapshot.settings.max_split_size = 40_MiB;
      snapshot.settings.large_segment_size = 20_MiB;
      snapshot.settings.max_non_split_rounding = 1;
      snapshot.settings.garbage_collection_threshold = 0.75;
      snapshot.settings.roundup_power2_divisions[3] = 8;
      snapshot.settings.roundup_power2_divisions[15] = 2;
      snapshot.is_budget = true;
      snapshot.refusal = std::string(300, 'x');
    }
    check_same(snapshot, read_made(snapshot_pickle(snapshot)));
  }
}

TEST_CASE("integers of all widths, long lists and shared stacks are written as read") {
  Snapshot snapshot = read_made(small_snapshot().pickle(Dialect::kPython, 4, {}));
  const std::size_t stacks = snapshot.stack_count();
  for (unsigned shift = 0; shift < 64; ++shift) {
    for (const std::uint64_t address :
         {std::uint64_t{1} << shift, (std::uint64_t{1} << shift) - 1, ~std::uint64_t{0} >> shift}) {
      snapshot.events.action.push_back(EventAction::kAlloc);
      snapshot.events.address.push_back(address);
      snapshot.events.size.push_back(address >> 2);
      snapshot.events.time_us.push_back(1 + static_cast<std::int64_t>(address >> 2));
      snapshot.events.stack.push_back(static_cast<StackId>(shift % stacks));
      snapshot.events.lane.push_back(0);
    }
  }
  for (int i = 0; i < 2500; ++i) {
    snapshot.events.action.push_back(EventAction::kSnapshot);
    snapshot.events.address.push_back(0);
    snapshot.events.size.push_back(0);
    snapshot.events.time_us.push_back(0);
    snapshot.events.stack.push_back(0);
    snapshot.events.lane.push_back(0);
  }
  snapshot.traces.back().count =
      static_cast<std::uint32_t>(snapshot.events.count()) - snapshot.traces.back().first;
  check_same(snapshot, read_made(snapshot_pickle(snapshot)));
}

TEST_CASE("an address with the highest bit stays positive for Python") {
  Snapshot snapshot = read_made(small_snapshot().pickle(Dialect::kPython, 4, {}));
  snapshot.segments[0].address = std::uint64_t{0xc123} << 48;
  const std::string pickle = snapshot_pickle(snapshot);
  // LONG1 of nine bytes, the last of them zero.
  CHECK(pickle.find(std::string("\x8a\x09\0\0\0\0\0\0\x23\xc1\0", 11)) != std::string::npos);
}

TEST_CASE("the real snapshots are written as they were read") {
  for (const std::string& path : real_snapshots()) {
    CAPTURE(path);
    const Snapshot snapshot = read_snapshot(path);
    check_same(snapshot, read_made(snapshot_pickle(snapshot)));
  }
}
