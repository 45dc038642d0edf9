#include "src/lint/heap.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace lowtide::lint {
namespace {

std::uint64_t identity(const Heap::Change& change) {
  return static_cast<std::uint64_t>(change.object) << 32 | change.key;
}

}  // namespace

const Value* Heap::find(ObjectId id, Name key) const {
  for (const Slot& slot : objects_[static_cast<std::size_t>(id)].slots) {
    if (slot.key == key) return &slot.value;
  }
  return nullptr;
}

void Heap::set(ObjectId id, Name key, const std::optional<Value>& value) {
  auto& slots = objects_[static_cast<std::size_t>(id)].slots;
  const auto found =
      std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) { return slot.key == key; });
  if (!value) {
    if (found != slots.end()) slots.erase(found);
  } else if (found != slots.end()) {
    found->value = *value;
  } else {
    slots.push_back({key, *value});
  }
}

void Heap::write(ObjectId id, Name key, const Value& value) {
  if (!marks_.empty() && static_cast<std::size_t>(id) < marks_.back().objects) {
    const Value* old = find(id, key);
    journal_.push_back({id, key, old != nullptr ? std::optional<Value>(*old) : std::nullopt});
  }
  set(id, key, value);
}

void Heap::widen(ObjectId id, Name key, const Value& value) {
  const Value* old = find(id, key);
  write(id, key, old != nullptr ? joined(*old, value, now) : value);
}

void Heap::checkpoint() { marks_.push_back({journal_.size(), objects_.size()}); }

Heap::Changes Heap::take_back() {
  Changes made;
  std::unordered_set<std::uint64_t> known;
  const std::size_t mark = marks_.back().journal;
  while (journal_.size() > mark) {
    const Change undo = journal_.back();
    journal_.pop_back();
    if (known.insert(identity(undo)).second) {
      const Value* left = find(undo.object, undo.key);
      made.push_back(
          {undo.object, undo.key, left != nullptr ? std::optional<Value>(*left) : std::nullopt});
    }
    set(undo.object, undo.key, undo.value);
  }
  marks_.pop_back();
  return made;
}

void Heap::redo(const Changes& changes) {
  for (const Change& change : changes) {
    if (change.value) write(change.object, change.key, *change.value);
  }
}

Value Heap::unfreed(const Value& value, Runs elsewhere) {
  if (value.history == 0) return value;
  const GraphNode& node = graph_[value.history];
  if (!node.freed || node.backward <= elsewhere.begin || node.backward > elsewhere.end)
    return value;
  GraphNode alias;
  alias.inputs = {value.history};
  alias.op = GraphOp::kJoin;
  alias.where = node.where;
  alias.origin = node.origin;
  alias.other_branch = true;
  Value out = value;
  out.history = graph_.add(std::move(alias));
  return out;
}

Heap::Changes Heap::merged(const Changes& first, const Changes& second, Runs of_first,
                           Runs of_second) {
  const auto before = [&](const Change& change) {
    const Value* value = find(change.object, change.key);
    return value != nullptr ? std::optional<Value>(*value) : std::nullopt;
  };
  Changes out;
  const auto merge = [&](const Change& slot, const std::optional<Value>& left,
                         const std::optional<Value>& right) {
    if (!left || !right) {
      if (left || right) out.push_back({slot.object, slot.key, left ? left : right});
      return;
    }
    out.push_back(
        {slot.object, slot.key, joined(unfreed(*left, of_second), unfreed(*right, of_first), now)});
  };
  std::unordered_map<std::uint64_t, const Change*> others;
  for (const Change& change : second) others.emplace(identity(change), &change);
  for (const Change& change : first) {
    const auto other = others.find(identity(change));
    if (other != others.end()) {
      merge(change, change.value, other->second->value);
      others.erase(other);
    } else {
      merge(change, change.value, before(change));
    }
  }
  for (const Change& change : second) {
    if (others.count(identity(change)) != 0) merge(change, before(change), change.value);
  }
  return out;
}

Value Heap::joined(const Value& a, const Value& b, WhereId where) {
  Value out = a;
  out.kinds |= b.kinds;
  out.flags = (a.flags | b.flags) & ~kKnownNumber;
  if (a.has(kKnownNumber) && b.has(kKnownNumber) && a.number == b.number) out.flags |= kKnownNumber;
  if (a.only(kIsNone)) out.flags = b.flags;
  if (b.only(kIsNone)) out.flags = a.flags;
  // A tensor that is a leaf in one branch only is not one that must not be written to.
  if (!(a.has(kLeaf) && b.has(kLeaf))) out.flags &= ~kLeaf;
  if (a.object == 0) {
    out.object = b.object;
    out.other = b.other;
  } else if (b.object != 0 && b.object != a.object && out.other == 0) {
    out.other = b.object;
  }
  if (out.other == out.object) out.other = 0;
  if (a.text != b.text) out.text = a.text == 0 ? b.text : (b.text == 0 ? a.text : 0);
  if (a.hint == 0) out.hint = b.hint;
  if (a.shape != b.shape) out.shape = 0;
  if (a.history == 0 || a.history == b.history) {
    out.history = b.history;
  } else if (b.history != 0) {
    GraphNode node;
    node.inputs = {a.history, b.history};
    node.op = GraphOp::kJoin;
    node.where = where;
    node.origin = graph_[a.history].origin;
    out.history = graph_.add(std::move(node));
  }
  return out;
}

}  // namespace lowtide::lint
