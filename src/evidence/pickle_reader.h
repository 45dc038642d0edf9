#pragma once
// Reads a pickle without running anything in it.
//
//   MyFolder folder(heap);                              // may be nullptr: plain containers only
//   PickleValue root = read_pickle(source, heap, &folder);
//
// Pickle is a program for a stack machine, and Python's own loader calls whatever the program
// names. This one knows the instructions that build data (None, booleans, integers up to 64 bits,
// floats, texts, tuples, lists, dicts) in protocols 2 to 5, as Python writes them and as libtorch's
// pickler does, and refuses every other by name and offset.
//
// Bounded: memory is in proportion to the bytes read (a length in the file is believed only as far
// as bytes follow), time is linear, and nothing recurses.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/evidence/pickle_value.h"

namespace lowtide {

// Where the bytes come from: a file, or memory for tests. Not copied.
class ByteSource {
 public:
  // Throws IoError (LT0710) when the file cannot be opened or read.
  explicit ByteSource(const std::string& path);
  ByteSource(std::string name, std::span<const std::byte> bytes);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& name() const { return name_; }
  // How many bytes there are in all; nothing when that can't be known (a pipe).
  std::optional<std::uint64_t> size() const { return size_; }
  // Copies up to `room` bytes; 0 at the end.
  std::size_t read(std::byte* out, std::size_t room);

 private:
  std::string name_;
  int file_ = -1;
  std::span<const std::byte> memory_;
  std::optional<std::uint64_t> size_;
};

// Takes containers out of the pickle as soon as they are filled, so that a million dicts become
// rows of a table and are never held as dicts.
class PickleFolder {
 public:
  virtual ~PickleFolder() = default;
  // `items` (key, value, key, value ..) were put into a dict that is `record` so far, or kNone when
  // it was not folded yet (then `items` are all there are). Returns the record, or kNone to keep it
  // as a dict.
  virtual PickleValue fold_dict(PickleValue record, std::span<const PickleValue> items) = 0;
  // The same for elements appended to a list. A list that was folded and can't take `items` any
  // more is turned back by unfold_list.
  virtual PickleValue fold_list(PickleValue record, std::span<const PickleValue> items) = 0;
  virtual std::vector<PickleValue> unfold_list(PickleValue record) = 0;
  // What has been read so far, for messages about damaged files: "12 segments, 340 events".
  virtual std::string progress() const = 0;
};

// Whether a file that begins with `head` is a pickle of protocol 2 to 5; two bytes are enough.
bool is_pickle(std::string_view head);

// Whether it begins as an archive or a compressed file, which read_pickle refuses with the way to
// unpack it; four bytes are enough.
bool is_packed(std::string_view head);

// Returns the value that the pickle builds. Throws FormatError: LT0711 for an instruction that does
// not build data, LT0712 for a damaged or cut file (with the offset and what was good), LT0713 when
// it is no pickle of protocol 2 to 5 at all, LT0714 for what is beyond the limits above.
PickleValue read_pickle(ByteSource& source, PickleHeap& heap, PickleFolder* folder);

}  // namespace lowtide
