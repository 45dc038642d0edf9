#pragma once
// Clocks and medians for benches that print their own tables.

#include <time.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace lowtide::bench {

inline double clock_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
inline double wall_seconds() { return clock_seconds(CLOCK_MONOTONIC); }
// Of all threads of the process.
inline double processor_seconds() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }

// Of a non-empty sample; of an even number the mean of the two in the middle.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

inline std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace lowtide::bench
