// Format: docs/formats/tape.md. Tested by tests/tape/tape_bytes_test.cpp.

#include "src/tape/tape_bytes.h"

#include <array>

#include "src/base/byte_codec.h"
#include "src/base/file.h"
#include "src/tape/tape_text.h"

namespace lowtide {
namespace {

constexpr std::string_view kMagic = "lt-tape\n";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kEventKinds = 16;  // room for more than there are

// kNoName is written as 0, others one up.
std::uint64_t optional_name(std::uint32_t name) {
  return name == TapeOp::kNoName ? 0 : std::uint64_t{name} + 1;
}

}  // namespace

std::string to_tape_bytes(const Tape& tape) {
  ByteWriter out;
  out.raw(kMagic);
  out.number(kVersion);
  out.number(tape.batch_size);
  out.number(tape.names.size());
  for (const std::string& name : tape.names) out.text(name);
  out.number(tape.storages.size());
  for (const TapeStorage& storage : tape.storages) {
    out.byte(static_cast<std::uint8_t>(storage.kind));
    out.number(storage.bytes);
  }
  out.number(tape.saved.size());
  for (const TapeSaved& saved : tape.saved) out.number(saved.storage.index());
  out.number(tape.ops.size());
  std::int64_t last = 0;
  const auto ids = [&](std::span<const StorageId> list) {
    out.number(list.size());
    for (const StorageId id : list) {
      out.difference(static_cast<std::int64_t>(id.index()) - last);
      last = id.index();
    }
  };
  for (std::uint32_t i = 0; i < tape.ops.size(); ++i) {
    const TapeOp& op = tape.ops[i];
    out.number(op.name);
    out.byte(op.flags);
    out.number(op.cost_ns);
    out.number(op.working_bytes);
    out.number(optional_name(op.module));
    out.number(optional_name(op.source));
    ids(tape.reads(OpId{i}));
    ids(tape.writes(OpId{i}));
  }
  out.number(tape.events.size());
  std::array<std::int64_t, kEventKinds> expected{};
  for (const TapeEvent& event : tape.events) {
    const auto kind = static_cast<std::uint8_t>(event.kind);
    out.byte(kind);
    out.difference(static_cast<std::int64_t>(event.index) - expected[kind]);
    expected[kind] = std::int64_t{event.index} + 1;
  }
  return out.finish();
}

Tape parse_tape_bytes(std::string_view bytes, const char* what) {
  ByteReader in(bytes, "LT0142", what);
  in.header(kMagic, kVersion);
  Tape tape;
  tape.batch_size = in.number();
  tape.names.resize(in.count(1, "names"));
  for (std::string& name : tape.names) name = in.text();
  tape.storages.resize(in.count(2, "storages"));
  for (TapeStorage& storage : tape.storages) {
    const std::uint8_t kind = in.byte();
    if (kind > static_cast<std::uint8_t>(StorageKind::kWorkspace)) {
      in.fail("there is no storage kind ", static_cast<int>(kind));
    }
    storage.kind = static_cast<StorageKind>(kind);
    storage.bytes = in.number();
  }
  tape.saved.resize(in.count(1, "saved tensors"));
  for (TapeSaved& saved : tape.saved) {
    saved.storage = StorageId{
        static_cast<std::uint32_t>(in.number_below(tape.storages.size(), "a saved storage"))};
  }
  tape.ops.resize(in.count(8, "ops"));
  std::int64_t last = 0;
  const auto ids = [&](std::vector<StorageId>& list, std::uint32_t& first, std::uint32_t& count) {
    first = static_cast<std::uint32_t>(list.size());
    count = static_cast<std::uint32_t>(in.count(1, "inputs or outputs"));
    for (std::uint32_t k = 0; k < count; ++k) {
      const std::int64_t step = in.difference();
      const auto most = static_cast<std::int64_t>(tape.storages.size());
      if (step < -last || step >= most - last) in.fail("an op names no storage");
      last += step;
      list.push_back(StorageId{static_cast<std::uint32_t>(last)});
    }
  };
  const auto optional_name = [&](std::string_view kind) {
    const std::uint64_t name = in.number_below(tape.names.size() + std::uint64_t{1}, kind);
    return name == 0 ? TapeOp::kNoName : static_cast<std::uint32_t>(name - 1);
  };
  for (TapeOp& op : tape.ops) {
    op.name = static_cast<std::uint32_t>(in.number_below(tape.names.size(), "a name"));
    op.flags = in.byte();
    op.cost_ns = in.number();
    op.working_bytes = in.number();
    op.module = optional_name("a module");
    op.source = optional_name("a source");
    ids(tape.read_ids, op.first_read, op.read_count);
    ids(tape.write_ids, op.first_write, op.write_count);
  }
  tape.events.resize(in.count(2, "events"));
  std::array<std::int64_t, kEventKinds> expected{};
  for (TapeEvent& event : tape.events) {
    const std::uint8_t kind = in.byte();
    if (kind > static_cast<std::uint8_t>(TapeEvent::Kind::kMark)) {
      in.fail("there is no event kind ", static_cast<int>(kind));
    }
    const std::int64_t step = in.difference();
    constexpr std::int64_t kMost = StorageId::kNone;
    if (step < -expected[kind] || step >= kMost - expected[kind]) in.fail("an event has no index");
    event.kind = static_cast<TapeEvent::Kind>(kind);
    event.index = static_cast<std::uint32_t>(expected[kind] + step);
    expected[kind] = std::int64_t{event.index} + 1;
  }
  in.finish();
  check_tape(tape);
  return tape;
}

void write_tape(const std::string& path, const Tape& tape) {
  write_file(path, to_tape_bytes(tape));
}

Tape read_tape(const std::string& path) {
  const std::string bytes = read_file(path);
  constexpr std::string_view kText = "lowtide-tape";
  if (bytes.compare(0, kText.size(), kText) == 0) return parse_tape_text(bytes);
  return parse_tape_bytes(bytes, path.c_str());
}

}  // namespace lowtide
