// A log's message and a snapshot's failure are one when device, request and free memory agree: the
// allocator writes both from the same variables, the message rounded to two decimals and with the
// request as it was asked of the driver.

#include "src/diagnose/snapshot_facts.h"

#include <algorithm>

#include "src/allocator/allocator_settings.h"
#include "src/base/text.h"
#include "src/evidence/frame_origin.h"

namespace lowtide {
namespace {

// A refusal and the message that it was told with have the request and the limit in common.
void find_refusal(const std::vector<LogEvidence>& logs, DeviceFacts& facts) {
  if (facts.analysis.out_of_memory.empty()) return;
  const OutOfMemoryEvent& failure = facts.analysis.out_of_memory.back();
  facts.failure = FailureFacts{failure, failure.requested, std::nullopt};
  for (const LogEvidence& log : logs) {
    for (const Sighting& sighting : log.sightings) {
      const MemoryMessage& m = sighting.message;
      if (m.family != MessageFamily::kBudget || !m.requested->contains(failure.requested) ||
          !m.allowed->contains(failure.available())) {
        continue;
      }
      facts.message = &sighting;
      facts.message_source = log.source;
    }
  }
}

bool is_about(const Sighting& sighting, std::int64_t device) {
  const MemoryMessage& m = sighting.message;
  return m.requested && m.device && device >= 0 && *m.device == static_cast<std::uint64_t>(device);
}

void find_message(const std::vector<LogEvidence>& logs, const AllocatorSettings& settings,
                  DeviceFacts& facts) {
  const auto& failures = facts.analysis.out_of_memory;
  for (auto failure = failures.rbegin(); failure != failures.rend(); ++failure) {
    const Bytes asked = settings.segment_for(failure->requested);
    for (const LogEvidence& log : logs) {
      for (const Sighting& sighting : log.sightings) {
        const MemoryMessage& m = sighting.message;
        if (!is_about(sighting, facts.analysis.device)) continue;
        // An expandable segment maps what is missing only: the message has the request then.
        if (!m.requested->contains(asked) && !m.requested->contains(failure->requested)) continue;
        if (m.free && !m.free->contains(failure->device_free)) continue;
        facts.message = &sighting;
        facts.message_source = log.source;
        facts.failure = FailureFacts{*failure, asked, std::nullopt};
        return;
      }
    }
  }
  if (failures.empty()) return;
  facts.failure =
      FailureFacts{failures.back(), settings.segment_for(failures.back().requested), std::nullopt};
}

// What a log's message about this device says that there was. Of a failure that the trace lacks.
std::optional<Bytes> available_by_logs(const std::vector<LogEvidence>& logs,
                                       const DeviceAnalysis& analysis) {
  std::optional<Bytes> found;
  for (const LogEvidence& log : logs) {
    for (const Sighting& sighting : log.sightings) {
      const MemoryMessage& m = sighting.message;
      const auto unused = unused_reserved(m);
      if (!is_about(sighting, analysis.device) || !m.free || !m.allocated || !unused) continue;
      SizeSum sum;
      for (const Bytes part : {m.free->bytes, m.allocated->bytes, unused->bytes}) {
        if (part >> 60 == 0) sum += part;
      }
      found = sum.value();
      if (m.allowed) found = std::min(*found, m.allowed->bytes);
    }
  }
  return found;
}

// The failure as a log tells one: numbers and a traceback.
LogEvidence as_log(const Snapshot& snapshot, const DeviceFacts& facts) {
  if (snapshot.is_budget) return read_log_text(snapshot.refusal, snapshot.name);
  LogEvidence log;
  log.source = snapshot.name;
  if (!facts.failure) return log;
  const FailureFacts& failure = *facts.failure;
  Sighting& sighting = log.sightings.emplace_back();
  MemoryMessage& m = sighting.message;
  m.family = MessageFamily::kSnapshotFailure;
  m.backend = "CUDA";
  if (facts.analysis.device >= 0) m.device = static_cast<std::uint64_t>(facts.analysis.device);
  m.requested = PrintedBytes{failure.asked_of_driver, 0};
  m.free = PrintedBytes{failure.event.device_free, 0};
  const Bytes reserved = failure.state ? failure.state->reserved : failure.event.reserved;
  const Bytes allocated = failure.state ? failure.state->allocated : failure.event.live;
  m.reserved_total = PrintedBytes{reserved, 0};
  m.allocated = PrintedBytes{std::min(allocated, reserved), 0};
  sighting.first_line = sighting.last_line = failure.event.event;
  sighting.text = concat("out of memory: ", format_bytes(failure.event.requested), " asked for at ",
                         failure.event.line, ", ", format_bytes(failure.event.device_free),
                         " free on the device, ", format_bytes(failure.event.live), " live in ",
                         format_bytes(failure.event.reserved), " reserved");
  std::vector<Frame> frames;
  const auto stack = snapshot.frames_of(failure.event.stack);
  for (auto id = stack.rbegin(); id != stack.rend(); ++id) {
    const SnapshotFrame& at = snapshot.frames[*id];
    Frame& frame = frames.emplace_back();
    frame.file = snapshot.texts.view(at.file);
    frame.function = snapshot.texts.view(at.function);
    if (at.line > 0) frame.line = static_cast<std::uint64_t>(at.line);
  }
  if (!frames.empty()) sighting.tracebacks.push_back(traceback_of(std::move(frames)));
  return log;
}

}  // namespace

SnapshotFacts facts_of(const Snapshot& snapshot, const std::vector<LogEvidence>& logs,
                       bool smallest_capacities) {
  SnapshotFacts facts;
  facts.name = snapshot.name;
  facts.events = snapshot.events.count();
  const SnapshotAnalysis analysis = analyse(snapshot);
  facts.reserved = analysis.reserved;
  for (const DeviceAnalysis& of_device : analysis.devices) {
    DeviceFacts& device = facts.devices.emplace_back();
    device.analysis = of_device;
    const DeviceReplay replay(snapshot, of_device.device);
    device.has_trace = replay.has_trace();
    device.problems = replay.problems();
    device.recorded = replay.as_recorded();
    device.where = snapshot.device_name(of_device.device);
    device.is_budget = snapshot.is_budget;
    if (snapshot.is_budget) {
      find_refusal(logs, device);
    } else {
      find_message(logs, replay.settings(), device);
    }
    WhatIfQuestions questions = usual_questions(of_device);
    questions.smallest_capacities = smallest_capacities;
    std::int64_t moment = of_device.peak.event;
    if (device.failure) {
      moment = device.failure->event.event;
      device.failure->state = replay.before(device.failure->event.event);
      // Where the trace left out segments' events, the replay knows better what was reserved.
      if (device.failure->state) device.failure->event.reserved = device.failure->state->reserved;
      device.available = device.failure->event.available();
      if (device.message != nullptr && device.message->message.allowed) {
        device.available = std::min(*device.available, device.message->message.allowed->bytes);
      }
      questions.empty_cache_before = device.failure->event.event;
    } else {
      device.available = available_by_logs(logs, of_device);
    }
    questions.capacity = device.available;
    device.moment = moment_after(snapshot, of_device.device, moment);
    device.rows = what_if_rows(replay, questions);
    SizeSum in_private;
    for (const SnapshotSegment& segment : snapshot.segments) {
      if (segment.device != of_device.device || !segment.lane.is_private()) continue;
      for (const SnapshotBlock& block : snapshot.blocks_of(segment)) {
        if (!block.is_live()) in_private += block.size;
      }
    }
    device.free_in_private_pools = in_private.value();
    device.as_log = as_log(snapshot, device);
  }
  return facts;
}

}  // namespace lowtide
