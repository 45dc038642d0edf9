#include "src/report/snapshot_report.h"

#include <algorithm>
#include <map>

#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr std::size_t kRowsForPeople = 8;

Json device_json(const DeviceAnalysis& device) {
  Json row = Json::object();
  row["device"] = device.device;
  row["peak"] = Json::object();
  row["peak"]["event"] = device.peak.event;
  row["peak"]["bytes"] = device.peak.bytes;
  row["peak"]["allocations"] = device.peak.allocations;
  row["live_at_start"] = device.live_at_start;
  row["live_at_end"] = device.live_at_end;
  row["reserved"] = device.reserved;
  row["allocated"] = device.allocated;
  row["requested"] = device.requested;
  row["pending_free"] = device.pending_free;
  row["segments"] = device.segments;
  row["expandable_segments"] = device.expandable_segments;
  row["blocks"] = device.blocks;
  row["streams"] = device.streams;
  row["events"] = Json::object();
  row["events"]["total"] = device.event_count;
  for (std::size_t i = 0; i < kEventActions; ++i) {
    if (device.events[i] == 0) continue;
    row["events"][action_name(static_cast<EventAction>(i))] = device.events[i];
  }
  row["time_span_us"] = device.time_span_us;
  row["sites"] = lines_json(device.sites, "site");
  row["user_lines"] = lines_json(device.user_lines, "line");
  row["library_lines"] = lines_json(device.library_lines, "line");
  row["lines_at_end"] = lines_json(device.end_lines, "line");
  row["kinds"] = kinds_json(device.kinds);
  Json& fragmentation = row["fragmentation"] = Json::object();
  fragmentation["free_in_whole_segments"] = device.fragmentation.free_in_whole_segments;
  fragmentation["free_in_partly_used_segments"] = device.fragmentation.free_in_partly_used;
  fragmentation["slack"] = device.fragmentation.slack;
  fragmentation["largest_free_block"] = device.fragmentation.largest_free;
  fragmentation["empty_cache_gives"] = device.fragmentation.empty_cache_gives;
  fragmentation["pinned_by"] = lines_json(device.fragmentation.pinned_by, "line");
  Json& growth = row["growth"] = Json::object();
  growth["steps_from"] = device.growth.steps_from;
  growth["steps"] = Json::array();
  for (std::size_t i = 0; i < device.growth.steps.size(); ++i) {
    Json step = Json::object();
    step["event"] = device.growth.steps[i];
    step["live"] = device.growth.live[i];
    growth["steps"].push_back(std::move(step));
  }
  growth["lines"] = lines_json(device.growth.lines, "line");
  row["out_of_memory"] = Json::array();
  for (const OutOfMemoryEvent& failure : device.out_of_memory) {
    Json at = Json::object();
    at["event"] = failure.event;
    at["requested"] = failure.requested;
    at["device_free"] = failure.device_free;
    at["line"] = failure.line;
    at["live"] = failure.live;
    at["reserved"] = failure.reserved;
    row["out_of_memory"].push_back(std::move(at));
  }
  row["timeline"] = Json::array();
  for (const TimePoint& point : device.timeline) {
    Json at = Json::object();
    at["event"] = point.event;
    at["time_us"] = point.time_us;
    at["live"] = point.live;
    row["timeline"].push_back(std::move(at));
  }
  row["notes"] = Json::array();
  for (const std::string& note : device.notes) row["notes"].push_back(note);
  return row;
}

std::string percent(Bytes part, Bytes whole) {
  if (whole == 0) return "";
  const double share = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  char text[16];
  std::snprintf(text, sizeof text, "%5.1f %%", share);
  return text;
}

std::string right(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

// The first rows, and one for the others, so that the shares add up.
void append_lines(std::string& out, const std::vector<LineTotal>& lines, Bytes whole) {
  Bytes others = 0;
  std::uint64_t other_count = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i >= kRowsForPeople) {
      others += lines[i].bytes;
      other_count += lines[i].allocations;
      continue;
    }
    out +=
        concat("    ", right(format_bytes(lines[i].bytes), 9), "  ", percent(lines[i].bytes, whole),
               "  ", lines[i].line, "  (", lines[i].allocations, ")\n");
  }
  if (lines.size() > kRowsForPeople) {
    out += concat("    ", right(format_bytes(others), 9), "  ", percent(others, whole), "  [",
                  lines.size() - kRowsForPeople, " other lines]  (", other_count, ")\n");
  }
}

std::string sparkline(const std::vector<TimePoint>& points) {
  constexpr std::size_t kColumns = 64;
  static const char* const kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  Bytes most = 0;
  for (const TimePoint& point : points) most = std::max(most, point.live);
  if (points.empty() || most == 0) return "";
  std::string out;
  const std::size_t columns = std::min(kColumns, points.size());
  for (std::size_t column = 0; column < columns; ++column) {
    Bytes highest = 0;
    for (std::size_t i = column * points.size() / columns;
         i < (column + 1) * points.size() / columns; ++i) {
      highest = std::max(highest, points[i].live);
    }
    const double share = static_cast<double>(highest) / static_cast<double>(most);
    out += kBars[static_cast<std::size_t>(share * 7.0 + 0.5)];
  }
  return out;
}

void append_device(std::string& out, const Snapshot& snapshot, const DeviceAnalysis& device) {
  const Fragmentation& fragmentation = device.fragmentation;
  std::string where = snapshot.device_name(device.device);
  where[0] = static_cast<char>(where[0] - 'a' + 'A');
  out += concat("\n", where, ": ");
  if (snapshot.is_budget) {
    out += concat(format_bytes(device.allocated), " of tensors\n");
  } else {
    out += concat(format_bytes(device.reserved), " reserved in ", device.segments, " segments, ",
                  format_bytes(device.allocated), " in blocks in use, ",
                  format_bytes(device.requested), " asked for\n");
  }
  if (device.pending_free > 0) {
    out +=
        concat("  ", format_bytes(device.pending_free), " freed, but waiting for another stream\n");
  }
  if (device.event_count > 0) {
    out += concat("  trace: ", device.event_count, " events");
    if (device.time_span_us > 0) {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, " over %.3f s",
                    static_cast<double>(device.time_span_us) / 1e6);
      out += seconds;
    }
    out += concat("; live ", format_bytes(device.live_at_start), " at its start, ",
                  format_bytes(device.live_at_end), " at its end\n");
    out += concat("  ", sparkline(device.timeline), "\n");
  } else {
    out += "  no trace: record one with torch.cuda.memory._record_memory_history()\n";
  }
  for (const OutOfMemoryEvent& failure : device.out_of_memory) {
    out += concat("  out of memory at event ", failure.event, ": ", format_bytes(failure.requested),
                  " asked for at ", failure.line, ", ", format_bytes(failure.device_free),
                  snapshot.is_budget ? " left of the budget" : " free on the device", "\n    ",
                  format_bytes(failure.live), " live");
    if (!snapshot.is_budget) out += concat(" in ", format_bytes(failure.reserved), " reserved");
    out += "\n";
  }
  const std::string when =
      device.peak.event >= 0
          ? concat("at event ", device.peak.event)
          : std::string(device.event_count > 0 ? "when the trace begins" : "now");
  out += concat("\n  Peak: ", format_bytes(device.peak.bytes), " live ", when, ", in ",
                device.peak.allocations, " blocks\n  by line of yours\n");
  append_lines(out, device.user_lines, device.peak.bytes);
  out += "  by line, libraries too\n";
  append_lines(out, device.library_lines, device.peak.bytes);
  out += "  by kind\n";
  for (std::size_t i = 0; i < kBlockKinds; ++i) {
    const KindTotal& kind = device.kinds[i];
    if (kind.bytes == 0) continue;
    out += concat("    ", right(format_bytes(kind.bytes), 9), "  ",
                  percent(kind.bytes, device.peak.bytes), "  ",
                  kind_name(static_cast<BlockKind>(i)), "  (", kind.allocations, ")\n");
  }
  if (!snapshot.is_budget) {
    out += concat(
        "\n  Free at the end: ",
        format_bytes(fragmentation.free_in_whole_segments + fragmentation.free_in_partly_used),
        ", the largest piece ", format_bytes(fragmentation.largest_free), "\n    ",
        right(format_bytes(fragmentation.free_in_whole_segments), 9),
        "  in segments that are all free\n    ",
        right(format_bytes(fragmentation.free_in_partly_used), 9),
        "  in segments that something keeps\n    ",
        right(format_bytes(fragmentation.empty_cache_gives), 9),
        "  is what torch.cuda.empty_cache() would give back\n");
  }
  if (!fragmentation.pinned_by.empty()) {
    out += "  kept by\n";
    append_lines(out, fragmentation.pinned_by, fragmentation.free_in_partly_used);
  }
  const Growth& growth = device.growth;
  if (growth.steps.size() >= 2) {
    const auto change = static_cast<std::int64_t>(growth.live.back() - growth.live.front());
    out += concat("\n  Between the first and last of ", growth.steps.size(), " steps (by ",
                  growth.steps_from, "): ", change < 0 ? "-" : "+",
                  format_bytes(static_cast<Bytes>(change < 0 ? -change : change)), "\n");
    if (!growth.lines.empty()) {
      out += "  lines that grow\n";
      Bytes whole = 0;
      for (const LineTotal& line : growth.lines) whole += line.bytes;
      append_lines(out, growth.lines, whole);
    }
  }
  for (const std::string& note : device.notes) out += concat("  note: ", note, "\n");
}

using LinesOf = const std::vector<LineTotal>& (*)(const DeviceAnalysis&);
const std::vector<LineTotal>& peak_lines(const DeviceAnalysis& device) { return device.user_lines; }
const std::vector<LineTotal>& end_lines(const DeviceAnalysis& device) { return device.end_lines; }

std::map<std::string, Bytes> lines_of(const SnapshotAnalysis& analysis, LinesOf of_device) {
  std::map<std::string, Bytes> lines;
  for (const DeviceAnalysis& device : analysis.devices) {
    for (const LineTotal& line : of_device(device)) lines[line.line] += line.bytes;
  }
  return lines;
}

struct LineChange {
  std::string line;
  Bytes before = 0;
  Bytes after = 0;
  std::int64_t change() const { return static_cast<std::int64_t>(after - before); }
};

std::vector<LineChange> line_changes(const SnapshotAnalysis& before, const SnapshotAnalysis& after,
                                     LinesOf of_device) {
  std::map<std::string, LineChange> changes;
  for (const auto& [line, bytes] : lines_of(before, of_device)) changes[line].before = bytes;
  for (const auto& [line, bytes] : lines_of(after, of_device)) changes[line].after = bytes;
  std::vector<LineChange> ranked;
  for (auto& [line, change] : changes) {
    change.line = line;
    if (change.change() != 0) ranked.push_back(change);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const LineChange& a, const LineChange& b) {
    return std::abs(a.change()) > std::abs(b.change());
  });
  return ranked;
}

Bytes sum_of(const SnapshotAnalysis& analysis, Bytes (*of_device)(const DeviceAnalysis&)) {
  Bytes sum = 0;
  for (const DeviceAnalysis& device : analysis.devices) sum += of_device(device);
  return sum;
}

Bytes peak_of(const DeviceAnalysis& device) { return device.peak.bytes; }
Bytes end_of(const DeviceAnalysis& device) { return device.live_at_end; }
Bytes reserved_of(const DeviceAnalysis& device) { return device.reserved; }

std::string signed_bytes(std::int64_t bytes) {
  return concat(bytes < 0 ? "-" : "+",
                format_bytes(static_cast<Bytes>(bytes < 0 ? -bytes : bytes)));
}

}  // namespace

Json lines_json(const std::vector<LineTotal>& lines, const char* name) {
  Json rows = Json::array();
  for (const LineTotal& line : lines) {
    Json row = Json::object();
    row[name] = line.line;
    row["bytes"] = line.bytes;
    row["allocations"] = line.allocations;
    rows.push_back(std::move(row));
  }
  return rows;
}

Json kinds_json(const std::array<KindTotal, kBlockKinds>& kinds) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < kBlockKinds; ++i) {
    Json row = Json::object();
    row["kind"] = kind_name(static_cast<BlockKind>(i));
    row["bytes"] = kinds[i].bytes;
    row["allocations"] = kinds[i].allocations;
    rows.push_back(std::move(row));
  }
  return rows;
}

Json snapshot_json(const Snapshot& snapshot, const SnapshotAnalysis& analysis) {
  Json report = Json::object();
  report["file"] = snapshot.name;
  report["reserved"] = analysis.reserved;
  report["allocated"] = analysis.allocated;
  report["requested"] = analysis.requested;
  report["annotations"] = snapshot.annotations.size();
  report["allocator_settings"] = snapshot.settings.configuration;
  report["devices"] = Json::array();
  for (const DeviceAnalysis& device : analysis.devices) {
    report["devices"].push_back(device_json(device));
  }
  return report;
}

std::string snapshot_text(const Snapshot& snapshot, const SnapshotAnalysis& analysis) {
  std::string out = concat(snapshot.name, ": ", analysis.devices.size(),
                           analysis.devices.size() == 1 ? " device, " : " devices, ",
                           format_bytes(analysis.reserved), " reserved, ",
                           format_bytes(analysis.allocated), " in use\n");
  if (!snapshot.settings.configuration.empty()) {
    out += concat("allocator settings: ", snapshot.settings.configuration, "\n");
  }
  for (const DeviceAnalysis& device : analysis.devices) append_device(out, snapshot, device);
  out += snapshot.is_budget ? concat("\nNext: lowtide explain ", snapshot.name,
                                     ", or lowtide report ", snapshot.name, " -o report.html\n")
                            : concat("\nNext: lowtide replay ", snapshot.name,
                                     " --smallest-capacity, or lowtide report ", snapshot.name,
                                     " -o report.html\n");
  return out;
}

Json difference_json(const SnapshotAnalysis& before, const SnapshotAnalysis& after) {
  Json report = Json::object();
  const auto add = [&](const char* name, Bytes (*of_device)(const DeviceAnalysis&)) {
    Json row = Json::object();
    row["before"] = sum_of(before, of_device);
    row["after"] = sum_of(after, of_device);
    report[name] = std::move(row);
  };
  add("reserved", reserved_of);
  add("peak", peak_of);
  add("live_at_end", end_of);
  const auto add_lines = [&](const char* name, LinesOf of_device) {
    report[name] = Json::array();
    for (const LineChange& change : line_changes(before, after, of_device)) {
      Json row = Json::object();
      row["line"] = change.line;
      row["before"] = change.before;
      row["after"] = change.after;
      row["change"] = change.change();
      report[name].push_back(std::move(row));
    }
  };
  add_lines("lines", peak_lines);
  add_lines("lines_at_end", end_lines);
  return report;
}

std::string difference_text(const SnapshotAnalysis& before, const SnapshotAnalysis& after) {
  std::string out = "              before      after     change\n";
  const auto add = [&](const char* name, Bytes (*of_device)(const DeviceAnalysis&)) {
    const Bytes a = sum_of(before, of_device);
    const Bytes b = sum_of(after, of_device);
    std::string left = name;
    left.resize(10, ' ');
    out += concat(left, right(format_bytes(a), 10), " ", right(format_bytes(b), 10), " ",
                  right(signed_bytes(static_cast<std::int64_t>(b - a)), 10), "\n");
  };
  add("reserved", reserved_of);
  add("peak", peak_of);
  add("at the end", end_of);
  const auto add_lines = [&](const char* title, LinesOf of_device) {
    const std::vector<LineChange> changes = line_changes(before, after, of_device);
    out += title;
    std::int64_t others = 0;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      if (i >= 2 * kRowsForPeople) {
        others += changes[i].change();
        continue;
      }
      out +=
          concat("  ", right(signed_bytes(changes[i].change()), 10), "  ", changes[i].line, "\n");
    }
    if (changes.size() > 2 * kRowsForPeople) {
      out += concat("  ", right(signed_bytes(others), 10), "  [",
                    changes.size() - 2 * kRowsForPeople, " other lines]\n");
    }
    if (changes.empty()) out += "  none\n";
  };
  add_lines("\nLines at the peak that changed\n", peak_lines);
  add_lines("\nLines at the end that changed\n", end_lines);
  return out;
}

std::vector<ReplayOfDevice> replay_snapshot(const Snapshot& snapshot,
                                            const ReplayRequest& request) {
  std::vector<ReplayOfDevice> all;
  for (const std::int64_t device : snapshot.devices()) {
    const DeviceReplay replay(snapshot, device);
    AllocatorSettings settings = replay.settings();
    for (const std::string& setting : request.settings) apply_setting(settings, setting);
    ReplayOfDevice& result = all.emplace_back();
    result.device = device;
    result.unsupported = replay.problems();
    if (!replay.has_trace()) {
      result.unsupported.push_back(concat("device ", device, ": no trace was recorded"));
    }
    result.recorded = replay.as_recorded();
    if (request.changes_anything()) {
      WhatIf change;
      if (request.capacity) change.capacity = *request.capacity;
      if (!request.settings.empty()) change.settings = settings;
      change.empty_cache_before = request.empty_cache_before;
      change.largest_first = request.largest_first;
      result.changed = replay.what_if(change);
    }
    if (request.smallest_capacity) result.smallest_capacity = replay.smallest_capacity(settings);
    if (result.recorded.first_difference) {
      result.unsupported.push_back(concat("device ", device,
                                          ": the model and the recording part at event ",
                                          *result.recorded.first_difference));
    }
  }
  return all;
}

Json replay_json(const Snapshot& snapshot, const std::vector<ReplayOfDevice>& replays) {
  std::uint64_t allocations = 0;
  std::uint64_t matched = 0;
  bool identical = true;
  bool completes = true;
  bool has_smallest = false;
  Bytes smallest = 0;
  Bytes reserved = 0;
  Json unsupported = Json::array();
  Json devices = Json::array();
  for (const ReplayOfDevice& replay : replays) {
    allocations += replay.recorded.allocations;
    matched += replay.recorded.addresses_matched;
    identical = identical && replay.recorded.layout_identical;
    const Bytes peak =
        replay.changed ? replay.changed->peak_reserved : replay.recorded.peak_reserved;
    reserved += peak;
    for (const std::string& reason : replay.unsupported) unsupported.push_back(reason);
    Json row = Json::object();
    row["device"] = replay.device;
    row["allocations"] = replay.recorded.allocations;
    row["addresses_matched"] = replay.recorded.addresses_matched;
    row["layout_identical"] = replay.recorded.layout_identical;
    row["peak_reserved_bytes"] = peak;
    if (replay.changed) {
      completes = completes && replay.changed->completes;
      row["completes"] = replay.changed->completes;
      row["peak_allocated_bytes"] = replay.changed->peak_allocated;
      row["retries"] = replay.changed->retries;
      if (!replay.changed->completes) {
        row["failed_event"] = replay.changed->failed_event;
        row["failed_request_bytes"] = replay.changed->failed_request;
      }
    }
    if (replay.smallest_capacity) {
      has_smallest = true;
      smallest += *replay.smallest_capacity;
      row["smallest_capacity_bytes"] = *replay.smallest_capacity;
    }
    devices.push_back(std::move(row));
  }
  Json report = Json::object();
  report["file"] = snapshot.name;
  report["allocations"] = allocations;
  report["addresses_matched"] = matched;
  report["layout_identical"] = identical;
  report["completes"] = completes;
  report["smallest_capacity_bytes"] = has_smallest ? Json(smallest) : Json();
  report["peak_reserved_bytes"] = reserved;
  report["unsupported"] = std::move(unsupported);
  report["devices"] = std::move(devices);
  return report;
}

std::string replay_text(const Snapshot& snapshot, const ReplayRequest& request,
                        const std::vector<ReplayOfDevice>& replays) {
  std::string out;
  for (const ReplayOfDevice& replay : replays) {
    out += concat("Device ", replay.device, "\n");
    const RecordedReplay& recorded = replay.recorded;
    if (recorded.allocations > 0) {
      out += concat("  as recorded: ", recorded.addresses_matched, " of ", recorded.allocations,
                    " allocations at the recorded address, the final layout ",
                    recorded.layout_identical ? "identical" : "different", "\n");
    }
    if (recorded.peak_reserved > 0) {
      out += concat("  reserved at most: ", format_bytes(recorded.peak_reserved), " (",
                    recorded.peak_reserved, " bytes)\n");
    }
    for (const std::string& reason : replay.unsupported) {
      out += concat("  not exact: ", reason, "\n");
    }
    if (replay.changed) {
      const WhatIfResult& changed = *replay.changed;
      std::string what;
      if (request.capacity) what += concat(" on a card of ", format_bytes(*request.capacity));
      for (const std::string& setting : request.settings) what += concat(" with ", setting);
      if (request.empty_cache_before) {
        what += concat(" with empty_cache before event ", *request.empty_cache_before);
      }
      if (request.largest_first) what += " with the peak's sizes requested first";
      if (changed.completes) {
        out += concat(" ", what, ": completes, reserving at most ",
                      format_bytes(changed.peak_reserved), " (", changed.peak_reserved, " bytes)");
      } else {
        out += concat(" ", what, ": out of memory at event ", changed.failed_event, ", asking for ",
                      format_bytes(changed.failed_request));
      }
      if (changed.retries > 0)
        out += concat(", after giving cached memory back ", changed.retries,
                      changed.retries == 1 ? " time" : " times");
      out += "\n";
    }
    if (replay.smallest_capacity) {
      out += concat("  completes from ", format_bytes(*replay.smallest_capacity), " (",
                    *replay.smallest_capacity, " bytes) of device memory\n");
    }
  }
  if (!request.smallest_capacity) {
    out += concat("Next: lowtide replay ", snapshot.name, " --smallest-capacity\n");
  }
  return out;
}

}  // namespace lowtide
