#include "src/report/snapshot_report.h"

#include <doctest/doctest.h>

#include "src/evidence/snapshot_reader.h"
#include "tests/evidence/made_snapshots.h"

using namespace lowtide;  // the tests of one header

namespace {

Snapshot step() {
  return read_snapshot(std::string(LOWTIDE_SOURCE_DIR "/tests/data/snapshots/step.pickle"));
}

}  // namespace

TEST_CASE("the JSON's numbers add up over devices") {
  const Snapshot snapshot = read_made(small_snapshot().pickle(Dialect::kPython, 4, {}));
  const Json report = snapshot_json(snapshot, analyse(snapshot));
  std::uint64_t reserved = 0;
  for (const Json& device : report.at("devices").as_array()) {
    reserved += device.at("reserved").as_uint64();
    std::uint64_t sites = 0;
    for (const Json& site : device.at("sites").as_array()) sites += site.at("bytes").as_uint64();
    CHECK(sites == device.at("peak").at("bytes").as_uint64());
  }
  CHECK(reserved == report.at("reserved").as_uint64());
}

TEST_CASE("a replay sums over devices and names what it can't replay") {
  const Snapshot snapshot = read_made(small_snapshot().pickle(Dialect::kPython, 4, {}));
  const Json report = replay_json(snapshot, replay_snapshot(snapshot, {}));
  CHECK(report.at("devices").as_array().size() == 2);
  CHECK(report.at("allocations").as_uint64() == 2);
  CHECK(report.at("smallest_capacity_bytes").is_null());
  // Made by hand, and not where an allocator would have put it.
  REQUIRE(report.at("unsupported").as_array().size() == 2);
  CHECK(report.at("unsupported").as_array()[0].as_string() ==
        "device 0: the model and the recording part at event 0");
  CHECK(report.at("unsupported").as_array()[1].as_string() == "device 1: no trace was recorded");
}

TEST_CASE("a replay answers what was asked for and no more") {
  const Snapshot snapshot = step();
  ReplayRequest request;
  request.capacity = 64_MiB;
  const std::vector<ReplayOfDevice> replays = replay_snapshot(snapshot, request);
  REQUIRE(replays.size() == 1);
  REQUIRE(replays[0].changed.has_value());
  CHECK(!replays[0].changed->completes);
  CHECK(!replays[0].smallest_capacity.has_value());
  CHECK(!replay_json(snapshot, replays).at("completes").as_bool());
}

TEST_CASE("lines that two snapshots do not share are in their difference") {
  const SnapshotAnalysis before = analyse(step());
  const SnapshotAnalysis none;
  const Json difference = difference_json(before, none);
  std::int64_t sum = 0;
  for (const Json& line : difference.at("lines").as_array()) sum += line.at("change").as_int64();
  CHECK(sum == -static_cast<std::int64_t>(before.devices[0].peak.bytes));
  CHECK(difference_json(before, before).at("lines").as_array().empty());
  CHECK(difference_text(before, before).find("  none\n") != std::string::npos);
}
