#pragma once
// Reads logs of any length in bounded memory and hands on the lines that matter.
//
// The first 8 MiB and the last 256 KiB are handed on whole. In between, a search for a few dozen
// words (log_stream.cpp) finds the places where something about memory is said, and the lines from
// 256 KiB before to 64 KiB after each are handed on. Everything else costs one pass of that search:
// about a second for a gigabyte.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lowtide {

// Puts up to `capacity` bytes at `buffer` and returns how many; 0 at the end. May throw IoError.
using LogSource = std::function<std::size_t(char* buffer, std::size_t capacity)>;

struct LineSink {
  // A line without its end, number from 1. Lines over 64 KiB arrive in pieces of the same number.
  std::function<void(std::string_view line, std::uint64_t number)> line;
  // Lines were left out here.
  std::function<void()> gap;
};

struct StreamTotals {
  std::uint64_t bytes = 0;
  std::uint64_t lines = 0;
};

// Under 4 MiB of buffers, whatever the source holds.
StreamTotals stream_log(const LogSource& source, const LineSink& sink);

}  // namespace lowtide
