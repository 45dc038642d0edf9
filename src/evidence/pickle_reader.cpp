// The stack machine of pickle, data instructions only.
//
// Values stand on a stack of handles. MARK notes the height; SETITEMS and APPENDS take everything
// above the last mark into the container below it. Python batches by a thousand; libtorch puts one
// mark around a whole trace, so the stack may hold a million handles of eight bytes.
//
// A container is offered to the folder each time it gets contents. Python numbers a container in
// its memo before filling it and libtorch after, so a handle of it may be in the memo already when
// it is folded: both name a cell, and the cell knows what has become of it. A container that is
// inside another one is done: no pickler adds to it later, except for data that contain themselves,
// which are refused.
//
// Tested by tests/evidence/pickle_reader_test.cpp.

#include "src/evidence/pickle_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

// What to do with a file that begins so; null for one that is not packed.
const char* way_to_unpack(std::string_view head) {
  if (head.starts_with("PK\x03\x04")) {
    return "it is a zip archive, as torch.save writes. Take the pickle out of it, with "
           "unzip -p FILE '*/data.pkl' > snapshot.pickle";
  }
  if (head.starts_with("\x1f\x8b")) return "it is compressed. Unpack it first, with gunzip";
  if (head.starts_with("\x28\xb5\x2f\xfd")) return "it is compressed. Unpack it first, with unzstd";
  if (head.starts_with("\xfd"
                       "7zXZ"))
    return "it is compressed. Unpack it first, with unxz";
  if (head.starts_with("BZh")) return "it is compressed. Unpack it first, with bunzip2";
  return nullptr;
}

// Nesting of a snapshot is 7; this is for whatever else someone has put into one.
constexpr std::size_t kMaxNesting = 1000;
constexpr std::uint64_t kWaitingValues = 16384;
constexpr std::uint64_t kBytesPerWaitingValue = 16;
constexpr std::size_t kBufferBytes = std::size_t{1} << 18;
// Handles carry 32 bits of index; rows of records too.
constexpr std::size_t kMaxCells = 0xfffffff0u;

// Instruction names as Python's pickletools gives them, for refusals. Null: no such instruction.
const char* instruction_name(std::uint8_t code) {
  switch (code) {
    case '(':
      return "MARK";
    case '.':
      return "STOP";
    case '0':
      return "POP";
    case '1':
      return "POP_MARK";
    case '2':
      return "DUP";
    case 'F':
      return "FLOAT";
    case 'I':
      return "INT";
    case 'J':
      return "BININT";
    case 'K':
      return "BININT1";
    case 'L':
      return "LONG";
    case 'M':
      return "BININT2";
    case 'N':
      return "NONE";
    case 'P':
      return "PERSID";
    case 'Q':
      return "BINPERSID";
    case 'R':
      return "REDUCE";
    case 'S':
      return "STRING";
    case 'T':
      return "BINSTRING";
    case 'U':
      return "SHORT_BINSTRING";
    case 'V':
      return "UNICODE";
    case 'X':
      return "BINUNICODE";
    case 'a':
      return "APPEND";
    case 'b':
      return "BUILD";
    case 'c':
      return "GLOBAL";
    case 'd':
      return "DICT";
    case '}':
      return "EMPTY_DICT";
    case 'e':
      return "APPENDS";
    case 'g':
      return "GET";
    case 'h':
      return "BINGET";
    case 'i':
      return "INST";
    case 'j':
      return "LONG_BINGET";
    case 'l':
      return "LIST";
    case ']':
      return "EMPTY_LIST";
    case 'o':
      return "OBJ";
    case 'p':
      return "PUT";
    case 'q':
      return "BINPUT";
    case 'r':
      return "LONG_BINPUT";
    case 's':
      return "SETITEM";
    case 't':
      return "TUPLE";
    case ')':
      return "EMPTY_TUPLE";
    case 'u':
      return "SETITEMS";
    case 'G':
      return "BINFLOAT";
    case 'B':
      return "BINBYTES";
    case 'C':
      return "SHORT_BINBYTES";
    case 0x80:
      return "PROTO";
    case 0x81:
      return "NEWOBJ";
    case 0x82:
      return "EXT1";
    case 0x83:
      return "EXT2";
    case 0x84:
      return "EXT4";
    case 0x85:
      return "TUPLE1";
    case 0x86:
      return "TUPLE2";
    case 0x87:
      return "TUPLE3";
    case 0x88:
      return "NEWTRUE";
    case 0x89:
      return "NEWFALSE";
    case 0x8a:
      return "LONG1";
    case 0x8b:
      return "LONG4";
    case 0x8c:
      return "SHORT_BINUNICODE";
    case 0x8d:
      return "BINUNICODE8";
    case 0x8e:
      return "BINBYTES8";
    case 0x8f:
      return "EMPTY_SET";
    case 0x90:
      return "ADDITEMS";
    case 0x91:
      return "FROZENSET";
    case 0x92:
      return "NEWOBJ_EX";
    case 0x93:
      return "STACK_GLOBAL";
    case 0x94:
      return "MEMOIZE";
    case 0x95:
      return "FRAME";
    case 0x96:
      return "BYTEARRAY8";
    case 0x97:
      return "NEXT_BUFFER";
    case 0x98:
      return "READONLY_BUFFER";
    default:
      return nullptr;
  }
}

std::string hexadecimal(std::uint8_t code) {
  constexpr char kDigits[] = "0123456789abcdef";
  return {'0', 'x', kDigits[code >> 4], kDigits[code & 15]};
}

}  // namespace

ByteSource::ByteSource(const std::string& path) : name_(path) {
  file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) {
    throw IoError("LT0710", concat("cannot read ", path, ": ", std::strerror(errno),
                                   ". Check the path and its rights"));
  }
  struct stat status;
  if (fstat(file_, &status) == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
}

ByteSource::ByteSource(std::string name, std::span<const std::byte> bytes)
    : name_(std::move(name)), memory_(bytes), size_(bytes.size()) {}

ByteSource::~ByteSource() {
  if (file_ >= 0) close(file_);
}

std::size_t ByteSource::read(std::byte* out, std::size_t room) {
  if (file_ < 0) {
    const std::size_t count = std::min(room, memory_.size());
    std::copy_n(memory_.begin(), count, out);
    memory_ = memory_.subspan(count);
    return count;
  }
  for (;;) {
    const ssize_t count = ::read(file_, out, room);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno == EINTR) continue;
    throw IoError("LT0710", concat("cannot read ", name_, ": ", std::strerror(errno),
                                   ". Check the path and its rights"));
  }
}

class PickleMachine {
 public:
  PickleMachine(ByteSource& source, PickleHeap& heap, PickleFolder* folder)
      : source_(source),
        heap_(heap),
        folder_(folder),
        buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)) {
    at_ = end_ = buffer_.get();
  }

  PickleValue run() {
    read_header();
    for (;;) {
      instruction_ = offset();
      const std::uint8_t code = byte();
      switch (code) {
        case 0x95:  // FRAME: how many bytes follow in one piece; of no use here
          take(8);
          break;
        case '(':
          if (marks_.size() == kMaxNesting) {
            refuse_limit(concat("containers are nested more than ", kMaxNesting, " deep"));
          }
          marks_.push_back(height_);
          break;
        case 'h':
          push(recall(byte()));
          break;
        case 'j':
          push(recall(number<std::uint32_t>()));
          break;
        case 0x94:
          remember(memo_.size(), top());
          break;
        case 'q':
          remember(byte(), top());
          break;
        case 'r':
          remember(number<std::uint32_t>(), top());
          break;
        case 'K':
          push(heap_.integer(byte()));
          break;
        case 'M':
          push(heap_.integer(number<std::uint16_t>()));
          break;
        case 'J':
          push(heap_.integer(static_cast<std::int32_t>(number<std::uint32_t>())));
          break;
        case 0x8a:
          push(long_integer(byte()));
          break;
        case 'G': {
          std::uint64_t bits = number<std::uint64_t>();
          push(heap_.number(std::bit_cast<double>(__builtin_bswap64(bits))));
          break;
        }
        case 0x8c:
          push(text(byte()));
          break;
        case 'X':
          push(text(number<std::uint32_t>()));
          break;
        case 0x8d:
          push(text(number<std::uint64_t>()));
          break;
        case 'N':
          push({});
          break;
        case 0x88:
        case 0x89:
          push({PickleValue::Kind::kBool, code == 0x88 ? 1u : 0u});
          break;
        case '}':
          check_cells(heap_.dict_cells_.size());
          push(heap_.make_dict());
          break;
        case ']':
          check_cells(heap_.list_cells_.size());
          push(heap_.make_list());
          break;
        case ')':
          make_tuple(height_);
          break;
        case 0x85:
        case 0x86:
        case 0x87: {
          const std::size_t count = code - 0x84u;
          if (available() < count) refuse_damaged("a tuple needs more values than there are");
          make_tuple(height_ - count);
          break;
        }
        case 't':
          make_tuple(pop_mark());
          break;
        case 's':
          if (available() < 3) refuse_damaged("an item is put into nothing");
          set_items(height_ - 2);
          break;
        case 'u':
          set_items(pop_mark());
          break;
        case 'a':
          if (available() < 2) refuse_damaged("an element is appended to nothing");
          append_items(height_ - 1);
          break;
        case 'e':
          append_items(pop_mark());
          break;
        case '.':
          if (!marks_.empty() || height_ != 1) {
            refuse_damaged(concat("it stops with ", height_, " values instead of one"));
          }
          return heap_.folded(stack_[height_ - 1]);
        default:
          refuse_instruction(code);
      }
    }
  }

 private:
  std::uint64_t offset() const { return passed_ + static_cast<std::uint64_t>(at_ - buffer_.get()); }

  std::string where() const {
    std::string good = folder_ != nullptr ? folder_->progress() : std::string();
    return concat("at byte ", instruction_,
                  good.empty() ? std::string() : concat("; good until there: ", good));
  }

  [[noreturn]] void refuse_damaged(const std::string& what) const {
    throw FormatError("LT0712",
                      concat("cannot read ", source_.name(), ": ", what, ", ", where(),
                             ". The file is damaged; write or fetch it again"),
                      {{"offset", static_cast<std::int64_t>(instruction_)}});
  }

  [[noreturn]] void refuse_cut() const {
    const std::uint64_t length =
        source_.size().value_or(passed_ + static_cast<std::uint64_t>(end_ - buffer_.get()));
    std::string good = folder_ != nullptr ? folder_->progress() : std::string();
    throw FormatError("LT0712",
                      concat("cannot read ", source_.name(), ": it is cut off after ", length,
                             " bytes; good until byte ", instruction_, good.empty() ? "" : ": ",
                             good, ". Write or fetch it again"),
                      {{"offset", static_cast<std::int64_t>(instruction_)}});
  }

  [[noreturn]] void refuse_limit(const std::string& what) const {
    throw FormatError("LT0714",
                      concat("cannot read ", source_.name(), ": ", what, ", ", where(),
                             ". No snapshot is like this; the file is damaged or made by hand"),
                      {{"offset", static_cast<std::int64_t>(instruction_)}});
  }

  [[noreturn]] void refuse_instruction(std::uint8_t code) const {
    const char* name = instruction_name(code);
    if (name == nullptr) {
      refuse_damaged(concat("byte ", hexadecimal(code), " is no pickle instruction"));
    }
    throw FormatError(
        "LT0711",
        concat("will not run ", source_.name(), ": pickle instruction ", name, " (",
               hexadecimal(code), ") at byte ", instruction_,
               " does not build plain data, and memory snapshots have none. If the file is one, "
               "something else was pickled with it; it could do anything when loaded in Python"),
        {{"offset", static_cast<std::int64_t>(instruction_)}, {"instruction", std::string(name)}});
  }

  void read_header() {
    refill();
    const std::string_view begin(reinterpret_cast<const char*>(at_),
                                 static_cast<std::size_t>(end_ - at_));
    const auto refuse = [&](const std::string& what) {
      throw FormatError("LT0713", concat("cannot read ", source_.name(), ": ", what));
    };
    if (begin.empty()) refuse("it is empty. Write or fetch it again");
    if (const char* remedy = way_to_unpack(begin)) refuse(remedy);
    if (begin.starts_with("version https://git-lfs")) {
      refuse("it is a Git LFS pointer, not the file itself. Fetch it with git lfs pull");
    }
    if (static_cast<std::uint8_t>(begin[0]) != 0x80) {
      const std::string hint =
          begin[0] == '{' || begin[0] == '[' ? "it looks like JSON" : "it is no pickle";
      refuse(concat(hint, " (it begins with byte ",
                    hexadecimal(static_cast<std::uint8_t>(begin[0])),
                    " where a pickle of protocol 2 to 5 has 0x80). Snapshots are written by "
                    "torch.cuda.memory._dump_snapshot"));
    }
    ++at_;
    const std::uint8_t protocol = byte();
    if (protocol < 2 || protocol > 5) {
      refuse(concat("it says pickle protocol ", int{protocol}, ", and 2 to 5 are known"));
    }
  }

  // Makes the next bytes available; false at the end of the file.
  bool refill() {
    const auto left = static_cast<std::size_t>(end_ - at_);
    std::memmove(buffer_.get(), at_, left);
    passed_ += static_cast<std::uint64_t>(at_ - buffer_.get());
    at_ = buffer_.get();
    end_ = buffer_.get() + left;
    const std::size_t got = source_.read(buffer_.get() + left, kBufferBytes - left);
    end_ += got;
    return got > 0;
  }

  const std::byte* take(std::size_t count) {
    while (static_cast<std::size_t>(end_ - at_) < count) {
      if (!refill()) refuse_cut();
    }
    const std::byte* taken = at_;
    at_ += count;
    return taken;
  }

  std::uint8_t byte() { return std::to_integer<std::uint8_t>(*take(1)); }

  template <typename Unsigned>
  Unsigned number() {
    Unsigned value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;  // pickle is little-endian, and so is every machine with a GPU
  }

  PickleValue long_integer(std::uint8_t length) {
    const std::byte* bytes = take(length);
    if (length == 0) return heap_.integer(0);
    const auto at = [&](std::size_t i) { return std::to_integer<std::uint8_t>(bytes[i]); };
    const bool negative = (at(length - 1u) & 0x80) != 0;
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = std::min<std::size_t>(length, 8); i-- > 0;) value = (value << 8) | at(i);
    // A ninth byte carries only the sign.
    const bool fits = length <= 8 || (length == 9 && at(8) == 0);
    if (!fits) refuse_limit(concat("an integer of ", int{length}, " bytes does not fit 64 bits"));
    return negative ? heap_.integer(static_cast<std::int64_t>(value))
                    : heap_.unsigned_integer(value);
  }

  PickleValue text(std::uint64_t length) {
    if (length <= kBufferBytes) {
      const auto count = static_cast<std::size_t>(length);
      return heap_.text({reinterpret_cast<const char*>(take(count)), count});
    }
    if (length > 0xffffffffu) refuse_limit(concat("a text of ", length, " bytes"));
    const auto all = source_.size();
    if (all && length > *all - std::min(*all, offset())) refuse_cut();
    // Piece by piece: the length is believed only as far as bytes follow.
    std::string whole;
    if (all) whole.reserve(static_cast<std::size_t>(length));  // which is there
    while (whole.size() < length) {
      if (at_ == end_ && !refill()) refuse_cut();
      const std::size_t piece =
          std::min<std::size_t>(static_cast<std::size_t>(end_ - at_), length - whole.size());
      whole.append(reinterpret_cast<const char*>(at_), piece);
      at_ += piece;
    }
    return heap_.text(whole);
  }

  void push(PickleValue value) {
    if (height_ == stack_.size()) [[unlikely]]
      grow_stack();
    stack_[height_++] = value;
  }

  // Values that wait for their container are few: Python fills by a thousand, and where libtorch
  // puts a whole trace on the stack, each value stands for an event of a hundred bytes. Only a
  // damaged file has many more, since the instructions that take them off are gone.
  void grow_stack() {
    const std::uint64_t most = kWaitingValues + offset() / kBytesPerWaitingValue;
    if (height_ >= most) {
      refuse_limit(concat(height_, " values wait for a container"));
    }
    stack_.resize(std::max<std::size_t>(1024, 2 * height_));
  }

  // How many values there are above the last mark.
  std::size_t available() const { return height_ - (marks_.empty() ? 0 : marks_.back()); }

  PickleValue top() const {
    if (available() == 0) refuse_damaged("nothing is there to be kept");
    return stack_[height_ - 1];
  }

  std::size_t pop_mark() {
    if (marks_.empty()) refuse_damaged("a container ends that was not begun");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }

  void remember(std::size_t slot, PickleValue value) {
    if (slot < memo_.size()) {
      memo_[slot] = value;
    } else if (slot == memo_.size()) {
      memo_.push_back(value);
    } else {
      far_memo_[slot] = value;  // picklers count from 0, so this is rare
    }
  }

  PickleValue recall(std::size_t slot) {
    if (slot < memo_.size()) [[likely]] {
      // What has become a record is one from now on.
      PickleValue& value = memo_[slot];
      if (value.is(PickleValue::Kind::kDict) || value.is(PickleValue::Kind::kList)) {
        value = heap_.folded(value);
      }
      return value;
    }
    const auto found = far_memo_.find(slot);
    if (found == far_memo_.end()) {
      refuse_damaged(concat("it names value ", slot, ", which it has not given yet"));
    }
    return found->second;
  }

  void check_cells(std::size_t count) const {
    if (count >= kMaxCells) refuse_limit("more containers than 32 bits can number");
  }

  // What goes into a container is final: a list or dict in it becomes its record.
  void store(std::size_t first) {
    for (std::size_t i = first; i < height_; ++i) {
      PickleValue& value = stack_[i];
      if (value.is(PickleValue::Kind::kList)) {
        heap_.list_cells_[value.index()].stored = true;
        value = heap_.folded(value);
      } else if (value.is(PickleValue::Kind::kDict)) {
        heap_.dict_cells_[value.index()].stored = true;
        value = heap_.folded(value);
      }
    }
  }

  std::span<const PickleValue> above(std::size_t first) const {
    return std::span(stack_).subspan(first, height_ - first);
  }

  void make_tuple(std::size_t first) {
    store(first);
    check_cells(heap_.tuple_elements_.size() + height_ - first);
    const PickleValue made = heap_.tuple(above(first));
    height_ = first;
    push(made);
  }

  PickleHeap::Cell& container_below(std::size_t first, PickleValue::Kind kind,
                                    std::vector<PickleHeap::Cell>& cells) const {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (first <= floor || !stack_[first - 1].is(kind)) {
      refuse_damaged(kind == PickleValue::Kind::kDict ? "items are put into what is no dict"
                                                      : "elements are appended to what is no list");
    }
    PickleHeap::Cell& cell = cells[stack_[first - 1].index()];
    if (cell.stored) refuse_damaged("a container changes after it was put into another");
    return cell;
  }

  void set_items(std::size_t first) {
    PickleHeap::Cell& cell = container_below(first, PickleValue::Kind::kDict, heap_.dict_cells_);
    if ((height_ - first) % 2 != 0) refuse_damaged("a dict has a key without a value");
    store(first);
    std::span<const PickleValue> items = above(first);
    std::vector<PickleValue> joined;
    PickleValue record;
    if (cell.form == PickleHeap::Form::kFolded) {
      record = PickleValue::record(cell.tag, cell.index);
    } else if (cell.form == PickleHeap::Form::kPlain && folder_ != nullptr) {
      const auto& held = heap_.dicts_[cell.index];
      // A dict of hundreds of entries is none that becomes a row.
      if (held.size() < 64) {
        for (const auto& [key, value] : held) joined.insert(joined.end(), {key, value});
        joined.insert(joined.end(), items.begin(), items.end());
      }
    }
    if (folder_ != nullptr && !items.empty()) {
      record = folder_->fold_dict(record, joined.empty() ? items : joined);
    }
    if (record.is(PickleValue::Kind::kRecord)) {
      if (cell.form == PickleHeap::Form::kPlain) heap_.dicts_[cell.index] = {};
      cell.form = PickleHeap::Form::kFolded;
      cell.tag = record.tag();
      cell.index = record.index();
    } else if (!items.empty()) {
      if (cell.form == PickleHeap::Form::kEmpty) {
        cell.form = PickleHeap::Form::kPlain;
        cell.index = static_cast<std::uint32_t>(heap_.dicts_.size());
        heap_.dicts_.emplace_back();
      }
      auto& held = heap_.dicts_[cell.index];
      // Most dicts are filled once: no room for more.
      if (held.empty()) held.reserve(items.size() / 2);
      for (std::size_t i = 0; i < items.size(); i += 2) held.emplace_back(items[i], items[i + 1]);
    }
    height_ = first;
  }

  void append_items(std::size_t first) {
    PickleHeap::Cell& cell = container_below(first, PickleValue::Kind::kList, heap_.list_cells_);
    store(first);
    const std::span<const PickleValue> items = above(first);
    if (folder_ != nullptr && !items.empty() && cell.form != PickleHeap::Form::kPlain) {
      const PickleValue before = cell.form == PickleHeap::Form::kFolded
                                     ? PickleValue::record(cell.tag, cell.index)
                                     : PickleValue();
      const PickleValue record = folder_->fold_list(before, items);
      if (record.is(PickleValue::Kind::kRecord)) {
        cell.form = PickleHeap::Form::kFolded;
        cell.tag = record.tag();
        cell.index = record.index();
        height_ = first;
        return;
      }
      if (before.is(PickleValue::Kind::kRecord)) {
        const std::vector<PickleValue> earlier = folder_->unfold_list(before);
        make_plain(cell);
        append_plain(cell, earlier);
      }
    }
    if (!items.empty()) {
      if (cell.form != PickleHeap::Form::kPlain) make_plain(cell);
      append_plain(cell, items);
    }
    height_ = first;
  }

  void make_plain(PickleHeap::Cell& cell) {
    cell.form = PickleHeap::Form::kPlain;
    cell.index = static_cast<std::uint32_t>(heap_.lists_.size());
    heap_.lists_.emplace_back();
  }

  void append_plain(PickleHeap::Cell& cell, std::span<const PickleValue> items) {
    auto& runs = heap_.lists_[cell.index];
    for (const PickleValue item : items) {
      if (item.is(PickleValue::Kind::kRecord) && !runs.empty()) {
        PickleHeap::Run& last = runs.back();
        if (last.first.is_record(item.tag()) && last.count != 0xffffffffu &&
            std::uint64_t{last.first.index()} + last.count == item.index()) {
          ++last.count;
          continue;
        }
      }
      runs.push_back({item, 1});
    }
  }

  ByteSource& source_;
  PickleHeap& heap_;
  PickleFolder* folder_;
  std::unique_ptr<std::byte[]> buffer_;
  const std::byte* at_;
  std::byte* end_;
  std::uint64_t passed_ = 0;        // bytes before the buffer
  std::uint64_t instruction_ = 0;   // where the instruction in hand begins
  std::vector<PickleValue> stack_;  // the first height_ of them
  std::size_t height_ = 0;
  std::vector<std::size_t> marks_;
  std::vector<PickleValue> memo_;
  std::unordered_map<std::size_t, PickleValue> far_memo_;
};

bool is_packed(std::string_view head) { return way_to_unpack(head) != nullptr; }

bool is_pickle(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

PickleValue read_pickle(ByteSource& source, PickleHeap& heap, PickleFolder* folder) {
  return PickleMachine(source, heap, folder).run();
}

}  // namespace lowtide
