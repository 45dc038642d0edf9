#include "src/evidence/log_stream.h"

// The search is Wu and Manber's (1994): a window as long as the shortest word slides over the text;
// a table over its last three bytes says how far it may jump, which is nearly always its whole
// length. Only where the last three end some word are the words compared.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace lowtide {
namespace {

constexpr std::size_t kHeadBytes = std::size_t{8} << 20;
constexpr std::size_t kBeforeBytes = std::size_t{256} << 10;
constexpr std::size_t kAfterBytes = std::size_t{64} << 10;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxLineBytes = std::size_t{64} << 10;

// Lower case, at least nine characters each: the window is as long as the shortest. Each family of
// messages holds at least one, and so do the notices.
constexpr std::array kWords = std::to_array<std::string_view>({"out of memory",
                                                               "outofmemory",
                                                               "out_of_memory",
                                                               "memoryerror",
                                                               "enough memory",
                                                               "allocate memory",
                                                               "budget: cannot",
                                                               "to allocate",
                                                               "alloc_failed",
                                                               "not_initialized",
                                                               "enforce fail",
                                                               "bad_alloc",
                                                               "oom-kill ",
                                                               "oom-kill:",
                                                               "oom_kill ",
                                                               "oomkilled",
                                                               "(sigkill)",
                                                               "sigkill: 9",
                                                               "sigkill_handler",
                                                               "fairscale",
                                                               "bus error",
                                                               "exitcode:",
                                                               "exitcode=",
                                                               "exitcode\"",
                                                               "exit code",
                                                               "exit status",
                                                               "returncode",
                                                               "find an engine",
                                                               "cudnn algorithm",
                                                               "shared memory",
                                                               "memory access",
                                                               "device-side",
                                                               "calculation over",
                                                               "space left on",
                                                               "allocation on device",
                                                               "cuda failure",
                                                               "have requires_grad",
                                                               "a target size",
                                                               "sequence length is longer",
                                                               "memory limit",
                                                               "term_memlimit",
                                                               "of ancdata",
                                                               "open files",
                                                               "out of resource",
                                                               "resources requested",
                                                               "cuda error",
                                                               "killed by signal",
                                                               "nvml_success",
                                                               "batch size found",
                                                               "paging file",
                                                               "available ram",
                                                               "[winerror 1455]",
                                                               "cudnn_status",
                                                               "static tls",
                                                               "exited unexpectedly",
                                                               "gradient checkpointing",
                                                               "assertion `",
                                                               "failed to cuda"});

// Lower case for letters; other bytes change too, but alike in words and text.
unsigned char fold(char c) { return static_cast<unsigned char>(c) | 0x20u; }

class WordSearch {
 public:
  WordSearch() {
    window_ = kWords[0].size();
    for (const std::string_view word : kWords) window_ = std::min(window_, word.size());
    shift_.fill(static_cast<std::uint8_t>(window_ - 2));
    ends_.resize(shift_.size());
    for (std::size_t w = 0; w < kWords.size(); ++w) {
      for (std::size_t end = 2; end < window_; ++end) {
        const std::size_t block = block_of(kWords[w].data() + end);
        const auto jump = static_cast<std::uint8_t>(window_ - 1 - end);
        shift_[block] = std::min(shift_[block], jump);
        if (jump == 0) ends_[block].push_back(w);
      }
    }
  }

  // Puts the offset of each place where a word begins into `hits`, in order.
  //
  // A jump waits for the table, and the next for the jump: four windows that slide over a quarter
  // of the text each keep the processor busy meanwhile.
  void search(const char* text, std::size_t length, std::vector<std::size_t>& hits) const {
    hits.clear();
    std::array<std::size_t, 4> end;    // the last byte of each window
    std::array<std::size_t, 4> limit;  // where its quarter's windows stop
    for (std::size_t q = 0; q < 4; ++q) {
      end[q] = length * q / 4 + window_ - 1;
      limit[q] = std::min(length * (q + 1) / 4 + window_ - 1, length);
    }
    while (end[0] < limit[0] && end[1] < limit[1] && end[2] < limit[2] && end[3] < limit[3]) {
      std::array<std::uint8_t, 4> jump;
      for (std::size_t q = 0; q < 4; ++q) jump[q] = shift_[block_of(text + end[q])];
      for (std::size_t q = 0; q < 4; ++q) {
        end[q] += jump[q] != 0 ? jump[q] : compare(text, length, end[q], hits);
      }
    }
    for (std::size_t q = 0; q < 4; ++q) {
      while (end[q] < limit[q]) {
        const std::uint8_t jump = shift_[block_of(text + end[q])];
        end[q] += jump != 0 ? jump : compare(text, length, end[q], hits);
      }
    }
    std::sort(hits.begin(), hits.end());
  }

 private:
  // Looks for words in the window that ends at `end`; the window moves on by one.
  std::size_t compare(const char* text, std::size_t length, std::size_t end,
                      std::vector<std::size_t>& hits) const {
    const std::size_t begin = end + 1 - window_;
    for (const std::size_t w : ends_[block_of(text + end)]) {
      if (matches(text + begin, length - begin, kWords[w])) {
        hits.push_back(begin);
        break;
      }
    }
    return 1;
  }
  // Of the three bytes that end at `last`, five bits each: case does not matter, and the table fits
  // the first cache. Bytes that share five bits share an entry; words are compared in the end.
  static std::size_t block_of(const char* last) {
    return (static_cast<std::size_t>(last[-2] & 31) << 10) |
           (static_cast<std::size_t>(last[-1] & 31) << 5) | static_cast<std::size_t>(last[0] & 31);
  }
  static bool matches(const char* text, std::size_t length, std::string_view word) {
    if (length < word.size()) return false;
    for (std::size_t i = 0; i < word.size(); ++i) {
      if (fold(text[i]) != fold(word[i])) return false;
    }
    return true;
  }

  std::size_t window_ = 0;
  std::array<std::uint8_t, 1u << 15> shift_;
  std::vector<std::vector<std::size_t>> ends_;
};

std::uint64_t count_lines(const char* begin, const char* end) {
  return static_cast<std::uint64_t>(std::count(begin, end, '\n'));
}

// Cuts what it is given into lines.
class Splitter {
 public:
  explicit Splitter(const LineSink& sink) : sink_(sink) {}

  void begin_at(std::uint64_t number) {
    partial_.clear();
    number_ = number;
  }
  void take(const char* begin, const char* end) {
    while (begin < end) {
      const char* newline =
          static_cast<const char*>(std::memchr(begin, '\n', static_cast<std::size_t>(end - begin)));
      const char* stop = newline == nullptr ? end : newline;
      while (partial_.size() + static_cast<std::size_t>(stop - begin) > kMaxLineBytes) {
        const std::size_t room = kMaxLineBytes - partial_.size();
        partial_.append(begin, room);
        sink_.line(partial_, number_);
        partial_.clear();
        begin += room;
      }
      partial_.append(begin, stop);
      if (newline == nullptr) return;
      sink_.line(partial_, number_);
      partial_.clear();
      ++number_;
      begin = newline + 1;
    }
  }
  void finish() {
    if (!partial_.empty()) sink_.line(partial_, number_);
    partial_.clear();
  }

 private:
  const LineSink& sink_;
  std::string partial_;
  std::uint64_t number_ = 1;
};

}  // namespace

StreamTotals stream_log(const LogSource& source, const LineSink& sink) {
  static const WordSearch search;
  Splitter splitter(sink);
  // [history | chunk]: offsets below are into the source, `base` is the buffer's first.
  std::vector<char> buffer(kBeforeBytes + kChunkBytes);
  std::uint64_t base = 0;
  std::size_t held = 0;  // bytes of the buffer that are filled
  std::vector<std::size_t> hits;
  std::uint64_t lines_before_base = 0;
  std::uint64_t handed_to = 0;           // everything before this was handed on or left out
  std::uint64_t wanted_to = kHeadBytes;  // hand on up to here
  const auto hand_on = [&](std::uint64_t end) {
    if (end <= handed_to) return;
    splitter.take(buffer.data() + (handed_to - base), buffer.data() + (end - base));
    handed_to = end;
  };
  const auto skip_to = [&](std::uint64_t begin) {
    if (begin <= handed_to) return;
    // Whole lines only: from the next line's begin.
    const char* from = buffer.data() + (begin - base);
    const char* end = buffer.data() + held;
    const char* newline =
        static_cast<const char*>(std::memchr(from, '\n', static_cast<std::size_t>(end - from)));
    if (newline != nullptr) from = newline + 1;
    splitter.finish();
    sink.gap();
    splitter.begin_at(lines_before_base + count_lines(buffer.data(), from) + 1);
    handed_to = base + static_cast<std::uint64_t>(from - buffer.data());
  };

  for (;;) {
    // Keep the last kBeforeBytes as history.
    if (held > kBeforeBytes) {
      const std::size_t drop = held - kBeforeBytes;
      lines_before_base += count_lines(buffer.data(), buffer.data() + drop);
      std::memmove(buffer.data(), buffer.data() + drop, kBeforeBytes);
      held = kBeforeBytes;
      base += drop;
    }
    const std::size_t chunk_begin = held;
    std::size_t got = 0;
    while (held < buffer.size() &&
           (got = source(buffer.data() + held, buffer.size() - held)) != 0) {
      held += got;
    }
    const bool at_end = held < buffer.size();
    const std::uint64_t end = base + held;
    if (wanted_to < end) {
      // Words may begin in the chunk before.
      const std::size_t from = chunk_begin > 64 ? chunk_begin - 64 : 0;
      search.search(buffer.data() + from, held - from, hits);
      for (const std::size_t offset : hits) {
        const std::uint64_t at = base + from + offset;
        hand_on(std::min(wanted_to, at));
        const std::uint64_t before = at > kBeforeBytes ? at - kBeforeBytes : 0;
        if (before > handed_to) skip_to(std::max(before, base));
        wanted_to = std::max(wanted_to, at + kAfterBytes);
      }
    }
    hand_on(std::min(wanted_to, end));
    if (at_end) {
      if (handed_to < end) {
        skip_to(std::max(handed_to, end > kBeforeBytes ? end - kBeforeBytes : 0));
        hand_on(end);
      }
      splitter.finish();
      StreamTotals totals;
      totals.bytes = end;
      totals.lines = lines_before_base + count_lines(buffer.data(), buffer.data() + held);
      if (held > 0 && buffer[held - 1] != '\n') ++totals.lines;
      return totals;
    }
  }
}

}  // namespace lowtide
