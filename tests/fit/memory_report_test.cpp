// A budget's refusal as a report. What is in the files is tested by tests/report; here, that the
// budget says what it knows.
#include "lowtide/memory_report.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/budget.h"

using namespace lowtide;  // the tests of one header

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder that goes with the test.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("lowtide_report_" + std::to_string(::getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
};

constexpr Bytes kBlock = 256 * 256 * sizeof(float);

// Holds eight blocks and asks for more, inside a limit that has room for ten.
std::optional<BudgetError> refused() {
  const MemoryBudget budget(MemoryMeter().live_bytes() + 10 * kBlock);
  std::vector<at::Tensor> held;
  try {
    for (int i = 0; i < 8; ++i) held.push_back(at::ones({256, 256}) * i);
    at::zeros({1024, 1024});
  } catch (const BudgetError& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("a refusal that is caught writes what the budget knew when it refused") {
  const Folder folder;
  const auto error = refused();
  REQUIRE(error.has_value());
  const MemoryReportPaths paths = write_memory_report(folder.file("oom"), *error);
  CHECK(std::filesystem::exists(paths.snapshot));
  CHECK(std::filesystem::exists(paths.page));
  const std::string text = text_of(paths.explanation);
  CHECK(text.find("memory_fraction_cap (certain)") != std::string::npos);
  CHECK(text.find("the CPU: ") != std::string::npos);
  CHECK(text.find("aten::") != std::string::npos);
}

TEST_CASE("refusals write their report by themselves once that is asked for, until it is not") {
  const Folder folder;
  report_out_of_memory(folder.file("auto"));
  CHECK(refused().has_value());
  CHECK(std::filesystem::exists(folder.file("auto.txt")));
  CHECK(std::filesystem::exists(folder.file("auto.pickle")));
  report_out_of_memory("");
  std::filesystem::remove(folder.file("auto.txt"));
  CHECK(refused().has_value());
  CHECK(!std::filesystem::exists(folder.file("auto.txt")));
}

TEST_CASE("a folder that is not there does not hide the refusal") {
  report_out_of_memory("/no/such/folder/oom");
  CHECK(refused().has_value());
  report_out_of_memory("");
}

TEST_CASE("an error of libtorch's own is explained from its message") {
  const Folder folder;
  const c10::OutOfMemoryError error(
      "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
      "which 256.00 MiB is free. Of the allocated memory 6.50 GiB is allocated by PyTorch, and "
      "250.00 MiB is reserved by PyTorch but unallocated.",
      nullptr);
  const MemoryReportPaths paths = write_memory_report(folder.file("cuda"), error);
  CHECK(text_of(paths.explanation).find("6.50 GiB") != std::string::npos);
  CHECK(paths.snapshot.empty());
}

TEST_CASE("a build without CUDA refuses to record CUDA's memory") {
  if (reports_cuda_memory()) return;
  CHECK_THROWS_WITH_AS(record_memory_history(), doctest::Contains("LT0603"), TorchError);
}
