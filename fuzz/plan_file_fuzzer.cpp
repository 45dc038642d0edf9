#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lowtide/error.h"
#include "src/plan/plan_file.h"

namespace {

// What fuzz/corpus/plan_file was planned for.
lowtide::Trace small_step() {
  using namespace lowtide;
  Trace trace;
  StorageId last = trace.add_source(4);
  StorageId forward[6];
  for (StorageId& id : forward) {
    id = trace.add_storage(8);
    trace.run(10, {{last}}, {{id}});
    last = id;
  }
  StorageId gradient;
  for (int i = 5; i >= 0; --i) {
    const StorageId next = trace.add_storage(8);
    if (gradient.valid()) {
      trace.run(20, {{forward[i], gradient}}, {{next}});
      trace.release(gradient);
    } else {
      trace.run(20, {{forward[i]}}, {{next}});
    }
    trace.release(forward[i]);
    gradient = next;
  }
  trace.pin(gradient);
  return trace;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lowtide;
  static const Trace trace = small_step();
  try {
    const Plan plan = parse_plan_bytes({reinterpret_cast<const char*>(data), size}, trace);
    if (find_problem(trace, plan)) std::abort();
    if (parse_plan_bytes(to_plan_bytes(plan, trace), trace) != plan) std::abort();
  } catch (const FormatError&) {
  }
  return 0;
}
