// A message says what was asked for and how much was free. A snapshot says what was live, and lets
// the allocator be replayed: whether what was live and what was asked for would have fitted side by
// side is arithmetic, and whether they would have been placed is the replay's answer. A tape says
// what the step could be made to run in.
//
// Weights are those of diagnosis.cpp. Certain is kept for an exact replay: one that gave every
// recorded address.
//
// Conflicts. Two files from different runs make a plausible wrong answer, so numbers that are
// written from the same variable are compared, within what was rounded: the request and the free
// memory of a failure, what was reserved, a card's size.

#include "src/diagnose/joined_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include "src/base/text.h"

namespace lowtide {
namespace {

double share(Bytes part, Bytes whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string percent(Bytes part, Bytes whole) {
  return concat(static_cast<int>(100 * share(part, whole) + 0.5), "%");
}

Bytes sum_of(Bytes a, Bytes b) {
  Bytes sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? ~Bytes{0} : sum;
}

std::string place_of(const SnapshotFacts& snapshot, const DeviceFacts& device) {
  return concat(snapshot.name, ", ", device.where);
}

std::string when_of(const DeviceFacts& device) {
  if (device.failure) return concat("when event ", device.failure->event.event, " failed");
  if (device.analysis.peak.event >= 0) {
    return concat("at the peak, event ", device.analysis.peak.event);
  }
  return device.has_trace ? "when the trace begins" : "in the snapshot";
}

// "train.py:35:<module> 22.0 MiB (42%), .."
std::string largest_lines(const Moment& moment, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < std::min(most, moment.lines.size()); ++i) {
    const LineTotal& line = moment.lines[i];
    if (line.bytes == 0) break;
    out += concat(out.empty() ? "" : ", ", line.line, " ", format_bytes(line.bytes), " (",
                  percent(line.bytes, moment.live), ")");
  }
  return out;
}

std::string kinds_of(const Moment& moment) {
  std::string out;
  for (std::size_t i = 0; i < kBlockKinds; ++i) {
    if (moment.kinds[i].bytes == 0) continue;
    out += concat(out.empty() ? "" : ", ", kind_name(static_cast<BlockKind>(i)), " ",
                  format_bytes(moment.kinds[i].bytes));
  }
  return out;
}

// What most of the memory is for, as a cause, where one kind of it stands out.
void weigh_kinds(const DeviceFacts& device, int weight, const std::string& why, Findings& all) {
  const Moment& moment = device.moment;
  const auto of = [&moment](BlockKind kind) {
    return moment.kinds[static_cast<std::size_t>(kind)].bytes;
  };
  const Bytes passing = of(BlockKind::kActivations) + of(BlockKind::kWorkspace);
  const Bytes state =
      of(BlockKind::kParameters) + of(BlockKind::kGradients) + of(BlockKind::kOptimizerState);
  if (share(of(BlockKind::kOptimizerState), moment.live) >= 0.3 && state > passing) {
    all.add(Cause::kOptimizerState, weight,
            concat("the optimizer's state is ", format_bytes(of(BlockKind::kOptimizerState)),
                   " of the ", format_bytes(moment.live), " live ", when_of(device), why));
  } else if (moment.live > 0) {
    all.add(Cause::kBatchOrInputTooLarge, weight,
            concat(format_bytes(moment.live), " were live ", when_of(device), " (",
                   kinds_of(moment), ")", why));
  }
}

void weigh_failure(const DeviceFacts& device, Findings& all) {
  const FailureFacts& failure = *device.failure;
  const Bytes available = *device.available;
  const Bytes in_use = failure.state ? failure.state->allocated : failure.event.live;
  const Bytes wanted = sum_of(in_use, failure.event.requested);
  const std::string sum = concat(format_bytes(in_use), " in use and ",
                                 format_bytes(failure.event.requested), " asked for");
  Finding* holes = all.find(Cause::kFragmentation);
  if (wanted > available) {
    std::string why = concat("; ", sum, " are more than the ", format_bytes(available),
                             " that there were, so that no setting and no empty_cache() helps");
    if (!device.rows.empty() && device.rows[0].smallest_capacity) {
      why +=
          concat("; replayed, it completes from ", format_bytes(*device.rows[0].smallest_capacity));
    }
    if (holes != nullptr) holes->weight = std::min(holes->weight, 40);
    if (failure.event.requested > in_use) {
      all.add(
          Cause::kBatchOrInputTooLarge, 72,
          concat("one request at ", failure.event.line, " is larger than all that was live", why));
    } else {
      weigh_kinds(device, 66, why, all);
    }
    return;
  }
  if (available == failure.event.available() &&
      failure.event.device_free >= failure.asked_of_driver) {
    // Neither full nor fragmented. The message, if there is one, says which limit it was.
    if (holes != nullptr) holes->weight = std::min(holes->weight, 40);
    all.add(Cause::kMemoryFractionCap, 62,
            concat(format_bytes(failure.asked_of_driver), " were refused with ",
                   format_bytes(failure.event.device_free),
                   " free on the device: a limit of this process "
                   "(set_per_process_memory_fraction), or of the driver's (MIG, vGPU, Windows)"));
    return;
  }
  std::string why =
      concat(sum, " would have fitted into the ", format_bytes(available), " that there were");
  if (failure.state) {
    const CachingAllocator::FreeSpace& free = failure.state->free;
    why +=
        concat(": ", format_bytes(free.usable), " lay free for such a request, the largest piece ",
               format_bytes(free.largest_usable));
    if (free.elsewhere > 0) {
      why += concat(", and ", format_bytes(free.elsewhere), " in other pools or streams");
    }
  }
  std::vector<const WhatIfRow*> helps;
  for (const WhatIfRow& row : device.rows) {
    if (&row != &device.rows.front() && row.completes.value_or(false)) helps.push_back(&row);
  }
  const bool model_fails = !device.rows.empty() && device.rows[0].completes == false;
  if (helps.empty()) {
    if (!device.rows.empty()) why += "; none of the settings that were replayed makes it fit";
    if (holes != nullptr) holes->weight = std::min(holes->weight, 70);
    all.add(Cause::kFragmentation, 64, why);
    return;
  }
  why += concat("; replayed, it completes with ", helps[0]->change);
  for (std::size_t i = 1; i < std::min<std::size_t>(helps.size(), 3); ++i) {
    why +=
        concat(i + 1 == std::min<std::size_t>(helps.size(), 3) ? " or " : ", ", helps[i]->change);
  }
  // Where the model, from an empty card, gets through without any change, the order of an earlier
  // life of the process matters too.
  const int weight = device.is_exact() && model_fails ? 96 : 74;
  // The heaviest reason is told, and this one has the replay.
  if (holes != nullptr) holes->weight = std::min(holes->weight, weight - 1);
  Finding& finding = all.add(Cause::kFragmentation, weight, why);
  for (const WhatIfRow* row : helps) {
    if (row->is_setting) {
      finding.fixes.push_back(
          concat("PYTORCH_CUDA_ALLOC_CONF=", row->change, ", with which the replay completes"));
      break;
    }
  }
}

void weigh_pools(const DeviceFacts& device, Findings& all) {
  if (!device.failure || !device.available) return;
  const Bytes pools = device.free_in_private_pools;
  if (pools < device.failure->event.requested || share(pools, *device.available) < 0.1) return;
  all.add(Cause::kGraphPrivatePool, 82,
          concat(format_bytes(pools), " are free in private pools (CUDA graphs, MemPool), where ",
                 format_bytes(device.failure->event.requested), " for others cannot be placed"));
}

bool names_evaluation(std::string line) {
  for (char& c : line) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view word : {"eval", "valid", "predict", "inference", "test"}) {
    if (line.find(word) != std::string::npos) return true;
  }
  return false;
}

void weigh_growth(const DeviceFacts& device, bool has_failed, Findings& all) {
  const Growth& growth = device.analysis.growth;
  // Two steps are the first, with what it sets up, and another.
  if (growth.lines.empty() || growth.live.size() < 3) return;
  Bytes grown = 0;
  for (const LineTotal& line : growth.lines) grown = sum_of(grown, line.bytes);
  std::size_t rises = 0;
  for (std::size_t i = 1; i < growth.live.size(); ++i) {
    if (growth.live[i] > growth.live[i - 1]) ++rises;
  }
  const LineTotal& first = growth.lines.front();
  const bool matters = share(grown, device.analysis.peak.bytes) >= 0.05;
  const bool steady = rises * 5 >= (growth.live.size() - 1) * 4;
  const int weight = 40 + (matters ? 20 : 0) + (steady ? 8 : 0) + (matters && has_failed ? 8 : 0);
  all.add(
      names_evaluation(first.line) ? Cause::kPredictionsKeptOnDevice : Cause::kHistoryAccumulation,
      weight,
      concat("what is kept grows by ", format_bytes(grown), " over ", growth.live.size(),
             " steps, rising at ", rises, " of ", growth.live.size() - 1, "; ",
             format_bytes(first.bytes), " of it is made at ", first.line));
}

// What two files can disagree about.
enum Doubt : std::size_t { kOtherDevice, kOtherCard, kOtherFailure, kOtherMoment, kOtherRefusal };
constexpr std::size_t kDoubts = 5;

struct Conflict {
  Doubt doubt;
  std::string sentence;
};

std::string message_place(const LogEvidence& log, const Sighting& sighting) {
  return concat(log.source, ":", sighting.first_line);
}

const DeviceFacts* device_of(const SnapshotFacts& snapshot, const MemoryMessage& m) {
  if (!m.device || !m.requested) return nullptr;
  for (const DeviceFacts& facts : snapshot.devices) {
    if (facts.is_budget || facts.analysis.device < 0) continue;
    if (static_cast<std::uint64_t>(facts.analysis.device) == *m.device) return &facts;
  }
  return nullptr;
}

// A message about a device that the snapshot has.
std::optional<Conflict> conflict_of(const SnapshotFacts& snapshot, const DeviceFacts& device,
                                    const std::string& place, const MemoryMessage& m) {
  const DeviceAnalysis& analysis = device.analysis;
  Bytes most = analysis.reserved;
  if (!device.rows.empty() && device.problems.empty()) {
    most = std::max(most, device.recorded.peak_reserved);
  }
  if (m.capacity && most > sum_of(m.capacity->bytes, m.capacity->half_step)) {
    return Conflict{kOtherCard,
                    concat(snapshot.name, " has ", format_bytes(most), " reserved on ",
                           device.where, ", more than the ", format_bytes(m.capacity->bytes),
                           " of the card in ", place, ": another machine's")};
  }
  if (!analysis.out_of_memory.empty()) {
    if (device.message != nullptr) return std::nullopt;
    const OutOfMemoryEvent& failure = analysis.out_of_memory.back();
    return Conflict{
        kOtherFailure,
        concat(place, " says ", format_bytes(m.requested->bytes), " were refused",
               m.free ? concat(" with ", format_bytes(m.free->bytes), " free") : "", "; in ",
               snapshot.name, " it was ", format_bytes(device.failure->asked_of_driver), " with ",
               format_bytes(failure.device_free), " free (event ", failure.event,
               "): another run, or another failure of this one")};
  }
  const auto unused = unused_reserved(m);
  if (!m.allocated || !unused) return std::nullopt;
  // The snapshot may be taken after the failure, when the step's tensors are gone: only more than
  // the message's says something.
  const Bytes held = sum_of(m.allocated->bytes, unused->bytes);
  const Bytes slack = sum_of(m.allocated->half_step + unused->half_step, held / 50);
  if (analysis.allocated <= sum_of(m.allocated->bytes, held / 50 + m.allocated->half_step) &&
      analysis.reserved <= sum_of(held, slack)) {
    return std::nullopt;
  }
  return Conflict{kOtherMoment,
                  concat(place, " says that PyTorch held ", format_bytes(held), " (",
                         format_bytes(m.allocated->bytes), " allocated); ", snapshot.name, " has ",
                         format_bytes(analysis.reserved), " (", format_bytes(analysis.allocated),
                         " allocated): another run, or another moment of this one")};
}

std::optional<Conflict> conflict_of(const SnapshotFacts& snapshot, const LogEvidence& log,
                                    const Sighting& sighting) {
  const MemoryMessage& m = sighting.message;
  const std::string place = message_place(log, sighting);
  const DeviceFacts* budget =
      !snapshot.devices.empty() && snapshot.devices[0].is_budget ? &snapshot.devices[0] : nullptr;
  if (m.family == MessageFamily::kBudget && budget != nullptr && budget->failure &&
      budget->message == nullptr) {
    const OutOfMemoryEvent& failure = budget->failure->event;
    return Conflict{kOtherRefusal,
                    concat(place, " refused ", format_bytes(m.requested->bytes), " within ",
                           format_bytes(m.allowed->bytes), "; in ", snapshot.name, " it was ",
                           format_bytes(failure.requested), " within ",
                           format_bytes(failure.available()), ": another refusal")};
  }
  if (budget != nullptr || !m.device || !m.requested || m.family == MessageFamily::kNccl) {
    return std::nullopt;
  }
  const DeviceFacts* device = device_of(snapshot, m);
  if (device != nullptr) return conflict_of(snapshot, *device, place, m);
  return Conflict{kOtherDevice, concat(place, " is about GPU ", *m.device, ", and ", snapshot.name,
                                       " has nothing of it: another process's")};
}

}  // namespace

std::string summary_of(const SnapshotFacts& snapshot, const DeviceFacts& device) {
  std::string out = concat(place_of(snapshot, device), ": ", format_bytes(device.moment.live),
                           " live ", when_of(device));
  if (!device.is_budget) {
    out += concat(", ", format_bytes(device.analysis.reserved), " reserved at the end");
  }
  const std::string lines = largest_lines(device.moment, 3);
  if (!lines.empty()) out += ": " + lines;
  return out;
}

std::string summary_of(const TapeFacts& tape) {
  std::string out = concat(tape.name, tape.is_whole ? ": a step of " : ": the begin of a step, ",
                           tape.ops, " ops with a peak of ", format_bytes(tape.peak),
                           "; no budget below ", format_bytes(tape.floor), " can carry it");
  if (tape.smallest && *tape.smallest < tape.peak) {
    out += concat(", one of ", format_bytes(*tape.smallest), " does");
  }
  return out;
}

void weigh_snapshot(const SnapshotFacts& snapshot, bool has_failed, Findings& all) {
  for (const DeviceFacts& device : snapshot.devices) {
    std::vector<int> before;
    for (const Finding& finding : all.list()) before.push_back(finding.weight);
    if (device.failure && !device.is_budget) {
      weigh_failure(device, all);
      weigh_pools(device, all);
    }
    if (has_failed) weigh_kinds(device, device.failure || device.message ? 55 : 40, "", all);
    weigh_growth(device, has_failed, all);
    // Whoever was raised by this snapshot shows what it says.
    for (std::size_t i = 0; i < all.list().size(); ++i) {
      Finding& finding = all.list()[i];
      if (i < before.size() && finding.weight <= before[i] && !has_failed) continue;
      if (finding.evidence.size() < 6) {
        finding.evidence.push_back(summary_of(snapshot, device));
      }
    }
  }
}

void weigh_tape(const TapeFacts& tape, const std::vector<LogEvidence>& logs,
                const std::vector<SnapshotFacts>& snapshots, bool has_failed, Findings& all) {
  const auto of = [&tape](StorageKind kind) {
    return tape.at_peak[static_cast<std::size_t>(kind)];
  };
  if (has_failed && tape.peak > 0) {
    const Bytes saved = of(StorageKind::kSaved);
    const Bytes state =
        of(StorageKind::kParameter) + of(StorageKind::kGradient) + of(StorageKind::kOptimizerState);
    if (share(saved, tape.peak) >= 0.4) {
      all.add(Cause::kBatchOrInputTooLarge, 61,
              concat(format_bytes(saved), " of the step's peak of ", format_bytes(tape.peak), " (",
                     percent(saved, tape.peak), ") are saved for backward"));
    } else if (share(of(StorageKind::kOptimizerState), tape.peak) >= 0.3 &&
               share(state, tape.peak) >= 0.6) {
      all.add(Cause::kOptimizerState, 61,
              concat(format_bytes(state), " of the step's peak of ", format_bytes(tape.peak),
                     " are parameters, gradients and optimizer state, ",
                     format_bytes(of(StorageKind::kOptimizerState)), " of it the last"));
    }
  }
  if (!has_failed) return;
  // What there was: the room that a budget would have had to keep to.
  std::optional<Bytes> available;
  for (const LogEvidence& log : logs) {
    for (const Sighting& sighting : log.sightings) {
      if (sighting.message.family == MessageFamily::kBudget) {
        available = sighting.message.allowed->bytes;
      }
    }
  }
  for (const SnapshotFacts& snapshot : snapshots) {
    for (const DeviceFacts& device : snapshot.devices) {
      if (!available && device.failure) available = device.available;
    }
  }
  std::string fix;
  if (available && tape.floor > *available) {
    fix = concat("no budget carries this step in ", format_bytes(*available), ": it needs ",
                 format_bytes(tape.floor), " at least",
                 tape.floor_op.empty() ? "" : concat(", for ", tape.floor_op));
  } else if (tape.smallest && *tape.smallest < tape.peak) {
    fix = concat("a budget from ", *tape.smallest, " bytes (", format_bytes(*tape.smallest),
                 ") carries this step with unchanged results: lowtide::MemoryBudget, or lowtide "
                 "train --budget");
  }
  for (Finding& finding : all.list()) {
    if (finding.weight < kPossibleFrom || finding.evidence.size() >= 8) continue;
    finding.evidence.push_back(summary_of(tape));
    const bool is_step = finding.cause == Cause::kBatchOrInputTooLarge ||
                         finding.cause == Cause::kMemoryFractionCap ||
                         finding.cause == Cause::kOptimizerState ||
                         finding.cause == Cause::kVariableShapes;
    if (is_step && !fix.empty()) finding.fixes.insert(finding.fixes.begin(), fix);
  }
}

std::vector<std::string> find_conflicts(const std::vector<LogEvidence>& logs,
                                        const std::vector<SnapshotFacts>& snapshots,
                                        const std::vector<TapeFacts>& tapes) {
  std::vector<std::string> conflicts;
  for (const SnapshotFacts& snapshot : snapshots) {
    for (const LogEvidence& log : logs) {
      // Each sort once, of the first message: a log has many, of all ranks.
      std::array<bool, kDoubts> said{};
      const bool has_its_device =
          std::any_of(log.sightings.begin(), log.sightings.end(), [&](const Sighting& sighting) {
            return device_of(snapshot, sighting.message) != nullptr;
          });
      for (const Sighting& sighting : log.sightings) {
        const std::optional<Conflict> conflict = conflict_of(snapshot, log, sighting);
        if (!conflict || said[conflict->doubt]) continue;
        // The other ranks' messages stand in one log with this one's.
        if (conflict->doubt == kOtherDevice && has_its_device) continue;
        said[conflict->doubt] = true;
        conflicts.push_back(conflict->sentence);
      }
    }
  }
  for (const TapeFacts& tape : tapes) {
    for (const LogEvidence& log : logs) {
      for (const Sighting& sighting : log.sightings) {
        const MemoryMessage& m = sighting.message;
        if (m.family != MessageFamily::kBudget) continue;
        // A step that fits as it is would not have been refused.
        if (tape.is_whole &&
            tape.peak < m.allowed->bytes - std::min(m.allowed->bytes, m.allowed->half_step)) {
          conflicts.push_back(concat(message_place(log, sighting), " refused within ",
                                     format_bytes(m.allowed->bytes), "; the step of ", tape.name,
                                     " takes ", format_bytes(tape.peak),
                                     " without any budget: another step, or a part of one"));
        }
      }
    }
  }
  return conflicts;
}

}  // namespace lowtide
