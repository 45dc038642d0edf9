#include "src/report/explanation.h"

#include "lowtide/bytes.h"
#include "src/base/text.h"
#include "src/diagnose/error_catalogue.h"
#include "src/report/snapshot_report.h"
#include "src/report/what_if_table.h"

namespace lowtide {
namespace {

constexpr std::size_t kColumns = 100;

Json bytes_or_null(const std::optional<PrintedBytes>& printed) {
  return printed ? Json(printed->bytes) : Json();
}

template <typename Number>
Json number_or_null(const std::optional<Number>& number) {
  return number ? Json(*number) : Json();
}

Json message_json(const Sighting& sighting, const LogEvidence& log) {
  const MemoryMessage& m = sighting.message;
  Json out = Json::object();
  out["source"] = log.source;
  out["line"] = sighting.first_line;
  out["lane"] = sighting.lane.empty() ? Json() : Json(sighting.lane);
  out["count"] = sighting.count;
  out["family"] = family_name(m.family);
  out["backend"] = m.backend.empty() ? Json() : Json(m.backend);
  out["device"] = number_or_null(m.device);
  out["requested"] = bytes_or_null(m.requested);
  out["capacity"] = bytes_or_null(m.capacity);
  out["free"] = bytes_or_null(m.free);
  out["allowed"] = bytes_or_null(m.allowed);
  out["allocated"] = bytes_or_null(m.allocated);
  out["reserved_unused"] = bytes_or_null(unused_reserved(m));
  out["private_pools"] = bytes_or_null(m.private_pools);
  out["this_process"] = bytes_or_null(m.this_process);
  out["other_allocations"] = bytes_or_null(m.other_allocations);
  out["outside_pytorch"] = number_or_null(outside_pytorch(m));
  Json processes = Json::array();
  for (const ProcessUse& use : m.processes) {
    Json one = Json::object();
    one["pid"] = use.pid;
    one["bytes"] = use.bytes.bytes;
    processes.push_back(std::move(one));
  }
  out["processes"] = std::move(processes);
  if (!m.detail.empty()) out["detail"] = m.detail;
  if (m.pid) out["pid"] = *m.pid;
  if (m.anon_rss) out["anon_rss"] = *m.anon_rss;
  if (m.shmem_rss) out["shmem_rss"] = *m.shmem_rss;
  if (m.exit_code) out["exit_code"] = *m.exit_code;
  return out;
}

// The text that decides which record fits: the message, and what refused where there is none.
std::string telling_text(const Finding& finding, const Diagnosis& diagnosis) {
  std::string out;
  for (const std::string& line : finding.evidence) out += line + "\n";
  if (diagnosis.sighting != nullptr) out += diagnosis.sighting->text;
  // The regular expressions' matcher needs stack for each character.
  if (out.size() > 3000) out.resize(3000);
  return out;
}

void wrap(std::string& out, std::string_view text, std::size_t first_indent, std::size_t indent) {
  std::size_t column = first_indent;
  out.append(first_indent, ' ');
  bool fresh = true;
  std::size_t i = 0;
  while (i < text.size()) {
    std::size_t end = text.find(' ', i);
    if (end == std::string_view::npos) end = text.size();
    const std::string_view word = text.substr(i, end - i);
    i = end + 1;
    if (word.empty()) continue;
    if (!fresh && column + 1 + word.size() > kColumns) {
      out += '\n';
      out.append(indent, ' ');
      column = indent;
      fresh = true;
    }
    if (!fresh) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    fresh = false;
  }
  out += '\n';
}

std::string next_command(const Diagnosis& diagnosis, const Evidence& evidence) {
  const Finding& first = diagnosis.findings.front();
  if (!evidence.snapshots.empty()) {
    return concat("Next: lowtide report ", evidence.snapshots.front().name, " -o report.html");
  }
  if (first.cause == Cause::kUnknown && !evidence.tapes.empty() && evidence.logs.empty()) {
    return concat("Next: lowtide explain LOG ", evidence.tapes.front().name);
  }
  if (first.cause == Cause::kUnknown) {
    return "Next: add the kernel's log, dmesg -T > kernel.log, and run: lowtide explain LOG "
           "kernel.log";
  }
  const ErrorRecord* record = record_for(first.cause, telling_text(first, diagnosis));
  return record == nullptr ? std::string("Next: lowtide errors")
                           : "Next: lowtide errors " + record->id;
}

std::string right(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

std::string percent(Bytes part, Bytes whole) {
  if (whole == 0) return "";
  char text[16];
  std::snprintf(text, sizeof text, "%3.0f %%",
                100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

Json device_json(const DeviceFacts& device) {
  const DeviceAnalysis& analysis = device.analysis;
  Json out = Json::object();
  out["device"] = analysis.device;
  out["reserved"] = analysis.reserved;
  out["allocated"] = analysis.allocated;
  out["live_at_end"] = analysis.live_at_end;
  out["peak"] = Json::object();
  out["peak"]["event"] = analysis.peak.event;
  out["peak"]["bytes"] = analysis.peak.bytes;
  out["available"] = number_or_null(device.available);
  out["failure"] = Json();
  if (device.failure) {
    const FailureFacts& failure = *device.failure;
    Json& at = out["failure"] = Json::object();
    at["event"] = failure.event.event;
    at["requested"] = failure.event.requested;
    at["device_free"] = failure.event.device_free;
    at["live"] = failure.event.live;
    at["reserved"] = failure.event.reserved;
    at["line"] = failure.event.line;
    at["message"] = device.message == nullptr
                        ? Json()
                        : Json(concat(device.message_source, ":", device.message->first_line));
    if (failure.state) {
      at["allocated"] = failure.state->allocated;
      at["free_usable"] = failure.state->free.usable;
      at["largest_usable"] = failure.state->free.largest_usable;
      at["free_elsewhere"] = failure.state->free.elsewhere;
    }
  }
  Json& live = out["live"] = Json::object();  // at the failure, or else at the peak
  live["bytes"] = device.moment.live;
  live["lines"] = lines_json(device.moment.lines, "line");
  live["kinds"] = kinds_json(device.moment.kinds);
  Json& free = out["fragmentation"] = Json::object();
  free["free_in_whole_segments"] = analysis.fragmentation.free_in_whole_segments;
  free["free_in_partly_used_segments"] = analysis.fragmentation.free_in_partly_used;
  free["largest_free_block"] = analysis.fragmentation.largest_free;
  free["free_in_private_pools"] = device.free_in_private_pools;
  free["empty_cache_gives"] = analysis.fragmentation.empty_cache_gives;
  out["growth"] = lines_json(analysis.growth.lines, "line");
  Json& replay = out["replay"] = Json::object();
  replay["exact"] = device.is_exact();
  replay["allocations"] = device.recorded.allocations;
  replay["addresses_matched"] = device.recorded.addresses_matched;
  replay["layout_identical"] = device.recorded.layout_identical;
  replay["smallest_capacity_bytes"] =
      device.rows.empty() ? Json() : number_or_null(device.rows[0].smallest_capacity);
  replay["rows"] = what_if_rows_json(device.rows);
  replay["unsupported"] = Json::array();
  for (const std::string& problem : device.problems) replay["unsupported"].push_back(problem);
  return out;
}

Json tape_json(const TapeFacts& tape) {
  Json out = Json::object();
  out["name"] = tape.name;
  out["whole_step"] = tape.is_whole;
  out["ops"] = tape.ops;
  out["storages"] = tape.storages;
  out["peak_bytes"] = tape.peak;
  out["peak_op"] = tape.peak_op;
  out["peak_by_kind"] = Json::array();
  const auto add = [&out](const char* name, Bytes bytes) {
    Json kind = Json::object();
    kind["kind"] = name;
    kind["bytes"] = bytes;
    out["peak_by_kind"].push_back(std::move(kind));
  };
  for (std::size_t i = 0; i < kStorageKinds; ++i) {
    add(storage_kind_name(static_cast<StorageKind>(i)), tape.at_peak[i]);
  }
  add("inside the running op", tape.working_at_peak);
  out["floor_bytes"] = tape.floor;
  out["floor_op"] = tape.floor_op;
  out["smallest_budget_bytes"] = number_or_null(tape.smallest);
  return out;
}

void append_device(std::string& out, const SnapshotFacts& snapshot, const DeviceFacts& device) {
  const DeviceAnalysis& analysis = device.analysis;
  const Moment& moment = device.moment;
  const auto row = [&out](Bytes bytes, const std::string& share, const std::string& text) {
    out += concat("  ", right(format_bytes(bytes), 10), "  ", right(share, 5), "  ");
    std::string wrapped;
    wrap(wrapped, text, 21, 23);
    out += wrapped.substr(21);
  };
  std::string when = "now";
  if (device.failure) {
    when = concat("when event ", device.failure->event.event, " failed");
  } else if (analysis.peak.event >= 0) {
    when = concat("at the peak, event ", analysis.peak.event);
  } else if (device.has_trace) {
    when = "when the trace begins";
  }
  wrap(out,
       concat(snapshot.name, ", ", device.where, ": ", format_bytes(moment.live), " live ", when,
              ", in ", moment.allocations, " blocks"),
       0, 2);
  if (device.message != nullptr) {
    wrap(out,
         concat("the failure of ", device.message_source, ":", device.message->first_line,
                ", event ", device.failure->event.event, " here"),
         2, 4);
  }
  constexpr std::size_t kLines = 6;
  Bytes others = 0;
  for (std::size_t i = 0; i < moment.lines.size(); ++i) {
    if (i < kLines) {
      row(moment.lines[i].bytes, percent(moment.lines[i].bytes, moment.live), moment.lines[i].line);
    } else {
      others += moment.lines[i].bytes;
    }
  }
  if (moment.lines.size() > kLines) {
    row(others, percent(others, moment.live),
        concat("[", moment.lines.size() - kLines, " other lines]"));
  }
  out += "  by kind\n";
  for (std::size_t i = 0; i < kBlockKinds; ++i) {
    if (moment.kinds[i].bytes == 0) continue;
    row(moment.kinds[i].bytes, percent(moment.kinds[i].bytes, moment.live),
        kind_name(static_cast<BlockKind>(i)));
  }
  if (device.failure && device.failure->state) {
    const RecordedMoment& state = *device.failure->state;
    out += "  where the rest of what was reserved lay\n";
    row(state.free.usable, "",
        concat("free for such a request, the largest piece ",
               format_bytes(state.free.largest_usable)));
    row(state.free.elsewhere, "", "free in other pools or streams");
    const Bytes known = state.allocated + state.free.usable + state.free.elsewhere;
    row(state.allocated - std::min(state.allocated, moment.live), "",
        "rounding and slack of what was live");
    if (state.reserved > known) row(state.reserved - known, "", "[untracked]");
  } else if (!device.is_budget) {
    const Fragmentation& free = analysis.fragmentation;
    out += "  free at the end\n";
    row(free.free_in_whole_segments, "", "in segments that are all free");
    row(free.free_in_partly_used, "",
        concat("in segments that something keeps, the largest piece ",
               format_bytes(free.largest_free)));
    row(free.empty_cache_gives, "", "is what torch.cuda.empty_cache() would give back");
  }
  if (device.is_budget) {
    out += "\n";
    return;
  }
  if (device.rows.empty()) {
    out += "  no trace was recorded: nothing to replay\n\n";
    return;
  }
  wrap(
      out,
      device.is_exact() && device.recorded.allocations == 0
          ? std::string("replayed; the trace has no requests, so that what was live is placed anew")
      : device.is_exact()
          ? concat("replayed: ", device.recorded.addresses_matched, " of ",
                   device.recorded.allocations, " addresses and the layout as recorded")
          : concat("replayed; the figures are estimates",
                   device.problems.empty() ? "" : ": " + device.problems[0]),
      2, 4);
  if (!analysis.out_of_memory.empty()) {
    out += "    (what failed counts in every row but the first)\n";
  }
  const bool has_capacity = device.rows[0].completes.has_value();
  std::string head = concat("    ", right("reserves", 10), right("completes from", 16));
  if (has_capacity) head += right("in " + format_bytes(*device.available), 14);
  out += head + "\n";
  for (const WhatIfRow& change : device.rows) {
    std::string line = concat(
        "    ", right(format_bytes(change.peak_reserved), 10),
        right(change.smallest_capacity ? format_bytes(*change.smallest_capacity) : std::string(),
              16));
    if (has_capacity) line += right(*change.completes ? "completes" : "fails", 14);
    out += concat(line, "  ", change.change, "\n");
  }
  out += "\n";
}

void append_tape(std::string& out, const TapeFacts& tape) {
  wrap(out,
       concat(tape.name, tape.is_whole ? ": a step of " : ": the begin of a step, ", tape.ops,
              " ops, ", format_bytes(tape.peak), " at its peak",
              tape.peak_op.empty() ? "" : concat(", in ", tape.peak_op)),
       0, 2);
  const auto row = [&](Bytes bytes, const char* name) {
    if (bytes == 0) return;
    out += concat("  ", right(format_bytes(bytes), 10), "  ", percent(bytes, tape.peak), "  ", name,
                  "\n");
  };
  for (std::size_t i = 0; i < kStorageKinds; ++i) {
    row(tape.at_peak[i], storage_kind_name(static_cast<StorageKind>(i)));
  }
  row(tape.working_at_peak, "inside the running op");
  wrap(out,
       concat("no budget below ", format_bytes(tape.floor), " (", tape.floor,
              " bytes) can carry it", tape.floor_op.empty() ? "" : concat(", for ", tape.floor_op)),
       2, 4);
  if (tape.smallest && *tape.smallest < tape.peak) {
    wrap(out,
         concat("a budget of ", format_bytes(*tape.smallest), " (", *tape.smallest,
                " bytes) does, recomputing"),
         2, 4);
  }
  out += "\n";
}

}  // namespace

Json explanation_json(const Diagnosis& diagnosis, const Evidence& evidence) {
  Json out = Json::object();
  out["findings"] = Json::array();
  for (const Finding& finding : diagnosis.findings) {
    Json one = Json::object();
    one["cause"] = cause_info(finding.cause).slug;
    one["confidence"] = confidence_name(finding.confidence);
    one["why"] = finding.why;
    one["evidence"] = Json::array();
    for (const std::string& line : finding.evidence) one["evidence"].push_back(line);
    one["fixes"] = Json::array();
    for (const std::string& fix : finding.fixes) one["fixes"].push_back(fix);
    const ErrorRecord* record = record_for(finding.cause, telling_text(finding, diagnosis));
    one["record"] = record == nullptr ? Json() : Json(record->id);
    out["findings"].push_back(std::move(one));
  }
  Json facts = Json::object();
  facts["sources"] = Json::array();
  Json messages = Json::array();
  for (const LogEvidence& log : evidence.logs) {
    Json source = Json::object();
    source["name"] = log.source;
    source["kind"] = "log";
    source["bytes"] = log.totals.bytes;
    source["lines"] = log.totals.lines;
    source["messages"] = log.sightings.size();
    source["messages_left_out"] = log.sightings_dropped;
    facts["sources"].push_back(std::move(source));
    for (const Sighting& sighting : log.sightings) messages.push_back(message_json(sighting, log));
  }
  const auto add_source = [&facts](const std::string& name, const char* kind) {
    Json source = Json::object();
    source["name"] = name;
    source["kind"] = kind;
    facts["sources"].push_back(std::move(source));
  };
  for (const SnapshotFacts& snapshot : evidence.snapshots) add_source(snapshot.name, "snapshot");
  for (const TapeFacts& tape : evidence.tapes) add_source(tape.name, "tape");
  facts["messages"] = std::move(messages);
  if (diagnosis.sighting != nullptr) {
    const Sighting& sighting = *diagnosis.sighting;
    facts["message"] = message_json(sighting, *diagnosis.log);
    Json phase;
    Json frame;
    if (!sighting.tracebacks.empty()) {
      const Traceback& traceback = sighting.tracebacks.back();
      phase = phase_name(traceback.phase);
      const Frame* user = user_frame(traceback);
      if (user == nullptr && !traceback.frames.empty()) user = &traceback.frames.back();
      if (user != nullptr) {
        frame = Json::object();
        frame["file"] = user->file;
        frame["line"] = user->line;
        frame["function"] = user->function;
        frame["code"] = user->code;
      }
      facts["exception"] = traceback.exception;
      facts["in_evaluation"] = traceback.in_evaluation;
      facts["in_checkpoint"] = traceback.in_checkpoint;
    }
    facts["phase"] = std::move(phase);
    facts["frame"] = std::move(frame);
    facts["step"] = number_or_null(sighting.progress.step);
    facts["epoch"] = number_or_null(sighting.progress.epoch);
  } else {
    facts["message"] = Json();
  }
  facts["snapshots"] = Json::array();
  for (const SnapshotFacts& snapshot : evidence.snapshots) {
    Json one = Json::object();
    one["name"] = snapshot.name;
    one["reserved"] = snapshot.reserved;
    one["events"] = snapshot.events;
    one["devices"] = Json::array();
    for (const DeviceFacts& device : snapshot.devices)
      one["devices"].push_back(device_json(device));
    facts["snapshots"].push_back(std::move(one));
  }
  facts["tapes"] = Json::array();
  for (const TapeFacts& tape : evidence.tapes) facts["tapes"].push_back(tape_json(tape));
  facts["conflicts"] = Json::array();
  for (const std::string& conflict : diagnosis.conflicts) facts["conflicts"].push_back(conflict);
  facts["unreadable"] = Json::array();
  for (const std::string& file : evidence.unreadable) facts["unreadable"].push_back(file);
  out["facts"] = std::move(facts);
  return out;
}

std::string explanation_text(const Diagnosis& diagnosis, const Evidence& evidence) {
  std::string out;
  if (diagnosis.sighting != nullptr) {
    const MemoryMessage& m = diagnosis.sighting->message;
    const bool is_snapshot = m.family == MessageFamily::kSnapshotFailure;
    wrap(out,
         concat(diagnosis.log->source, is_snapshot ? ", event " : ":",
                diagnosis.sighting->first_line, ": ", diagnosis.sighting->text),
         0, 2);
    const std::optional<Bytes> outside = outside_pytorch(m);
    if (m.capacity && m.allocated && outside) {
      const std::optional<PrintedBytes> unused = unused_reserved(m);
      const auto row = [&out](const char* name, Bytes bytes, const char* meaning) {
        std::string line = concat("  ", name);
        line.resize(28, ' ');
        std::string size = format_bytes(bytes);
        if (size.size() < 10) size.insert(0, 10 - size.size(), ' ');
        out += concat(line, size, *meaning == '\0' ? "" : "  ", meaning, "\n");
      };
      out += "\n";
      row("allocated by PyTorch", m.allocated->bytes, "");
      row("reserved, not used", unused->bytes, "");
      row("free", m.free->bytes, "");
      row("[outside PyTorch]", *outside, "other processes, CUDA contexts, libraries");
      row("capacity", m.capacity->bytes, "");
      if (m.requested) {
        const bool small =
            m.requested->bytes == (Bytes{20} << 20) || m.requested->bytes <= (Bytes{10} << 20);
        row("asked for", m.requested->bytes,
            small ? "a segment of the allocator's; the tensor may be smaller" : "");
      }
    }
    out += "\n";
  } else if (diagnosis.findings.front().cause == Cause::kUnknown && !evidence.logs.empty()) {
    std::uint64_t lines = 0;
    for (const LogEvidence& log : evidence.logs) lines += log.totals.lines;
    out += concat("No message about memory in ", lines, lines == 1 ? " line.\n\n" : " lines.\n\n");
  }
  for (const std::string& conflict : diagnosis.conflicts) {
    wrap(out, "These do not fit together: " + conflict, 0, 2);
  }
  for (const std::string& file : evidence.unreadable) wrap(out, "Not read: " + file, 0, 2);
  if (!diagnosis.conflicts.empty() || !evidence.unreadable.empty()) out += "\n";
  std::size_t number = 0;
  for (const Finding& finding : diagnosis.findings) {
    const CauseInfo& info = cause_info(finding.cause);
    wrap(out,
         concat(++number, ". ", info.slug, " (", confidence_name(finding.confidence),
                "): ", info.title),
         0, 3);
    wrap(out, finding.why, 3, 3);
    // The message itself stands on top already.
    for (std::size_t i = 0; i < finding.evidence.size(); ++i) {
      if (diagnosis.sighting != nullptr &&
          finding.evidence[i].find(diagnosis.sighting->text) != std::string::npos) {
        continue;
      }
      wrap(out, finding.evidence[i], 5, 7);
    }
    if (number <= 3) {
      for (const std::string& fix : finding.fixes) wrap(out, "- " + fix, 3, 5);
    }
    out += "\n";
  }
  for (const SnapshotFacts& snapshot : evidence.snapshots) {
    for (const DeviceFacts& device : snapshot.devices) append_device(out, snapshot, device);
  }
  for (const TapeFacts& tape : evidence.tapes) append_tape(out, tape);
  out += next_command(diagnosis, evidence) + "\n";
  return out;
}

}  // namespace lowtide
