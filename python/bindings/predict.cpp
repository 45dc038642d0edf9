// What lowtide.predict is made of: logs of steps, and the fit through them.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"
#include "src/observe/allocation_recorder.h"
#include "src/observe/module_places.h"
#include "src/plan/peak_fit.h"

namespace lowtide::python {
namespace {

// As MemoryMeter's kinds are called; the batch is the program's.
constexpr std::array<const char*, kStorageKinds> kKindNames{
    "program", "parameters", "gradients", "optimizer_state", "program", "saved", "workspace"};
constexpr std::array<const char*, kStepPhases> kPhaseNames{"forward", "backward", "optimizer"};

StorageKind kind_of(std::string_view name) {
  for (std::size_t kind = 0; kind < kKindNames.size(); ++kind) {
    if (name == kKindNames[kind]) return static_cast<StorageKind>(kind);
  }
  throw py::value_error("no kind of memory");
}

py::dict to_dict(const PeakFit& fit) {
  py::dict dict;
  dict["growth_bytes"] = fit.growth_bytes;
  dict["step"] = fit.step;
  dict["phase"] = kPhaseNames[static_cast<std::size_t>(fit.phase)];
  dict["op"] = fit.op;
  dict["module"] = fit.module;
  py::dict phases;
  for (std::size_t phase = 0; phase < kStepPhases; ++phase) {
    phases[kPhaseNames[phase]] = fit.growth_by_phase[phase];
  }
  dict["growth_by_phase"] = phases;
  py::dict kinds;
  for (const StorageKind kind :
       {StorageKind::kParameter, StorageKind::kGradient, StorageKind::kOptimizerState,
        StorageKind::kSaved, StorageKind::kProgram, StorageKind::kWorkspace}) {
    const auto index = static_cast<std::size_t>(kind);
    kinds[kKindNames[index]] = fit.by_kind[index];
  }
  dict["by_kind"] = kinds;
  py::list modules;
  for (const PeakFit::Module& module : fit.by_module) {
    modules.append(py::make_tuple(module.name, module.bytes));
  }
  dict["by_module"] = modules;
  constexpr std::array<const char*, 3> kWays{"allocations", "aligned", "phases"};
  dict["way"] = kWays[static_cast<std::size_t>(fit.way)];
  dict["error_bound"] = fit.error_bound;
  dict["points"] = fit.points;
  dict["curved_points"] = fit.curved_points;
  dict["scattered_points"] = fit.scattered_points;
  dict["rounded_points"] = fit.rounded_points;
  return dict;
}

// The highest of each step, beyond what was live at the start.
std::vector<std::int64_t> step_peaks(const AllocationLog& log) {
  std::vector<std::int64_t> peaks;
  std::int64_t live = 0;
  std::size_t event = 0;
  for (const std::size_t end : log.step_ends) {
    peaks.push_back(live);
    for (; event < end; ++event) {
      const auto bytes = static_cast<std::int64_t>(log.blocks[log.events[event].block].bytes);
      live += log.events[event].is_made ? bytes : -bytes;
      peaks.back() = std::max(peaks.back(), live);
    }
  }
  return peaks;
}

// A log as plain Python objects, to write to a file; and back, from a file that may say anything.
py::tuple state_of(const AllocationLog& log) {
  py::list blocks;
  for (const AllocationLog::Block& block : log.blocks) {
    blocks.append(py::make_tuple(block.bytes, block.op, block.op_number, block.module,
                                 static_cast<int>(block.phase), static_cast<int>(block.kind),
                                 block.was_there));
  }
  py::list events;  // place of the block, or -1 less it where it is freed
  for (const AllocationLog::Event& event : log.events) {
    const auto place = static_cast<std::int64_t>(event.block);
    events.append(event.is_made ? place : -1 - place);
  }
  return py::make_tuple(log.names, blocks, events, log.step_ends, log.start_bytes, log.batch_size);
}

AllocationLog log_of(const py::sequence& state) {
  AllocationLog log;
  const auto check = [](bool is_good) {
    if (!is_good) throw py::value_error("no allocation log");
  };
  check(state.size() == 6);
  log.names = state[0].cast<std::vector<std::string>>();
  check(!log.names.empty());
  for (const py::handle entry : state[1]) {
    const auto fields = entry.cast<py::sequence>();
    check(fields.size() == 7);
    AllocationLog::Block block;
    block.bytes = fields[0].cast<Bytes>();
    block.op = fields[1].cast<std::uint32_t>();
    block.op_number = fields[2].cast<std::uint32_t>();
    block.module = fields[3].cast<std::uint32_t>();
    const auto phase = fields[4].cast<std::size_t>();
    const auto kind = fields[5].cast<std::size_t>();
    block.was_there = fields[6].cast<bool>();
    check(block.op < log.names.size() && block.module < log.names.size() && phase < kStepPhases &&
          kind < kStorageKinds && block.bytes < Bytes{1} << 60);
    block.phase = static_cast<StepPhase>(phase);
    block.kind = static_cast<StorageKind>(kind);
    log.blocks.push_back(block);
  }
  for (const py::handle entry : state[2]) {
    const auto place = entry.cast<std::int64_t>();
    const std::int64_t block = place < 0 ? -1 - place : place;
    check(block < static_cast<std::int64_t>(log.blocks.size()));
    log.events.push_back({static_cast<std::uint32_t>(block), place >= 0});
  }
  log.step_ends = state[3].cast<std::vector<std::size_t>>();
  std::size_t before = 0;
  for (const std::size_t end : log.step_ends) {
    check(end >= before && end <= log.events.size());
    before = end;
  }
  log.start_bytes = state[4].cast<Bytes>();
  log.batch_size = state[5].cast<std::uint64_t>();
  return log;
}

}  // namespace

void bind_predict(py::module_& module) {
  py::class_<AllocationLog>(module, "AllocationLog")
      .def_readwrite("batch_size", &AllocationLog::batch_size)
      .def_readonly("start_bytes", &AllocationLog::start_bytes)
      .def_property_readonly("steps", [](const AllocationLog& log) { return log.step_ends.size(); })
      .def_property_readonly("allocations",
                             [](const AllocationLog& log) { return log.blocks.size(); })
      .def("step_peaks", &step_peaks)
      .def("state", &state_of);

  static AllocationRecorder& recorder = AllocationRecorder::instance();
  module.def(
      "mark_block",
      [](const at::Tensor& tensor, std::string_view kind, const std::string& name) {
        recorder.mark(tensor, kind_of(kind), name);
      },
      py::arg("tensor"), py::arg("kind"), py::arg("module"));
  module.def("allocation_log_of", &log_of, py::arg("state"));
  module.def("start_allocation_log", [] { recorder.start(); });
  module.def("end_logged_step", [] { recorder.end_step(); });
  module.def("stop_allocation_log", [] { return recorder.stop(); });
  module.def("enter_module", &ModulePlaces::enter, py::arg("name"));
  module.def("leave_module", &ModulePlaces::leave);
  module.def("set_batch_size", &ModulePlaces::set_batch_size, py::arg("batch_size"));
  module.def("set_in_optimizer", [](bool on) { recorder.set_in_optimizer(on); }, py::arg("on"));
  module.def(
      "fit_peak",
      [](const py::list& logs, std::uint64_t batch_size) {
        std::vector<AllocationLog> copies;
        for (const py::handle log : logs) copies.push_back(log.cast<const AllocationLog&>());
        PeakFit fit;
        {
          const py::gil_scoped_release no_gil;
          fit = fit_peak(copies, batch_size);
        }
        return to_dict(fit);
      },
      py::arg("logs"), py::arg("batch_size"));
}

}  // namespace lowtide::python
