#include "src/watch/fixes.h"

#include "src/base/text.h"

namespace lowtide {
namespace {

using Place = hook::TensorHolder::Place;

std::string keeper(const WatchFinding& finding) {
  std::string text = "the tensor";
  if (!finding.held_by.empty()) {
    text += concat(" stored at `", finding.held_by, "`");
    if (!finding.stored_at.empty()) text += concat(" (", finding.stored_at, ")");
    return text;
  }
  text += concat(" that ", finding.op.empty() ? "no op that was seen" : finding.op, " made");
  if (!finding.line.empty()) text += concat(" at ", finding.line);
  return text;
}

std::string nodes_text(const WatchFinding& finding) {
  return concat("graph of ", finding.graph_nodes, finding.graph_nodes == 1 ? " node" : " nodes",
                " of ended steps");
}

std::string name_of(const WatchFinding& finding) {
  const std::string& path = finding.held_by;
  if (path.empty()) return "it";
  return concat("`", path.substr(0, path.find(" in ")), "`");
}

}  // namespace

std::string carried_chain(const WatchFinding& finding) {
  return concat(nodes_text(finding), " held by ", keeper(finding),
                ", which each step makes from the one before");
}

std::string carried_fix(const WatchFinding& finding, bool is_scalar) {
  if (is_scalar) {
    return "add the number, not the tensor: loss.item(), or loss.detach(), instead of loss";
  }
  return concat("detach ", name_of(finding),
                " where the next step begins (x = x.detach()), or make it under torch.no_grad()");
}

std::string kept_chain(const WatchFinding& finding, const hook::TensorHolder& holder) {
  std::string text = concat(nodes_text(finding), " held by ", keeper(finding));
  if (holder.place == Place::kHooks) text += ", in a hook that is never removed";
  if (holder.tensors > 1) text += concat(", one of ", holder.tensors, " such tensors");
  return text;
}

std::string unheld_chain(const WatchFinding& finding) {
  return concat(nodes_text(finding), " with ", keeper(finding),
                ", held by something else than a tensor with a name: a grad_fn, a ctx of an "
                "autograd.Function, an object of an extension");
}

std::string kept_fix(const WatchFinding&, const hook::TensorHolder& holder, bool is_scalar) {
  if (holder.place == Place::kHooks) {
    return "register the hook once, or keep the handle and call handle.remove() in each step; "
           "detach what the hook keeps";
  }
  if (is_scalar) return "store the number: x.item(), or x.detach(), instead of x";
  return "store x.detach() instead of x, or clear the container when a step has ended; evaluate "
         "under torch.no_grad()";
}

void judge_tensors(WatchFinding& finding, const hook::TensorHolder& holder, bool in_backward) {
  finding.chain = concat("held by ", keeper(finding));
  if (holder.tensors > 1) finding.chain += concat(", one of ", holder.tensors, " such tensors");
  finding.is_alarm = true;
  if (holder.place == Place::kHooks) {
    finding.chain += ", in a hook that is never removed";
    finding.fix =
        "register the hook once, or keep the handle and call handle.remove() in each step";
  } else if (holder.place == Place::kKey) {
    finding.chain += ", as a key: a tensor equals no other, so such an entry is never found again";
    finding.fix = "use a number or a text as the key";
  } else if (holder.whole_bytes >= 4096 && holder.shown_bytes * 4 <= holder.whole_bytes) {
    finding.chain += concat(", a view: ", format_bytes(holder.shown_bytes),
                            " of elements keep storages of ", format_bytes(holder.whole_bytes));
    finding.fix = "store a copy of the part: x.clone() instead of the view";
  } else if (in_backward && holder.tensors > 0 && holder.whole_bytes >= 256 * holder.tensors) {
    finding.chain += ", gradients of ended steps";
    finding.fix = "store what is needed of a gradient (g.norm().item()), not the gradient";
  } else {
    finding.is_alarm = false;
    finding.fix =
        "nothing, if it is a log or a replay buffer; else bound it, clear it, or store "
        "numbers";
  }
}

void judge_held(WatchFinding& finding, bool in_backward) {
  finding.chain = concat("held by ", keeper(finding),
                         ", from the step before and not read again, when the peak of ",
                         format_bytes(finding.peak_bytes), " comes");
  if (in_backward) {
    finding.is_alarm = false;
    finding.fix = "call optimizer.zero_grad(set_to_none=True) before the forward, not after it";
  } else {
    finding.fix = concat("del ", finding.held_by.empty() ? "it" : name_of(finding),
                         " after its last use: the peak falls by ", finding.fall_bytes, " bytes");
  }
}

}  // namespace lowtide
