#include "tests/evidence/made_snapshots.h"

#include "src/evidence/snapshot_reader.h"

namespace lowtide {

Made MadeSnapshot::value(const Form& form) const {
  int next_shared = 1000;
  std::vector<Made> frames_of;
  for (const auto& stack : stacks_) {
    Made::List frames;
    for (const MadeFrame& frame : stack) {
      Made made(
          Made::Dict{{"name", frame.function}, {"filename", frame.file}, {"line", frame.line}});
      if (form.unknown_keys) made.items.emplace_back("fx_node_op", "call");
      frames.push_back(std::move(made));
    }
    Made list(std::move(frames));
    if (form.shared) list.shared = next_shared++;
    frames_of.push_back(std::move(list));
  }
  const auto frames = [&](int stack) {
    return stack == 0 ? Made(Made::List{}) : frames_of[static_cast<std::size_t>(stack - 1)];
  };
  const auto address_of = [&](std::uint64_t address) {
    return form.wide_addresses ? Made(address) : Made(static_cast<std::int64_t>(address));
  };
  Made::List segments;
  for (const Segment& segment : segments_) {
    Made::List blocks;
    std::int64_t active = 0;
    for (const MadeBlock& block : segment.blocks) {
      Made::Dict made{
          {"size", block.size}, {"requested_size", block.requested}, {"state", block.state}};
      if (form.history_form) {
        const bool free = std::string(block.state) == "inactive";
        made.emplace_back("history",
                          free ? Made::List{}
                               : Made::List{Made::Dict{{"addr", address_of(block.address)},
                                                       {"real_size", block.requested},
                                                       {"frames", frames(segment.stack)}}});
      } else {
        made.emplace_back("address", address_of(block.address));
        if (form.has_frames) made.emplace_back("frames", frames(segment.stack));
      }
      if (form.unknown_keys) made.emplace_back("color", "blue");
      if (std::string(block.state) == "active_allocated") active += block.size;
      blocks.push_back(std::move(made));
    }
    Made::Dict made{{"device", segment.device},
                    {"address", address_of(segment.address)},
                    {"total_size", segment.size},
                    {"allocated_size", active},
                    {"stream", 0},
                    {"segment_type", segment.size == 2 << 20 ? "small" : "large"},
                    {"blocks", std::move(blocks)}};
    if (form.has_pools) {
      made.emplace_back("segment_pool_id", Made::Tuple{{0, 0}});
      made.emplace_back("is_expandable", false);
    }
    if (form.unknown_keys)
      made.emplace_back("registered", Made::Dict{{"with", Made::List{1, 2.5}}});
    segments.push_back(std::move(made));
  }
  if (form.list_only) return segments;
  Made::List devices;
  std::int64_t time = 1'700'000'000'000'000;
  for (const auto& trace : traces) {
    Made::List events;
    for (const MadeEvent& event : trace) {
      Made::Dict made{
          {"action", event.action},
          {std::string(event.action) == "oom" ? "device_free" : "addr", address_of(event.address)},
          {"size", event.size},
          {"stream", 0}};
      if (form.has_times) made.emplace_back("time_us", time += 10);
      if (form.has_frames) made.emplace_back("frames", frames(event.stack));
      if (form.unknown_keys) {
        made.emplace_back("compile_context", "N/A");
        made.emplace_back("user_metadata", "");
        made.emplace_back("pool_id", Made::Tuple{{0, 0}});
      }
      events.push_back(std::move(made));
    }
    devices.push_back(std::move(events));
  }
  Made::Dict root{{"segments", std::move(segments)}, {"device_traces", std::move(devices)}};
  if (form.has_settings) {
    root.emplace_back("allocator_settings",
                      Made::Dict{{"PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.5"},
                                 {"max_split_size", -1},
                                 {"garbage_collection_threshold", 0.5},
                                 {"expandable_segments", false},
                                 {"roundup_power2_divisions", Made::Dict{{"1", 0}, {"256", 4}}}});
    Made::List noted;
    for (const auto& [stage, at] : annotations) {
      noted.push_back(Made::Dict{
          {"stage", stage}, {"name", "Optimizer.step#SGD.step"}, {"device", 0}, {"time_us", at}});
    }
    root.emplace_back("external_annotations", std::move(noted));
  }
  if (form.unknown_keys) root.emplace_back("reserved_bytes_by_private_pools", Made::Dict{{"a", 1}});
  return root;
}

Snapshot read_made(const std::string& pickle) {
  ByteSource source("made.pickle", std::as_bytes(std::span(pickle)));
  return read_snapshot(source);
}

MadeSnapshot small_snapshot() {
  constexpr std::uint64_t kBase = 0x7f0000000000;
  constexpr std::int64_t kMiB = 1 << 20;
  MadeSnapshot made;
  const int forward =
      made.add_stack({{"relu", "/usr/lib/python3.11/site-packages/torch/nn/functional.py", 10},
                      {"forward", "/home/ann/job/model.py", 41}});
  const int optimizer = made.add_stack(
      {{"step", "/home/ann/job/my_optimizer.py", 7}, {"main", "/home/ann/job/train.py", 3}});
  made.add_segment(0, kBase, 20 * kMiB,
                   {{kBase, 4 * kMiB, 4 * kMiB - 100, "active_allocated"},
                    {kBase + 4 * kMiB, 2 * kMiB, 2 * kMiB, "active_allocated"},
                    {kBase + 6 * kMiB, 14 * kMiB, 0, "inactive"}},
                   optimizer);
  made.add_segment(1, kBase + (1 << 30), 2 * kMiB,
                   {{kBase + (1 << 30), 512, 100, "active_pending_free"},
                    {kBase + (1 << 30) + 512, 2 * kMiB - 512, 0, "inactive"}});
  made.traces = {{{"alloc", kBase + 6 * kMiB, 3 * kMiB, forward},
                  {"alloc", kBase + 4 * kMiB, 2 * kMiB, optimizer},
                  {"free_requested", kBase + 6 * kMiB, 3 * kMiB, 0},
                  {"free_completed", kBase + 6 * kMiB, 3 * kMiB, 0},
                  {"oom", 5 * kMiB, 64 * kMiB, forward}},
                 {}};
  made.annotations = {{"START", 1'700'000'000'000'015}, {"END", 1'700'000'000'000'025}};
  return made;
}

}  // namespace lowtide
