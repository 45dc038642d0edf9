#include "tests/plan/made_logs.h"

#include <algorithm>
#include <sstream>

namespace lowtide::testing {

std::string to_dtr_log(const Trace& trace) {
  std::ostringstream out;
  const auto line = [&](const char* what) -> std::ostringstream& {
    out << "{\"INSTRUCTION\":\"" << what << '"';
    return out;
  };
  const auto name = [](StorageId id) { return "\"x" + std::to_string(id.index()) + '"'; };
  const auto list = [&](const std::vector<StorageId>& ids) {
    std::string text = "[";
    for (const StorageId id : ids) text += (text.size() > 1 ? "," : "") + name(id);
    return text + "]";
  };
  line("ANNOTATE") << ",\"ANNOTATION\":\"START\"}\n";
  for (const TraceEvent& event : trace.events) {
    const StorageId id{event.index};
    switch (event.kind) {
      case TraceEvent::Kind::kSource:
        line("CONSTANT") << ",\"NAME\":" << name(id) << "}\n";
        line("MEMORY") << ",\"NAME\":" << name(id) << ",\"MEMORY\":\""
                       << trace.storages[id.index()].bytes << "\"}\n";
        break;
      case TraceEvent::Kind::kRun: {
        const TraceOp& op = trace.ops[event.index];
        line("CALL") << ",\"NAME\":\"op\",\"ARGS\":" << list(op.reads)
                     << ",\"RESULT\":" << list(op.writes) << ",\"TIME\":\"" << op.cost_ns
                     << "\"}\n";
        for (const StorageId written : op.writes) {
          const StorageId base = trace.storages[written.index()].base;
          const auto argument = std::find(op.reads.begin(), op.reads.end(), base);
          line("MEMORY") << ",\"NAME\":" << name(written) << ",\"MEMORY\":\""
                         << trace.storages[written.index()].bytes << "\"}\n";
          line("ALIAS") << ",\"NAME\":" << name(written) << ",\"ALIAS\":\""
                        << (base.valid() ? argument - op.reads.begin() : -1) << "\"}\n";
        }
        break;
      }
      case TraceEvent::Kind::kRelease:
        line("RELEASE") << ",\"NAME\":" << name(id) << "}\n";
        break;
      default:
        break;
    }
  }
  return out.str();
}

}  // namespace lowtide::testing
