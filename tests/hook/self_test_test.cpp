#include "src/hook/self_test.h"

#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/hook/child_process.h"

using namespace lowtide::hook;  // the tests of one header

namespace {
const SelfCheck& named(const std::vector<SelfCheck>& checks, const std::string& name) {
  const auto found =
      std::find_if(checks.begin(), checks.end(), [&](const auto& c) { return c.name == name; });
  REQUIRE(found != checks.end());
  return *found;
}
}  // namespace

TEST_CASE("all self checks pass, have distinct names and say what they found") {
  const std::vector<SelfCheck> checks = self_test();
  std::set<std::string> names;
  for (const SelfCheck& check : checks) {
    CAPTURE(check.name);
    CAPTURE(check.detail);
    CHECK(check.passed);
    CHECK_FALSE(check.detail.empty());
    names.insert(check.name);
  }
  CHECK(names == std::set<std::string>{"torch version", "allocator", "block header",
                                       "memory counts", "saved-tensor hooks", "gradient graph",
                                       "cpu capability", "threads"});
}

TEST_CASE("the self checks fail where another tool's allocator is in place") {
  struct StandInAllocator final : c10::Allocator {
    c10::DataPtr allocate(std::size_t size) override {
      return c10::GetDefaultCPUAllocator()->allocate(size);
    }
    void copy_data(void* dest, const void* src, std::size_t count) const override {
      default_copy_data(dest, src, count);
    }
  };
  const int code = lowtide::testing::in_child_process([] {
    static StandInAllocator other;
    c10::SetAllocator(c10::DeviceType::CPU, &other, 255);
    const std::vector<SelfCheck> checks = self_test();
    const SelfCheck& allocator = named(checks, "allocator");
    return !allocator.passed && allocator.detail.find("StandInAllocator") != std::string::npos &&
                   !named(checks, "block header").passed &&
                   !named(checks, "memory counts").passed && named(checks, "threads").passed
               ? 0
               : 1;
  });
  CHECK(code == 0);
}
