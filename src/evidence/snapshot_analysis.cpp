// One pass pairs allocations with frees by address and finds the peak; the rest counts over the
// blocks that it found.
//
// History often begins in the middle of a run. A block that is freed in the trace without having
// been made in it lived before; so did one that the snapshot has at the end and the trace does not
// make. Its stack is where the snapshot says it was made, or, for one that is gone, where it was
// freed: the only place known.
//
// A block is free when its free is completed. Traces without completed frees (they can be switched
// off) count the requested ones.
//
// Tested by tests/evidence/snapshot_analysis_test.cpp, with a slow count of everything.

#include "src/evidence/snapshot_analysis.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "src/base/text.h"
#include "src/evidence/address_map.h"
#include "src/evidence/frame_origin.h"

namespace lowtide {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

DeviceTrace trace_or_none(const Snapshot& snapshot, std::int64_t device) {
  const DeviceTrace* trace = snapshot.trace_of(device);
  return trace != nullptr ? *trace : DeviceTrace{device, 0, 0};
}

EventAction free_action(const Snapshot& snapshot, const DeviceTrace& trace) {
  const auto first = snapshot.events.action.begin() + trace.first;
  const bool has_completed =
      std::find(first, first + trace.count, EventAction::kFreeCompleted) != first + trace.count;
  return has_completed ? EventAction::kFreeCompleted : EventAction::kFreeRequested;
}

// What a stack tells about the moment.
enum Trait : std::uint8_t {
  kHasFrames = 1,
  kOptimizer = 2,
  kBackward = 4,
  kModuleSetup = 8,
  kZeroGrad = 16,
  kWorkspaceName = 32,
  kForwardCode = 64,
};

// "optim/sgd.py", "job/my_optimizer.py"
std::string_view last_two_parts(std::string_view path) {
  std::size_t slash = path.find_last_of("/\\");
  if (slash != std::string_view::npos && slash > 0) slash = path.find_last_of("/\\", slash - 1);
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::vector<std::uint8_t> traits_of_frames(const Snapshot& snapshot) {
  std::vector<std::uint8_t> all(snapshot.frames.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string_view function = snapshot.texts.view(snapshot.frames[i].function);
    const std::string_view file = snapshot.texts.view(snapshot.frames[i].file);
    std::uint8_t traits = kHasFrames;
    const FrameOrigin origin = frame_origin(file, function);
    if (is_python_file(file)) {
      if ((function == "step" || function == "_init_group") &&
          contains(last_two_parts(file), "optim")) {
        traits |= kOptimizer;
      }
      if (origin == FrameOrigin::kTorch && contains(file, "optim") &&
          (contains(function, "_foreach") || contains(function, "_fused") ||
           contains(function, "multi_tensor") || contains(function, "single_tensor"))) {
        traits |= kOptimizer;
      }
      if (function == "zero_grad") traits |= kZeroGrad;
      if (origin == FrameOrigin::kTorch &&
          (function == "backward" || function == "_engine_run_backward")) {
        traits |= kBackward;
      }
      const bool in_modules =
          contains(file, "torch/nn/modules") || contains(file, "torch\\nn\\modules");
      if ((in_modules && (function == "_apply" || function == "convert" || function == "to" ||
                          function == "cuda" || function == "__init__")) ||
          function == "load_state_dict" || function == "from_pretrained" ||
          function == "reset_parameters") {
        traits |= kModuleSetup;
      }
      traits |= kForwardCode;
    } else {
      if (contains(function, "torch::autograd::Engine::") || contains(function, "AccumulateGrad")) {
        traits |= kBackward;
      }
      if (contains(function, "orkspace") || contains(function, "cublasCreate") ||
          contains(function, "cudnnCreate")) {
        traits |= kWorkspaceName;
      }
      if (contains(function, "torch::optim::") && contains(function, "::step")) {
        traits |= kOptimizer;
      }
      if (contains(function, "zero_grad")) traits |= kZeroGrad;
      if (contains(function, "torch::nn::Module::to") ||
          contains(function, "torch::nn::Module::register_parameter") ||
          contains(function, "::reset_parameters")) {
        traits |= kModuleSetup;
      }
      if (origin == FrameOrigin::kNativeUser || contains(function, "at::native::")) {
        traits |= kForwardCode;
      }
    }
    all[i] = traits;
  }
  return all;
}

std::vector<std::uint8_t> traits_of_stacks(const Snapshot& snapshot) {
  const std::vector<std::uint8_t> of_frames = traits_of_frames(snapshot);
  std::vector<std::uint8_t> all(snapshot.stack_count());
  std::vector<FrameOrigin> origins(snapshot.frames.size());
  for (std::size_t i = 0; i < origins.size(); ++i) {
    origins[i] = frame_origin(snapshot.texts.view(snapshot.frames[i].file),
                              snapshot.texts.view(snapshot.frames[i].function));
  }
  // A compiled backward runs Python on the autograd thread: torch's own, and nobody's above it.
  const auto is_function_apply = [&](std::uint32_t frame) {
    return origins[frame] == FrameOrigin::kTorch &&
           snapshot.texts.view(snapshot.frames[frame].function) == "apply" &&
           snapshot.texts.view(snapshot.frames[frame].file).ends_with("function.py");
  };
  for (StackId stack = 0; stack < all.size(); ++stack) {
    bool has_user = false;
    bool has_apply = false;
    for (const std::uint32_t frame : snapshot.frames_of(stack)) {
      all[stack] |= of_frames[frame];
      has_user |= origins[frame] == FrameOrigin::kUser;
      has_apply |= is_function_apply(frame);
    }
    if (has_apply && !has_user) all[stack] |= kBackward;
  }
  return all;
}

// What a stack's outermost frame says that its blocks are for, where Lowtide wrote the stack.
std::vector<std::optional<BlockKind>> stated_kinds(const Snapshot& snapshot) {
  std::vector<std::optional<BlockKind>> all(snapshot.stack_count());
  for (StackId stack = 0; stack < all.size(); ++stack) {
    const auto frames = snapshot.frames_of(stack);
    if (frames.empty()) continue;
    const SnapshotFrame& outermost = snapshot.frames[frames.back()];
    if (snapshot.texts.view(outermost.file) != kLowtideFile) continue;
    for (std::size_t i = 0; i < kBlockKinds; ++i) {
      const auto kind = static_cast<BlockKind>(i);
      if (snapshot.texts.view(outermost.function) == kind_name(kind)) all[stack] = kind;
    }
  }
  return all;
}

// Totals by line, largest first; equal ones in the order in which they were met.
class LineCounter {
 public:
  using Name = std::string (*)(const Snapshot&, std::uint32_t frame);
  LineCounter(const Snapshot& snapshot, Name name) : snapshot_(snapshot), name_(name) {}

  // `freed_there`: the frame is where the block was let go, not where it was made.
  void add(std::uint32_t frame, Bytes bytes, bool freed_there = false) {
    const std::uint64_t key = (std::uint64_t{freed_there} << 32) | frame;
    const auto [found, is_new] = place_.try_emplace(key, totals_.size());
    if (is_new) totals_.push_back({frame, freed_there, {}, 0});
    totals_[found->second].bytes += bytes;
    ++totals_[found->second].allocations;
  }

  std::vector<LineTotal> ranked() const {
    // Frames of other addresses in a function can have one line: they are one row.
    std::vector<LineTotal> rows;
    std::unordered_map<std::string, std::size_t> by_name;
    for (const Total& total : totals_) {
      std::string name = name_(snapshot_, total.frame);
      if (total.freed_there && total.frame != kNoFrame) name = "freed at " + name;
      const auto [found, is_new] = by_name.try_emplace(name, rows.size());
      if (is_new) rows.push_back({std::move(name), 0, 0});
      rows[found->second].bytes += total.bytes.value();
      rows[found->second].allocations += total.allocations;
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const LineTotal& a, const LineTotal& b) { return a.bytes > b.bytes; });
    return rows;
  }

 private:
  struct Total {
    std::uint32_t frame;
    bool freed_there;
    SizeSum bytes;
    std::uint64_t allocations;
  };
  const Snapshot& snapshot_;
  Name name_;
  std::unordered_map<std::uint64_t, std::size_t> place_;
  std::vector<Total> totals_;
};

std::string frame_name(const Snapshot& snapshot, std::uint32_t frame, const char* separators) {
  const SnapshotFrame& at = snapshot.frames[frame];
  std::string_view file = snapshot.texts.view(at.file);
  const std::string_view function = snapshot.texts.view(at.function);
  const bool at_lowtide = file == kLowtideFile;
  const std::size_t slash = file.find_last_of(separators);
  if (slash != std::string_view::npos) file = file.substr(slash + 1);
  if (at_lowtide) return std::string(function);
  if (file.empty() || file == "??") {
    // The unwinder's names of C++ functions come with all their arguments.
    const std::size_t arguments = function.find('(', function.starts_with("(anon") ? 1 : 0);
    return std::string(function.substr(0, arguments));
  }
  return concat(file, ":", at.line, ":", function);
}

// Known only by where it was let go.
bool is_known_by_free(const Allocation& allocation) {
  return allocation.made == kNoEvent && allocation.freed != kNoEvent;
}

void count_blocks(const Snapshot& snapshot, DeviceAnalysis& result) {
  SizeSum reserved, allocated, pending, requested, whole, partly, slack, cache;
  std::vector<std::uint64_t> streams;
  for (const SnapshotSegment& segment : snapshot.segments) {
    if (segment.device != result.device) continue;
    ++result.segments;
    result.blocks += segment.block_count;
    result.expandable_segments += segment.is_expandable;
    streams.push_back(segment.lane.stream);
    reserved += segment.size;
    const auto blocks = snapshot.blocks_of(segment);
    const bool is_whole = std::none_of(blocks.begin(), blocks.end(),
                                       [](const SnapshotBlock& block) { return block.is_live(); });
    for (const SnapshotBlock& block : blocks) {
      if (block.is_live()) {
        (block.state == BlockState::kAllocated ? allocated : pending) += block.size;
        requested += block.requested;
        if (block.size > block.requested) slack += block.size - block.requested;
        continue;
      }
      (is_whole ? whole : partly) += block.size;
      result.fragmentation.largest_free = std::max(result.fragmentation.largest_free, block.size);
      if (segment.lane.is_private()) continue;
      if (!segment.is_expandable) {
        if (is_whole) cache += block.size;
        continue;
      }
      // Whole pages of what is mapped can be given back.
      const Bytes page = segment.is_small ? 2_MiB : 20_MiB;
      const std::uint64_t from = block.address - segment.address;
      const Bytes begin = (from + page - 1) / page * page;
      const Bytes end = (from + block.size) / page * page;
      if (begin < end && from + block.size <= segment.size) cache += end - begin;
    }
  }
  std::sort(streams.begin(), streams.end());
  result.streams =
      static_cast<std::uint64_t>(std::unique(streams.begin(), streams.end()) - streams.begin());
  result.reserved = reserved.value();
  result.allocated = allocated.value();
  result.pending_free = pending.value();
  result.requested = requested.value();
  result.fragmentation.free_in_whole_segments = whole.value();
  result.fragmentation.free_in_partly_used = partly.value();
  result.fragmentation.slack = slack.value();
  result.fragmentation.empty_cache_gives = cache.value();
}

// A hole is pinned by the live blocks on both sides of it, half each.
void count_pinning(const Snapshot& snapshot, const std::vector<Allocation>& allocations,
                   const std::vector<std::uint32_t>& line_of, DeviceAnalysis& result) {
  AddressMap live;
  for (std::uint32_t i = 0; i < allocations.size(); ++i) {
    if (allocations[i].freed == kNoEvent) live.put(allocations[i].address, i);
  }
  LineCounter counter(snapshot, line_name);
  for (const SnapshotSegment& segment : snapshot.segments) {
    if (segment.device != result.device) continue;
    const auto blocks = snapshot.blocks_of(segment);
    const auto frame_of = [&](const SnapshotBlock& block) {
      const std::uint32_t known = live.find(block.address);
      StackId stack = block.stack;
      if (stack == 0 && known != AddressMap::kAbsent) stack = allocations[known].stack;
      return line_of[stack];
    };
    for (std::size_t i = 0; i < blocks.size();) {
      if (blocks[i].is_live()) {
        ++i;
        continue;
      }
      std::size_t end = i;
      Bytes hole = 0;
      while (end < blocks.size() && !blocks[end].is_live()) hole += blocks[end++].size;
      const bool has_before = i > 0;
      const bool has_after = end < blocks.size();
      if (has_before && has_after) {
        counter.add(frame_of(blocks[i - 1]), hole - hole / 2);
        counter.add(frame_of(blocks[end]), hole / 2);
      } else if (has_before || has_after) {
        counter.add(frame_of(has_before ? blocks[i - 1] : blocks[end]), hole);
      }
      i = end;
    }
  }
  result.fragmentation.pinned_by = counter.ranked();
}

void find_peak(const Snapshot& snapshot, const DeviceTrace& trace,
               const std::vector<Allocation>& allocations, DeviceAnalysis& result) {
  const EventColumns& events = snapshot.events;
  SizeSum live;
  for (const Allocation& allocation : allocations) {
    if (allocation.made == kNoEvent) live += allocation.size;
  }
  result.live_at_start = live.value();
  // What each event adds and takes away; allocations were made and freed in the order of events.
  std::vector<std::uint32_t> freed_at(trace.count, kNoEvent);
  std::vector<std::uint32_t> made_at(trace.count, kNoEvent);
  for (std::uint32_t i = 0; i < allocations.size(); ++i) {
    if (allocations[i].made != kNoEvent) made_at[allocations[i].made] = i;
    if (allocations[i].freed != kNoEvent) freed_at[allocations[i].freed] = i;
  }
  result.peak.bytes = live.value();
  auto failure = result.out_of_memory.begin();
  const std::uint32_t stretch =
      std::max<std::uint32_t>(1, (trace.count + kTimelinePoints - 1) / kTimelinePoints);
  TimePoint highest;
  for (std::uint32_t i = 0; i < trace.count; ++i) {
    if (freed_at[i] != kNoEvent) live -= allocations[freed_at[i]].size;
    if (made_at[i] != kNoEvent) live += allocations[made_at[i]].size;
    if (failure != result.out_of_memory.end() && failure->event == i)
      failure++->live = live.value();
    if (live.value() > result.peak.bytes) {
      result.peak.bytes = live.value();
      result.peak.event = i;
    }
    if (i % stretch == 0 || live.value() > highest.live) {
      highest = {i, events.time_us[trace.first + i], live.value()};
    }
    if ((i + 1) % stretch == 0 || i + 1 == trace.count) {
      result.timeline.push_back(highest);
      highest = {};
    }
  }
  result.live_at_end = live.value();
}

Bytes sum_of(Bytes a, Bytes b) {
  SizeSum sum;
  sum += a;
  sum += b;
  return sum.value();
}

void count_events(const Snapshot& snapshot, const DeviceTrace& trace, const StackLines& lines,
                  DeviceAnalysis& result) {
  const EventColumns& events = snapshot.events;
  result.event_count = trace.count;
  for (std::uint32_t i = 0; i < trace.count; ++i) {
    const std::uint32_t row = trace.first + i;
    ++result.events[static_cast<std::size_t>(events.action[row])];
    if (events.action[row] == EventAction::kOom) {
      OutOfMemoryEvent& failure = result.out_of_memory.emplace_back();
      failure.event = i;
      failure.requested = events.size[row];
      failure.device_free = events.address[row];
      failure.line = line_name(snapshot, lines.user[events.stack[row]]);
      failure.stack = events.stack[row];
    }
  }
  // From what is reserved at the end back to each failure. What a damaged trace takes away more
  // than there was counts as nothing.
  Bytes reserved = result.reserved;
  auto failure = result.out_of_memory.rbegin();
  for (std::uint32_t i = trace.count; i-- > 0 && failure != result.out_of_memory.rend();) {
    const std::uint32_t row = trace.first + i;
    switch (events.action[row]) {
      case EventAction::kOom:
        failure++->reserved = reserved;
        break;
      case EventAction::kSegmentAlloc:
      case EventAction::kSegmentMap:
        reserved -= std::min(reserved, events.size[row]);
        break;
      case EventAction::kSegmentFree:
      case EventAction::kSegmentUnmap:
        reserved = sum_of(reserved, events.size[row]);
        break;
      default:
        break;
    }
  }
  if (trace.count > 0) {
    const std::int64_t first = events.time_us[trace.first];
    const std::int64_t last = events.time_us[trace.first + trace.count - 1];
    if (first > 0 && last > first) result.time_span_us = last - first;
  }
}

// Where steps begin: at the annotations that torch.optim makes, or where a run of events inside of
// an optimizer's step() ends.
void find_steps(const Snapshot& snapshot, const DeviceTrace& trace,
                const std::vector<std::uint8_t>& traits, Growth& growth) {
  const EventColumns& events = snapshot.events;
  std::vector<std::int64_t> times;
  for (const SnapshotAnnotation& annotation : snapshot.annotations) {
    const std::string_view name = snapshot.texts.view(annotation.name);
    if (snapshot.texts.view(annotation.stage) == "END" && annotation.time_us > 0 &&
        (name.starts_with("Optimizer.step#") || name.starts_with("ProfilerStep#"))) {
      times.push_back(annotation.time_us);
    }
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  if (times.size() >= 2) {
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < trace.count && next < times.size(); ++i) {
      if (events.time_us[trace.first + i] < times[next]) continue;
      while (next < times.size() && events.time_us[trace.first + i] >= times[next]) ++next;
      growth.steps.push_back(i);
    }
    growth.steps_from = "annotations";
  }
  if (growth.steps.size() < 2) {
    growth.steps.clear();
    growth.steps_from.clear();
    bool inside = false;
    for (std::uint32_t i = 0; i < trace.count; ++i) {
      const std::uint32_t row = trace.first + i;
      if (events.action[row] != EventAction::kAlloc) continue;
      const bool is_step = (traits[events.stack[row]] & kOptimizer) != 0;
      if (inside && !is_step) growth.steps.push_back(i);
      inside = is_step;
    }
    if (growth.steps.size() >= 2) {
      growth.steps_from = "optimizer frames";
    } else {
      growth.steps.clear();
    }
  }
}

void find_growth(const Snapshot& snapshot, const std::vector<Allocation>& allocations,
                 const std::vector<std::uint32_t>& line_of, Growth& growth) {
  if (growth.steps.size() < 2) return;
  // A growing line has more at the last step than in the middle, and there than at the first.
  const std::uint32_t first = growth.steps.front();
  const std::uint32_t middle = growth.steps[growth.steps.size() / 2];
  const std::uint32_t last = growth.steps.back();
  struct Held {
    Bytes at_first = 0;
    Bytes at_middle = 0;
    Bytes at_last = 0;
    std::int64_t count = 0;
  };
  std::map<std::uint32_t, Held> held;
  // Live at step s: made before it, freed at it or later. By differences over steps.
  std::vector<std::int64_t> change(growth.steps.size() + 1);
  const auto step_after = [&](std::uint32_t event) {
    return static_cast<std::size_t>(
        std::upper_bound(growth.steps.begin(), growth.steps.end(), event) - growth.steps.begin());
  };
  for (const Allocation& allocation : allocations) {
    const std::size_t from = allocation.made == kNoEvent ? 0 : step_after(allocation.made);
    const std::size_t until =
        allocation.freed == kNoEvent ? growth.steps.size() : step_after(allocation.freed);
    if (from < until) {
      change[from] += static_cast<std::int64_t>(allocation.size);
      change[until] -= static_cast<std::int64_t>(allocation.size);
    }
    Held* line = nullptr;
    const auto count = [&](std::uint32_t step, Bytes Held::* field, int sign) {
      const bool before = allocation.made == kNoEvent || allocation.made < step;
      const bool after = allocation.freed == kNoEvent || allocation.freed >= step;
      if (!before || !after) return;
      if (line == nullptr) line = &held[line_of[allocation.stack]];
      line->*field += allocation.size;
      line->count += sign;
    };
    count(first, &Held::at_first, -1);
    count(middle, &Held::at_middle, 0);
    count(last, &Held::at_last, 1);
  }
  std::int64_t live = 0;
  for (std::size_t i = 0; i < growth.steps.size(); ++i) {
    growth.live.push_back(static_cast<Bytes>(live += change[i]));
  }
  const bool has_middle = growth.steps.size() > 2;
  for (const auto& [frame, line] : held) {
    if (line.at_last <= line.at_first) continue;
    if (has_middle && (line.at_middle < line.at_first || line.at_last < line.at_middle)) continue;
    growth.lines.push_back({line_name(snapshot, frame), line.at_last - line.at_first,
                            static_cast<std::uint64_t>(std::max<std::int64_t>(line.count, 0))});
  }
  std::stable_sort(growth.lines.begin(), growth.lines.end(),
                   [](const LineTotal& a, const LineTotal& b) { return a.bytes > b.bytes; });
}

DeviceAnalysis analyse_device(const Snapshot& snapshot, std::int64_t device,
                              const StackLines& lines, const std::vector<std::uint8_t>& traits) {
  DeviceAnalysis result;
  result.device = device;
  const DeviceTrace trace = trace_or_none(snapshot, device);
  const std::vector<Allocation> allocations = allocations_of(snapshot, device);
  count_blocks(snapshot, result);
  count_events(snapshot, trace, lines, result);
  find_peak(snapshot, trace, allocations, result);
  if (result.live_at_end != result.requested) {
    result.notes.push_back(concat("the trace ends with ", result.live_at_end,
                                  " bytes live and the segments hold ", result.requested));
  }
  LineCounter sites(snapshot, site_name);
  LineCounter user(snapshot, line_name);
  LineCounter library(snapshot, library_line_name);
  LineCounter end(snapshot, line_name);
  const std::vector<BlockKind> kinds = kinds_of(snapshot, device, allocations);
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const Allocation& allocation = allocations[i];
    if (allocation.freed == kNoEvent) end.add(lines.user[allocation.stack], allocation.size);
    if (!allocation.lives_at(result.peak.event)) continue;
    ++result.peak.allocations;
    const bool freed_there = is_known_by_free(allocation);
    sites.add(lines.site[allocation.stack], allocation.size);
    user.add(lines.user[allocation.stack], allocation.size, freed_there);
    library.add(lines.library[allocation.stack], allocation.size, freed_there);
    KindTotal& kind = result.kinds[static_cast<std::size_t>(kinds[i])];
    kind.bytes += allocation.size;
    ++kind.allocations;
  }
  result.sites = sites.ranked();
  result.user_lines = user.ranked();
  result.library_lines = library.ranked();
  result.end_lines = end.ranked();
  count_pinning(snapshot, allocations, lines.user, result);
  find_steps(snapshot, trace, traits, result.growth);
  find_growth(snapshot, allocations, lines.user, result.growth);
  return result;
}

}  // namespace

const char* kind_name(BlockKind kind) {
  switch (kind) {
    case BlockKind::kParameters:
      return "parameters";
    case BlockKind::kGradients:
      return "gradients";
    case BlockKind::kOptimizerState:
      return "optimizer state";
    case BlockKind::kActivations:
      return "activations";
    case BlockKind::kWorkspace:
      return "workspace";
    case BlockKind::kUnattributed:
      return "[unattributed]";
  }
  return "";
}

std::string line_name(const Snapshot& snapshot, std::uint32_t frame) {
  if (frame == kNoFrame) return "<no user frame>";
  return frame_name(snapshot, frame, "/\\");
}

std::string library_line_name(const Snapshot& snapshot, std::uint32_t frame) {
  if (frame == kNoFrame) return "<no frames>";
  return frame_name(snapshot, frame, "/\\");
}

std::string site_name(const Snapshot& snapshot, std::uint32_t frame) {
  if (frame == kNoFrame) return "<no user frame>";
  return frame_name(snapshot, frame, "/");
}

std::vector<Allocation> allocations_of(const Snapshot& snapshot, std::int64_t device) {
  const DeviceTrace trace = trace_or_none(snapshot, device);
  const EventAction freed = free_action(snapshot, trace);
  const EventColumns& events = snapshot.events;
  std::vector<Allocation> before;
  std::vector<Allocation> made;
  made.reserve(static_cast<std::size_t>(
      std::count(events.action.begin() + trace.first,
                 events.action.begin() + trace.first + trace.count, EventAction::kAlloc)));
  AddressMap live;  // rows of `made`
  AddressMap gone;  // addresses whose block of before the trace was freed in it
  for (std::uint32_t i = 0; i < trace.count; ++i) {
    const std::uint32_t row = trace.first + i;
    const std::uint64_t address = events.address[row];
    if (events.action[row] == EventAction::kAlloc) {
      // A block that is still there was freed without a word: the event was not kept.
      const std::uint32_t earlier = live.find(address);
      if (earlier != AddressMap::kAbsent) made[earlier].freed = i;
      live.put(address, static_cast<std::uint32_t>(made.size()));
      made.push_back(
          {address, events.size[row], i, kNoEvent, events.stack[row], 0, events.lane[row]});
    } else if (events.action[row] == freed) {
      const std::uint32_t known = live.take(address);
      if (known != AddressMap::kAbsent) {
        made[known].freed = i;
        made[known].freed_stack = events.stack[row];
      } else if (gone.find(address) == AddressMap::kAbsent) {
        gone.put(address, 0);
        before.push_back({address, events.size[row], kNoEvent, i, events.stack[row],
                          events.stack[row], events.lane[row]});
      }
    }
    // Once an address was used in the trace, a block there is the trace's.
    if (events.action[row] == EventAction::kAlloc) gone.put(address, 0);
  }
  // The latest freed first, as undoing the trace meets them.
  std::reverse(before.begin(), before.end());
  for (const SnapshotSegment& segment : snapshot.segments) {
    if (segment.device != device) continue;
    for (const SnapshotBlock& block : snapshot.blocks_of(segment)) {
      if (!block.is_live()) continue;
      if (live.take(block.address) != AddressMap::kAbsent) continue;
      before.push_back({block.address, block.requested, kNoEvent, kNoEvent, block.stack, 0, 0});
    }
  }
  before.insert(before.end(), made.begin(), made.end());
  return before;
}

StackLines lines_of_stacks(const Snapshot& snapshot) {
  std::vector<FrameOrigin> origins(snapshot.frames.size());
  std::vector<bool> is_python(snapshot.frames.size());
  std::vector<bool> is_site(snapshot.frames.size());
  std::vector<bool> is_plumbing(snapshot.frames.size());
  for (std::size_t i = 0; i < origins.size(); ++i) {
    const std::string_view file = snapshot.texts.view(snapshot.frames[i].file);
    const std::string_view function = snapshot.texts.view(snapshot.frames[i].function);
    origins[i] = frame_origin(file, function);
    is_python[i] = is_python_file(file);
    is_site[i] = is_python[i] && !contains(file, "/torch/") && !contains(file, "torchinductor_");
    // The allocator and the unwinder at the inner end of every C++ stack.
    is_plumbing[i] =
        !is_python[i] &&
        (function.empty() || function == "??" || contains(function, "unwind") ||
         contains(function, "CachingAllocator") || contains(function, "memory_snapshot") ||
         contains(function, "GatheredContext") || contains(function, "gather"));
  }
  StackLines lines;
  for (StackId stack = 0; stack < snapshot.stack_count(); ++stack) {
    std::uint32_t site = kNoFrame;
    std::uint32_t user = kNoFrame;
    std::uint32_t native_user = kNoFrame;
    std::uint32_t python = kNoFrame;
    std::uint32_t native = kNoFrame;
    for (const std::uint32_t frame : snapshot.frames_of(stack)) {
      if (site == kNoFrame && is_site[frame]) site = frame;
      if (user == kNoFrame && origins[frame] == FrameOrigin::kUser) user = frame;
      if (native_user == kNoFrame && origins[frame] == FrameOrigin::kNativeUser) {
        native_user = frame;
      }
      if (python == kNoFrame && is_python[frame]) python = frame;
      if (native == kNoFrame && !is_python[frame] && !is_plumbing[frame]) native = frame;
    }
    lines.site.push_back(site);
    lines.user.push_back(user != kNoFrame ? user : native_user);
    lines.library.push_back(python != kNoFrame ? python : native);
  }
  return lines;
}

std::vector<BlockKind> kinds_of(const Snapshot& snapshot, std::int64_t device,
                                const std::vector<Allocation>& allocations) {
  const DeviceTrace trace = trace_or_none(snapshot, device);
  const EventColumns& events = snapshot.events;
  const std::vector<std::uint8_t> traits = traits_of_stacks(snapshot);
  // Where the optimizer and the backward pass begin to allocate.
  std::vector<std::uint32_t> optimizer_starts;
  std::vector<std::uint32_t> backward_starts;
  bool some_have_frames = false;
  for (std::uint32_t i = 0; i < trace.count; ++i) {
    some_have_frames |= (traits[events.stack[trace.first + i]] & kHasFrames) != 0;
  }
  // The autograd thread has no Python frames: with stacks of Python only, theirs are empty.
  const auto is_backward = [&](StackId stack) {
    return (traits[stack] & kBackward) != 0 || (some_have_frames && traits[stack] == 0);
  };
  std::uint8_t phase = 0;
  for (std::uint32_t i = 0; i < trace.count; ++i) {
    const std::uint32_t row = trace.first + i;
    if (events.action[row] != EventAction::kAlloc) continue;
    const StackId stack = events.stack[row];
    std::uint8_t now = 0;
    if ((traits[stack] & kOptimizer) != 0) {
      now = kOptimizer;
    } else if (is_backward(stack)) {
      now = kBackward;
    }
    if (now == phase) continue;
    phase = now;
    if (now == kOptimizer) optimizer_starts.push_back(i);
    if (now == kBackward) backward_starts.push_back(i);
  }
  const auto begins_between = [](const std::vector<std::uint32_t>& starts, std::uint32_t first,
                                 std::uint32_t last) {
    const auto after = std::upper_bound(starts.begin(), starts.end(), first);
    return after != starts.end() && *after < last;
  };
  std::vector<BlockKind> kinds;
  kinds.reserve(allocations.size());
  const std::vector<std::optional<BlockKind>> stated = stated_kinds(snapshot);
  for (const Allocation& allocation : allocations) {
    if (stated[allocation.stack]) {
      kinds.push_back(*stated[allocation.stack]);
      continue;
    }
    const std::uint8_t made = traits[allocation.stack];
    const std::uint8_t gone = traits[allocation.freed_stack];
    BlockKind kind = BlockKind::kUnattributed;
    if (is_known_by_free(allocation)) {
      if ((gone & kZeroGrad) != 0) {
        kind = BlockKind::kGradients;
      } else if ((gone & kOptimizer) != 0) {
        kind = BlockKind::kOptimizerState;
      }
    } else if (allocation.made == kNoEvent && made == 0) {
      kind = BlockKind::kUnattributed;
    } else if ((made & kWorkspaceName) != 0) {
      kind = BlockKind::kWorkspace;
    } else if ((made & kOptimizer) != 0) {
      const bool stays = allocation.freed == kNoEvent || allocation.made == kNoEvent ||
                         begins_between(backward_starts, allocation.made, allocation.freed);
      kind = stays ? BlockKind::kOptimizerState : BlockKind::kWorkspace;
    } else if (allocation.made != kNoEvent ? is_backward(allocation.stack)
                                           : (made & kBackward) != 0) {
      const bool stays = allocation.freed == kNoEvent || (gone & (kZeroGrad | kOptimizer)) != 0 ||
                         allocation.made == kNoEvent ||
                         begins_between(optimizer_starts, allocation.made, allocation.freed);
      kind = stays ? BlockKind::kGradients : BlockKind::kWorkspace;
    } else if ((made & kModuleSetup) != 0) {
      kind = allocation.freed == kNoEvent ? BlockKind::kParameters : BlockKind::kWorkspace;
    } else if ((made & kForwardCode) != 0) {
      kind = BlockKind::kActivations;
    }
    kinds.push_back(kind);
  }
  return kinds;
}

Moment moment_after(const Snapshot& snapshot, std::int64_t device, std::int64_t event) {
  Moment moment;
  const StackLines lines = lines_of_stacks(snapshot);
  const std::vector<Allocation> allocations = allocations_of(snapshot, device);
  const std::vector<BlockKind> kinds = kinds_of(snapshot, device, allocations);
  LineCounter counter(snapshot, line_name);
  SizeSum live;
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const Allocation& allocation = allocations[i];
    if (!allocation.lives_at(event)) continue;
    live += allocation.size;
    ++moment.allocations;
    counter.add(lines.user[allocation.stack], allocation.size, is_known_by_free(allocation));
    KindTotal& kind = moment.kinds[static_cast<std::size_t>(kinds[i])];
    kind.bytes += allocation.size;
    ++kind.allocations;
  }
  moment.live = live.value();
  moment.lines = counter.ranked();
  return moment;
}

SnapshotAnalysis analyse(const Snapshot& snapshot) {
  SnapshotAnalysis result;
  const StackLines lines = lines_of_stacks(snapshot);
  const std::vector<std::uint8_t> traits = traits_of_stacks(snapshot);
  SizeSum reserved, allocated, requested;
  for (const std::int64_t device : snapshot.devices()) {
    result.devices.push_back(analyse_device(snapshot, device, lines, traits));
    reserved += result.devices.back().reserved;
    allocated += result.devices.back().allocated;
    requested += result.devices.back().requested;
  }
  result.reserved = reserved.value();
  result.allocated = allocated.value();
  result.requested = requested.value();
  return result;
}

}  // namespace lowtide
