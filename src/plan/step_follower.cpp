// Tested by tests/plan/step_follower_test.cpp.

#include "src/plan/step_follower.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"

namespace lowtide {

KnownStep::KnownStep(const Tape& tape) {
  std::vector<std::uint32_t> places;
  trace = trace_of(tape, places);
  natural_peak = lowtide::natural_peak(trace);
  for (std::uint32_t event = 0; event < trace.events.size(); ++event) {
    if (trace.events[event].kind == TraceEvent::Kind::kRun) runs.push_back(event);
  }
  std::vector<const char*> made_by(tape.storages.size(), "");
  std::vector<std::uint32_t> number(tape.saved.size());  // in the order of saving
  for (std::size_t i = 0; i < tape.events.size(); ++i) {
    const TapeEvent& event = tape.events[i];
    const auto anchor = static_cast<std::uint32_t>(anchors.size());
    switch (event.kind) {
      case TapeEvent::Kind::kRun:
        for (const StorageId id : tape.writes(OpId{event.index})) {
          if (made_by[id.index()][0] == '\0') {
            made_by[id.index()] = tape.names[tape.ops[event.index].name].c_str();
          }
        }
        break;
      case TapeEvent::Kind::kPack: {
        const StorageId id = tape.saved[event.index].storage;
        number[event.index] = static_cast<std::uint32_t>(saved.size());
        saved.push_back({id, tape.storages[id.index()].bytes, made_by[id.index()], {}});
        packs.push_back(anchor);
        anchors.push_back({places[i], true});
        break;
      }
      case TapeEvent::Kind::kUnpack:
        saved[number[event.index]].unpacks.push_back(anchor);
        anchors.push_back({places[i], false});
        break;
      default:
        break;
    }
  }
}

bool KnownStep::saves_like(const KnownStep& other) const {
  return std::equal(saved.begin(), saved.end(), other.saved.begin(), other.saved.end(),
                    [](const Saved& a, const Saved& b) {
                      // A tape that begins later does not know what made the batch.
                      return a.bytes == b.bytes &&
                             (a.made_by.empty() || b.made_by.empty() || a.made_by == b.made_by);
                    });
}

StepFollower::StepFollower(std::shared_ptr<const KnownStep> step,
                           std::shared_ptr<const PlanGaps> gaps, RecipeGraph& graph)
    : step_(std::move(step)) {
  auto policy = std::make_unique<PlannedPolicy>(std::move(gaps));
  policy_ = policy.get();
  graph.set_policy(std::move(policy));
}

void StepFollower::op_begins() {
  const std::uint32_t most =
      next_anchor_ < step_->anchors.size() ? step_->anchors[next_anchor_].event : PlanGaps::kNever;
  if (next_run_ >= step_->runs.size()) return;
  policy_->reach(std::min(step_->runs[next_run_], most));
  if (step_->runs[next_run_] <= most) ++next_run_;
}

void StepFollower::reach_anchor(std::uint32_t anchor) {
  const std::uint32_t event = step_->anchors[anchor].event;
  next_anchor_ = anchor + 1;
  policy_->reach(event);
  // The op of that very event is the one that runs.
  const auto next = std::upper_bound(step_->runs.begin(), step_->runs.end(), event);
  next_run_ = std::max(next_run_, static_cast<std::size_t>(next - step_->runs.begin()));
}

std::optional<std::uint32_t> StepFollower::packed(StorageId node, Bytes bytes,
                                                  const char* made_by) {
  if (packed_ >= step_->saved.size()) return std::nullopt;
  const KnownStep::Saved& saved = step_->saved[packed_];
  if (saved.bytes != bytes) return std::nullopt;
  if (made_by[0] != '\0' && !saved.made_by.empty() && saved.made_by != made_by) {
    return std::nullopt;
  }
  const StorageId bound = policy_->node_of(saved.storage);
  const bool is_bound = policy_->storage_of(node).valid();
  if (is_bound ? bound != node : bound.valid()) return std::nullopt;
  reach_anchor(step_->packs[packed_]);
  if (!is_bound) policy_->bind(node, saved.storage);
  return static_cast<std::uint32_t>(packed_++);
}

bool StepFollower::unpacked(std::uint32_t saved) {
  const auto& unpacks = step_->saved[saved].unpacks;
  const auto next = std::lower_bound(unpacks.begin(), unpacks.end(), next_anchor_);
  if (next == unpacks.end()) return false;
  for (std::uint32_t anchor = next_anchor_; anchor < *next; ++anchor) {
    if (step_->anchors[anchor].is_pack) return false;
  }
  reach_anchor(*next);
  return true;
}

bool StepFollower::begins_like(const KnownStep& other, StorageId node, Bytes bytes) const {
  if (other.saved.size() <= packed_ || other.saved[packed_].bytes != bytes) return false;
  // Which storage of the other is which of this.
  std::vector<StorageId> here(other.trace.storages.size());
  std::vector<StorageId> there(step_->trace.storages.size());
  for (std::size_t i = 0; i < packed_; ++i) {
    const KnownStep::Saved& a = step_->saved[i];
    const KnownStep::Saved& b = other.saved[i];
    StorageId& mine = here[b.storage.index()];
    StorageId& its = there[a.storage.index()];
    if (a.bytes != b.bytes || mine.valid() != its.valid()) return false;
    if (mine.valid() && (mine != a.storage || its != b.storage)) return false;
    mine = a.storage;
    its = b.storage;
  }
  const StorageId before = here[other.saved[packed_].storage.index()];
  const StorageId bound = policy_->storage_of(node);
  return before == bound;
}

std::vector<StorageId> StepFollower::nodes() const {
  std::vector<StorageId> nodes;
  for (std::size_t i = 0; i < packed_; ++i) {
    nodes.push_back(policy_->node_of(step_->saved[i].storage));
  }
  return nodes;
}

void StepFollower::take_over(const std::vector<StorageId>& nodes) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const StorageId storage = step_->saved[i].storage;
    if (nodes[i].valid() && !policy_->node_of(storage).valid()) policy_->bind(nodes[i], storage);
  }
  packed_ = nodes.size();
  if (packed_ > 0) reach_anchor(step_->packs[packed_ - 1]);
}

}  // namespace lowtide
