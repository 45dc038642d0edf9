// The page is src/report/snapshot_page.html with the data in place of one mark: a JSON object of
// names and totals, and the columns of allocations as one block of base64, which the page turns
// into typed arrays. Names come out of the file: they are written as JSON with "<" escaped, so that
// none can end the script element, and the page sets them as text only.
//
// Tested by tests/report/snapshot_page_test.cpp and, in a browser, by tests/report/page_test.py.

#include "src/report/snapshot_page.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/json.h"
#include "src/base/text.h"
#include "src/evidence/frame_origin.h"
#include "src/evidence/snapshot_analysis.h"
#include "src/report/snapshot_page_html.h"
#include "src/report/snapshot_report.h"
#include "src/report/what_if_table.h"

namespace lowtide {
namespace {

class Columns {
 public:
  template <typename Number>
  Json add(const std::vector<Number>& column) {
    bytes_.resize((bytes_.size() + 7) / 8 * 8);
    Json place = Json::object();
    place["type"] = type_name(Number{});
    place["at"] = bytes_.size();
    place["count"] = column.size();
    const std::size_t at = bytes_.size();
    bytes_.resize(at + column.size() * sizeof(Number));
    if (!column.empty())
      std::memcpy(bytes_.data() + at, column.data(), column.size() * sizeof(Number));
    return place;
  }

  std::string base64() const {
    constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes_.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes_.size(); i += 3) {
      const std::size_t left = std::min<std::size_t>(3, bytes_.size() - i);
      std::uint32_t group = 0;
      for (std::size_t k = 0; k < 3; ++k) {
        group = (group << 8) | (k < left ? static_cast<std::uint8_t>(bytes_[i + k]) : 0u);
      }
      for (std::size_t k = 0; k < 4; ++k) {
        out += k <= left ? kDigits[(group >> (18 - 6 * k)) & 63] : '=';
      }
    }
    return out;
  }

 private:
  static const char* type_name(double) { return "f64"; }
  static const char* type_name(std::uint32_t) { return "u32"; }
  static const char* type_name(std::uint8_t) { return "u8"; }

  std::vector<char> bytes_;
};

// Texts by number, each once.
class Names {
 public:
  std::uint32_t id(const std::string& name) {
    const auto [found, is_new] = ids_.try_emplace(name, static_cast<std::uint32_t>(all_.size()));
    if (is_new) all_.push_back(name);
    return found->second;
  }
  Json json() const {
    Json names = Json::array();
    for (const std::string& name : all_) names.push_back(name);
    return names;
  }

 private:
  std::unordered_map<std::string, std::uint32_t> ids_;
  std::vector<std::string> all_;
};

// Stacks as the flame view shows them, outermost first: Python and the user's own C++. What has
// none shows the function that asked.
Json stacks_json(const Snapshot& snapshot, const StackLines& lines, Columns& columns,
                 Names& names) {
  std::vector<std::uint32_t> name_of_frame(snapshot.frames.size());
  std::vector<bool> is_shown(snapshot.frames.size());
  for (std::uint32_t i = 0; i < snapshot.frames.size(); ++i) {
    const std::string_view file = snapshot.texts.view(snapshot.frames[i].file);
    const std::string_view function = snapshot.texts.view(snapshot.frames[i].function);
    is_shown[i] = is_python_file(file) || frame_origin(file, function) == FrameOrigin::kNativeUser;
    if (is_shown[i]) name_of_frame[i] = names.id(library_line_name(snapshot, i));
  }
  std::vector<std::uint32_t> ends{0};
  std::vector<std::uint32_t> shown;
  std::vector<std::uint32_t> user;
  for (StackId stack = 0; stack < snapshot.stack_count(); ++stack) {
    const auto frames = snapshot.frames_of(stack);
    const std::size_t before = shown.size();
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      if (is_shown[*frame]) shown.push_back(name_of_frame[*frame]);
    }
    if (shown.size() == before) {
      shown.push_back(names.id(library_line_name(snapshot, lines.library[stack])));
    }
    ends.push_back(static_cast<std::uint32_t>(shown.size()));
    user.push_back(names.id(line_name(snapshot, lines.user[stack])));
  }
  Json json = Json::object();
  json["ends"] = columns.add(ends);
  json["frames"] = columns.add(shown);
  json["line"] = columns.add(user);
  return json;
}

Json allocations_json(const Snapshot& snapshot, std::int64_t device, Columns& columns) {
  const std::vector<Allocation> allocations = allocations_of(snapshot, device);
  const std::vector<BlockKind> kinds = kinds_of(snapshot, device, allocations);
  std::vector<std::uint32_t> made, freed, stack;
  std::vector<double> size;
  std::vector<std::uint8_t> kind;
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    made.push_back(allocations[i].made);
    freed.push_back(allocations[i].freed);
    stack.push_back(allocations[i].stack);
    size.push_back(static_cast<double>(allocations[i].size));
    kind.push_back(static_cast<std::uint8_t>(kinds[i]));
  }
  Json json = Json::object();
  json["made"] = columns.add(made);
  json["freed"] = columns.add(freed);
  json["stack"] = columns.add(stack);
  json["size"] = columns.add(size);
  json["kind"] = columns.add(kind);
  return json;
}

Json segments_json(const Snapshot& snapshot, std::int64_t device, Columns& columns) {
  std::vector<double> sizes;
  std::vector<std::uint32_t> counts;
  std::vector<std::uint8_t> flags;  // 1 small, 2 expandable, 4 private
  std::vector<double> block_sizes;
  std::vector<double> offsets;
  std::vector<std::uint32_t> stacks;
  std::vector<std::uint8_t> states;
  Json addresses = Json::array();
  for (const SnapshotSegment& segment : snapshot.segments) {
    if (segment.device != device) continue;
    sizes.push_back(static_cast<double>(segment.size));
    counts.push_back(segment.block_count);
    flags.push_back(static_cast<std::uint8_t>((segment.is_small ? 1 : 0) |
                                              (segment.is_expandable ? 2 : 0) |
                                              (segment.lane.is_private() ? 4 : 0)));
    char address[24];
    std::snprintf(address, sizeof address, "0x%llx",
                  static_cast<unsigned long long>(segment.address));
    addresses.push_back(address);
    for (const SnapshotBlock& block : snapshot.blocks_of(segment)) {
      block_sizes.push_back(static_cast<double>(block.size));
      offsets.push_back(static_cast<double>(block.address - segment.address));
      stacks.push_back(block.stack);
      states.push_back(static_cast<std::uint8_t>(block.state));
    }
  }
  Json json = Json::object();
  json["addresses"] = std::move(addresses);
  json["size"] = columns.add(sizes);
  json["count"] = columns.add(counts);
  json["flags"] = columns.add(flags);
  json["blockSize"] = columns.add(block_sizes);
  json["blockOffset"] = columns.add(offsets);
  json["blockStack"] = columns.add(stacks);
  json["blockState"] = columns.add(states);
  return json;
}

// When each event was, from the first one on, in whole units so that 32 bits are enough. A clock
// that was set back stands still meanwhile. Empty where times were not recorded.
Json times_json(const Snapshot& snapshot, std::int64_t device, Columns& columns) {
  std::vector<std::uint32_t> times;
  Json json = Json::object();
  std::int64_t start = 0;
  std::int64_t unit_us = 1;
  if (const DeviceTrace* trace = snapshot.trace_of(device)) {
    const auto first = snapshot.events.time_us.begin() + trace->first;
    start = trace->count > 0 ? *first : 0;
    const std::int64_t last = *std::max_element(first, first + trace->count);
    if (start > 0 && last > start) {
      while ((last - start) / unit_us >= std::int64_t{0xffffffff}) unit_us *= 10;
      std::int64_t now = start;
      for (std::uint32_t i = 0; i < trace->count; ++i) {
        now = std::max(now, first[i]);
        times.push_back(static_cast<std::uint32_t>((now - start) / unit_us));
      }
    }
  }
  json["start_us"] = start;
  json["unit_us"] = unit_us;
  json["at"] = columns.add(times);
  return json;
}

// What was reserved, at each event that changed it; the first entry is the start. From the end
// back.
Json reserved_json(const Snapshot& snapshot, const DeviceAnalysis& analysis, Columns& columns) {
  std::vector<std::uint32_t> events;
  std::vector<double> bytes;
  Bytes now = analysis.reserved;
  if (const DeviceTrace* trace = snapshot.trace_of(analysis.device)) {
    for (std::uint32_t i = trace->count; i-- > 0;) {
      const EventAction action = snapshot.events.action[trace->first + i];
      const Bytes size = snapshot.events.size[trace->first + i];
      const bool grows = action == EventAction::kSegmentAlloc || action == EventAction::kSegmentMap;
      if (!grows && action != EventAction::kSegmentFree && action != EventAction::kSegmentUnmap) {
        continue;
      }
      events.push_back(i);
      bytes.push_back(static_cast<double>(now));
      now = grows ? now - std::min(now, size) : now + size;
    }
  }
  events.push_back(0);
  bytes.push_back(static_cast<double>(now));
  std::reverse(events.begin(), events.end());
  std::reverse(bytes.begin(), bytes.end());
  Json json = Json::object();
  json["event"] = columns.add(events);
  json["bytes"] = columns.add(bytes);
  return json;
}

void append_escaped(std::string& out, const std::string& json) {
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
}

}  // namespace

std::string snapshot_page(const Snapshot& snapshot) {
  const SnapshotAnalysis analysis = analyse(snapshot);
  const StackLines lines = lines_of_stacks(snapshot);
  Columns columns;
  Names names;
  Json data = Json::object();
  const Json whole = snapshot_json(snapshot, analysis);
  data["file"] = snapshot.name;
  data["settings"] = snapshot.settings.configuration;
  data["kinds"] = Json::array();
  for (std::size_t i = 0; i < kBlockKinds; ++i) {
    data["kinds"].push_back(kind_name(static_cast<BlockKind>(i)));
  }
  data["stacks"] = stacks_json(snapshot, lines, columns, names);
  data["budget"] = snapshot.is_budget;
  data["refusal"] = snapshot.refusal;
  data["where"] = Json::array();
  data["devices"] = Json::array();
  for (std::size_t i = 0; i < analysis.devices.size(); ++i) {
    const std::int64_t device = analysis.devices[i].device;
    data["where"].push_back(snapshot.device_name(device));
    Json row = Json::object();
    row["totals"] = whole.at("devices").as_array()[i];
    row["allocations"] = allocations_json(snapshot, device, columns);
    row["segments"] = segments_json(snapshot, device, columns);
    row["times"] = times_json(snapshot, device, columns);
    row["reserved"] = reserved_json(snapshot, analysis.devices[i], columns);
    row["whatIf"] = what_if_table(snapshot, analysis.devices[i]);
    data["devices"].push_back(std::move(row));
  }
  data["names"] = names.json();

  const std::string_view html = kSnapshotPageHtml;
  constexpr std::string_view kMark = "/*DATA*/";
  const std::size_t at = html.find(kMark);
  std::string page(html.substr(0, at));
  page += "const DATA = ";
  append_escaped(page, to_text(data));
  page += ";\nconst COLUMNS = \"";
  page += columns.base64();
  page += "\";\n";
  page += html.substr(at + kMark.size());
  return page;
}

}  // namespace lowtide
