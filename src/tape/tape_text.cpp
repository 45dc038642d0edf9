// A line is words; a word is bare or key=value. Ids are checked against what has been declared so
// far, so that the tables never hold one out of range; what the order of events must satisfy is
// check_tape's.
//
// Tested by tests/tape/tape_text_test.cpp.

#include "src/tape/tape_text.h"

#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr std::string_view kHeader = "lowtide-tape 1";
constexpr std::array<std::string_view, 7> kKinds = {
    "program", "parameter", "gradient", "optimizer_state", "input", "saved", "workspace"};
constexpr std::array<std::pair<std::string_view, OpFlag>, 3> kFlags = {
    {{"random", OpFlag::kRandom},
     {"not_repeatable", OpFlag::kNotRepeatable},
     {"view", OpFlag::kView}}};
constexpr std::array<std::string_view, 4> kMarks = {"forward", "backward", "optimizer", "end"};

// Takes the text up to the first `separator` off the front of `rest`.
std::string_view take(std::string_view& rest, char separator) {
  const std::size_t at = rest.find(separator);
  const std::string_view part = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view{} : rest.substr(at + 1);
  return part;
}

// What an error shows of untrusted text.
std::string shown(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 40)) {
    const bool plain = c >= ' ' && c <= '~';
    out += plain ? c : '?';
  }
  return out + (text.size() > 40 ? "...'" : "'");
}

class Reader {
 public:
  Tape read(std::string_view text) {
    if (next_line(text) != kHeader) fail("the first line must be '", kHeader, "'");
    while (!text.empty()) read_line(next_line(text));
    check_tape(tape_);
    return std::move(tape_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FormatError("LT0140",
                      concat("cannot read the tape: line ", line_, ": ", parts...,
                             ". docs/formats/tape_text.md has the grammar"),
                      {{"line", static_cast<std::int64_t>(line_)}});
  }

  std::string_view next_line(std::string_view& text) {
    ++line_;
    std::string_view line = take(text, '\n');
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return line;
  }

  void read_line(std::string_view line) {
    rest_ = take(line, '#');
    const std::string_view what = optional_word();
    if (what.empty()) return;
    if (what == "make") {
      declare(word("a storage"));
      const Bytes bytes = number(word("bytes"), "bytes");
      tape_.make(bytes, kind(word("a kind")));
    } else if (what == "run") {
      run();
    } else if (what == "free") {
      tape_.free(storage(word("a storage")));
    } else if (what == "hold") {
      tape_.hold(storage(word("a storage")));
    } else if (what == "unhold") {
      tape_.unhold(storage(word("a storage")));
    } else if (what == "pack") {
      const std::string_view name = word("a saved tensor");
      if (id(name, 't') != tape_.saved.size()) {
        fail("the next saved tensor must be t", tape_.saved.size(), ", not ", shown(name));
      }
      tape_.pack(storage(word("a storage")));
    } else if (what == "unpack") {
      tape_.unpack(saved(word("a saved tensor")));
    } else if (what == "forget") {
      tape_.forget(saved(word("a saved tensor")));
    } else if (what == "batch") {
      if (tape_.batch_size != 0) fail("the batch size stands twice");
      tape_.batch_size = number(word("a batch size"), "a batch size");
    } else if (what == "mark") {
      tape_.mark(static_cast<StepMark>(one_of(kMarks, word("a mark"), "mark")));
    } else {
      fail("unknown event ", shown(what));
    }
    const std::string_view more = optional_word();
    if (!more.empty()) fail("nothing may follow, but ", shown(more), " does");
  }

  // run NAME COST [work=N] [in=s0,s1] [out=s2:BYTES:KIND,s0] [flags=random,view] [module=M]
  //     [source=S]
  void run() {
    const std::string name = unescape(word("an op's name"));
    const std::uint64_t cost = number(word("a time in ns"), "time");
    std::uint64_t working = 0;
    std::uint8_t flags = 0;
    std::string module;
    std::string source;
    reads_.clear();
    writes_.clear();
    int last_key = 0;
    for (std::string_view more = optional_word(); !more.empty(); more = optional_word()) {
      if (more.find('=') == std::string_view::npos) fail("expected key=value, got ", shown(more));
      const std::string_view key = take(more, '=');
      int place = 0;
      if (key == "work") {
        place = 1;
        working = number(more, "bytes");
      } else if (key == "in") {
        place = 2;
        for (bool first = true; first || !more.empty(); first = false) {
          reads_.push_back(storage(take(more, ',')));
        }
      } else if (key == "out") {
        place = 3;
        for (bool first = true; first || !more.empty(); first = false) {
          output(take(more, ','));
        }
      } else if (key == "flags") {
        place = 4;
        for (bool first = true; first || !more.empty(); first = false)
          flags |= flag(take(more, ','));
      } else if (key == "module" || key == "source") {
        place = key == "module" ? 5 : 6;
        (place == 5 ? module : source) = unescape(more);
      } else {
        fail("unknown key ", shown(key));
      }
      if (place <= last_key) fail("'", key, "' stands twice or out of order");
      last_key = place;
    }
    tape_.run(name, cost, reads_, writes_, working, flags);
    if (!module.empty()) tape_.ops.back().module = tape_.name_index(module);
    if (!source.empty()) tape_.ops.back().source = tape_.name_index(source);
  }

  void output(std::string_view text) {
    const std::string_view name = take(text, ':');
    if (text.empty()) {
      writes_.push_back(storage(name));
      return;
    }
    declare(name);
    const Bytes bytes = number(take(text, ':'), "bytes");
    writes_.push_back(tape_.add_storage(bytes, kind(text)));
  }

  std::string_view optional_word() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t'))
      rest_.remove_prefix(1);
    const std::size_t end = rest_.find_first_of(" \t");
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(found.size());
    return found;
  }
  std::string_view word(std::string_view what) {
    const std::string_view found = optional_word();
    if (found.empty()) fail("expected ", what, " before the end of the line");
    return found;
  }
  std::uint64_t number(std::string_view text, std::string_view what) const {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || text.empty()) {
      fail("expected ", what, " as a whole number below 2^64, got ", shown(text));
    }
    return value;
  }
  std::uint32_t id(std::string_view text, char letter) const {
    if (text.empty() || text.front() != letter) {
      fail("expected an id like ", letter, "0, got ", shown(text));
    }
    const std::uint64_t value = number(text.substr(1), "an id");
    if (value >= std::numeric_limits<std::uint32_t>::max())
      fail("id ", shown(text), " is too large");
    return static_cast<std::uint32_t>(value);
  }
  StorageId storage(std::string_view text) const {
    const std::uint32_t index = id(text, 's');
    if (index >= tape_.storages.size()) fail("storage ", shown(text), " has not been made");
    return StorageId{index};
  }
  SavedId saved(std::string_view text) const {
    const std::uint32_t index = id(text, 't');
    if (index >= tape_.saved.size()) fail("saved tensor ", shown(text), " has not been packed");
    return SavedId{index};
  }
  void declare(std::string_view text) const {
    if (id(text, 's') != tape_.storages.size()) {
      fail("the next storage must be s", tape_.storages.size(), ", not ", shown(text));
    }
  }
  template <std::size_t N>
  std::size_t one_of(const std::array<std::string_view, N>& words, std::string_view text,
                     std::string_view what) const {
    for (std::size_t i = 0; i < N; ++i) {
      if (words[i] == text) return i;
    }
    fail("unknown ", what, " ", shown(text));
  }
  StorageKind kind(std::string_view text) const {
    return static_cast<StorageKind>(one_of(kKinds, text, "kind"));
  }
  std::uint8_t flag(std::string_view text) const {
    for (const auto& [name, value] : kFlags) {
      if (name == text) return static_cast<std::uint8_t>(value);
    }
    fail("unknown flag ", shown(text));
  }
  // %20 is a space, %25 a per cent sign, %23 a hash.
  std::string unescape(std::string_view text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        out += text[i];
        continue;
      }
      unsigned code = 0;
      const char* first = text.data() + i + 1;
      const char* last = text.data() + std::min(i + 3, text.size());
      const auto [end, error] = std::from_chars(first, last, code, 16);
      if (error != std::errc{} || end != first + 2) fail("bad escape in the name ", shown(text));
      out += static_cast<char>(code);
      i += 2;
    }
    return out;
  }

  Tape tape_;
  std::size_t line_ = 0;
  std::string_view rest_;
  std::vector<StorageId> reads_;
  std::vector<StorageId> writes_;
};

std::string escape(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : name) {
    if (c > ' ' && c <= '~' && c != '%' && c != '#') {
      out += c;
    } else {
      const auto code = static_cast<unsigned char>(c);
      out += '%';
      out += kDigits[code / 16];
      out += kDigits[code % 16];
    }
  }
  return out;
}

class Writer {
 public:
  explicit Writer(const Tape& tape) : tape_(tape), made_(tape.storages.size(), 0) {}

  std::string write() {
    out_ << kHeader << '\n';
    if (tape_.batch_size != 0) out_ << "batch " << tape_.batch_size << '\n';
    for (const TapeEvent& event : tape_.events) line(event);
    return std::move(out_).str();
  }

 private:
  void line(const TapeEvent& event) {
    switch (event.kind) {
      case TapeEvent::Kind::kMake:
        out_ << "make ";
        declare(event.index, ' ');
        break;
      case TapeEvent::Kind::kRun:
        run(OpId{event.index});
        break;
      case TapeEvent::Kind::kFree:
        out_ << "free s" << number(event.index);
        break;
      case TapeEvent::Kind::kPack:
        saved_number_[event.index] = next_saved_++;
        out_ << "pack t" << saved_number_[event.index] << " s"
             << number(tape_.saved[event.index].storage.index());
        break;
      case TapeEvent::Kind::kUnpack:
        out_ << "unpack t" << saved_number_[event.index];
        break;
      case TapeEvent::Kind::kForget:
        out_ << "forget t" << saved_number_[event.index];
        break;
      case TapeEvent::Kind::kHold:
        out_ << "hold s" << number(event.index);
        break;
      case TapeEvent::Kind::kUnhold:
        out_ << "unhold s" << number(event.index);
        break;
      case TapeEvent::Kind::kMark:
        out_ << "mark " << kMarks[event.index];
        break;
    }
    out_ << '\n';
  }
  void run(OpId id) {
    const TapeOp& op = tape_.ops[id.index()];
    const std::string name = escape(tape_.names[op.name]);
    out_ << "run " << name << ' ' << op.cost_ns;
    if (op.working_bytes > 0) out_ << " work=" << op.working_bytes;
    const char* separator = " in=s";
    for (const StorageId read : tape_.reads(id)) {
      out_ << std::exchange(separator, ",s") << number(read.index());
    }
    separator = " out=";
    for (const StorageId written : tape_.writes(id)) {
      out_ << std::exchange(separator, ",");
      if (made_[written.index()]) {
        out_ << 's' << number(written.index());
      } else {
        declare(written.index(), ':');
      }
    }
    separator = " flags=";
    for (const auto& [word, flag] : kFlags) {
      if (op.has(flag)) out_ << std::exchange(separator, ",") << word;
    }
    if (op.module != TapeOp::kNoName) out_ << " module=" << escape(tape_.names[op.module]);
    if (op.source != TapeOp::kNoName) out_ << " source=" << escape(tape_.names[op.source]);
  }
  void declare(std::uint32_t storage, char separator) {
    made_[storage] = 1;
    storage_number_[storage] = next_storage_++;
    const TapeStorage& what = tape_.storages[storage];
    out_ << 's' << storage_number_[storage] << separator << what.bytes << separator
         << kKinds[static_cast<std::size_t>(what.kind)];
  }
  std::uint32_t number(std::uint32_t storage) const { return storage_number_[storage]; }

  const Tape& tape_;
  std::vector<char> made_;
  // Text numbers storages and saved tensors in the order in which they appear.
  std::vector<std::uint32_t> storage_number_ = std::vector<std::uint32_t>(tape_.storages.size(), 0);
  std::vector<std::uint32_t> saved_number_ = std::vector<std::uint32_t>(tape_.saved.size(), 0);
  std::uint32_t next_storage_ = 0;
  std::uint32_t next_saved_ = 0;
  std::ostringstream out_;
};

}  // namespace

Tape parse_tape_text(std::string_view text) { return Reader().read(text); }

std::string to_tape_text(const Tape& tape) { return Writer(tape).write(); }

}  // namespace lowtide
