#pragma once
// What lint reports.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lowtide::lint {

// Ranked: the worst first.
enum class Cost : std::uint8_t {
  kLeak,   // activations stay: no backward ran on the value in its iteration
  kCreep,  // graph nodes stay, a few KiB a step
  kPeak,   // the peak is higher than it need be
};

struct Edit {
  std::uint32_t begin = 0, end = 0;  // bytes of the file, [begin, end)
  std::string text;
};

struct Fix {
  std::string description;
  bool safe = false;  // the weights are bit-equal afterwards
  std::vector<Edit> edits;
};

struct Finding {
  std::string file;
  std::uint32_t line = 0, column = 0;  // from 1
  std::string rule;
  std::string message;
  Cost cost = Cost::kPeak;
  std::optional<Fix> fix;
  std::string cell;  // of a notebook: "cell 3"
};

}  // namespace lowtide::lint
