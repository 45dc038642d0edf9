#include "src/report/explanation.h"

#include "lowtide/bytes.h"
#include "src/base/text.h"
#include "src/diagnose/error_catalogue.h"

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

std::string next_command(const Diagnosis& diagnosis) {
  const Finding& first = diagnosis.findings.front();
  if (first.cause == Cause::kUnknown) {
    return "Next: add the kernel's log, dmesg -T > kernel.log, and run: lowtide explain LOG "
           "kernel.log";
  }
  const ErrorRecord* record = record_for(first.cause, telling_text(first, diagnosis));
  return record == nullptr ? std::string("Next: lowtide errors")
                           : "Next: lowtide errors " + record->id;
}

}  // namespace

Json explanation_json(const Diagnosis& diagnosis, const std::vector<LogEvidence>& logs) {
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
  for (const LogEvidence& log : logs) {
    Json source = Json::object();
    source["name"] = log.source;
    source["bytes"] = log.totals.bytes;
    source["lines"] = log.totals.lines;
    source["messages"] = log.sightings.size();
    source["messages_left_out"] = log.sightings_dropped;
    facts["sources"].push_back(std::move(source));
    for (const Sighting& sighting : log.sightings) messages.push_back(message_json(sighting, log));
  }
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
  out["facts"] = std::move(facts);
  return out;
}

std::string explanation_text(const Diagnosis& diagnosis, const std::vector<LogEvidence>& logs) {
  std::string out;
  if (diagnosis.sighting != nullptr) {
    const MemoryMessage& m = diagnosis.sighting->message;
    wrap(out,
         concat(diagnosis.log->source, ":", diagnosis.sighting->first_line, ": ",
                diagnosis.sighting->text),
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
  } else if (diagnosis.findings.front().cause == Cause::kUnknown) {
    std::uint64_t lines = 0;
    for (const LogEvidence& log : logs) lines += log.totals.lines;
    out += concat("No message about memory in ", lines, lines == 1 ? " line.\n\n" : " lines.\n\n");
  }
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
  out += next_command(diagnosis) + "\n";
  return out;
}

}  // namespace lowtide
