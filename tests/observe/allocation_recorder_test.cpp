#include "src/observe/allocation_recorder.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "lowtide/error.h"
#include "src/observe/module_places.h"

using namespace lowtide;  // the tests of one header

namespace {

AllocationRecorder& recorder() { return AllocationRecorder::instance(); }

at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

}  // namespace

TEST_CASE("blocks are logged as they come and go, those from before when they go") {
  at::Tensor before = bytes(1000);
  recorder().start();
  const at::Tensor first = bytes(50);
  before.reset();
  recorder().end_step();
  std::thread([] { bytes(7); }).join();
  recorder().end_step();
  const AllocationLog log = recorder().stop();
  REQUIRE(log.events.size() == 4);
  REQUIRE(log.blocks.size() == 3);
  CHECK(log.step_ends == std::vector<std::size_t>{2, 4});
  CHECK(log.blocks[0].bytes == 50);
  CHECK(log.names[log.blocks[0].op] == "aten::empty.memory_format");
  CHECK(log.blocks[1].bytes == 1000);
  CHECK(log.blocks[1].was_there);
  CHECK_FALSE(log.events[1].is_made);
  CHECK(log.blocks[2].bytes == 7);
  CHECK(log.blocks[2].op_number != log.blocks[0].op_number);
  CHECK(log.start_bytes >= 1000);
}

TEST_CASE("nothing is logged after the end, and tags of an earlier log mean nothing") {
  recorder().start();
  at::Tensor kept = bytes(20);
  CHECK(recorder().stop().events.size() == 1);
  bytes(30);
  recorder().start();
  kept.reset();
  const AllocationLog log = recorder().stop();
  REQUIRE(log.events.size() == 1);
  CHECK(log.blocks[0].bytes == 20);
  CHECK(log.blocks[0].was_there);
}

TEST_CASE(
    "blocks have the kind and module that they were marked with, and the module they ran in") {
  const at::Tensor weight = bytes(8);
  recorder().mark(weight, StorageKind::kParameter, "encoder.linear");
  recorder().start();
  ModulePlaces::enter("encoder");
  ModulePlaces::enter("encoder.linear");
  const at::Tensor inner = bytes(1);
  ModulePlaces::leave();
  const at::Tensor outer = bytes(2);
  ModulePlaces::leave();
  recorder().set_in_optimizer(true);
  const at::Tensor state = bytes(3);
  recorder().set_in_optimizer(false);
  recorder().mark(state, StorageKind::kOptimizerState, "");
  const AllocationLog log = recorder().stop();
  REQUIRE(log.blocks.size() == 4);
  const auto module = [&](std::size_t block) { return log.names[log.blocks[block].module]; };
  CHECK(log.blocks[0].kind == StorageKind::kParameter);
  CHECK(module(0) == "encoder.linear");
  CHECK(module(1) == "encoder.linear");
  CHECK(module(2) == "encoder");
  CHECK(module(3).empty());
  CHECK(log.blocks[3].phase == StepPhase::kOptimizer);
  CHECK(log.blocks[3].kind == StorageKind::kOptimizerState);
}

TEST_CASE("one recording at a time") {
  recorder().start();
  CHECK_THROWS_AS(recorder().start(), UsageError);
  recorder().stop();
}
