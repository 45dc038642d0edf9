#pragma once
// A line of a log without what terminals, browsers and launchers put around it.
//
//   tidy_line("\x1b[31m[rank3]: RuntimeError: CUDA out of memory\x1b[0m")
//       -> lane "rank3", text "RuntimeError: CUDA out of memory"
//
// Removed: ANSI sequences, NUL bytes, carriage returns, HTML entities and tags of <pre> pages, box
// drawing, quote marks, time stamps, and the prefixes of ranks, tasks, containers and loggers. The
// text that is left has no blanks at its ends. A physical line becomes several where it holds
// carriage returns (progress bars) or the two characters "\n" (logs kept as JSON).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

struct LogLine {
  std::string lane;          // which rank, task or worker wrote it; empty where nothing says so
  std::string text;          // may be empty
  std::uint64_t number = 0;  // in its file, from 1
};

// Appends what `raw`, line `number` of a file, holds. Linear in its length.
void tidy_line(std::string_view raw, std::uint64_t number, std::vector<LogLine>& out);

}  // namespace lowtide
