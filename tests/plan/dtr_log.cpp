#include "tests/plan/dtr_log.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "lowtide/error.h"
#include "src/base/json.h"
#include "src/base/text.h"

namespace lowtide::testing {
namespace {

std::uint64_t number(const Json& value) { return std::stoull(value.as_string()); }

class Reader {
 public:
  void line(std::string_view text) {
    const Json json = parse_json(text);
    const std::string& what = json.at("INSTRUCTION").as_string();
    if (what == "CONSTANT") {
      constant_ = json.at("NAME").as_string();
    } else if (what == "MEMORY") {
      memory(json.at("NAME").as_string(), number(json.at("MEMORY")));
    } else if (what == "ALIAS") {
      alias(std::stol(json.at("ALIAS").as_string()));
    } else if (what == "CALL") {
      call(json);
    } else if (what == "MUTATE") {
      mutate(json);
    } else if (what == "COPY") {
      const StorageId tensor = names_.at(json.at("SRC").as_string());
      names_[json.at("DST").as_string()] = tensor;
      ++refs_[tensor];
    } else if (what == "COPY_FROM") {
      StorageId& target = names_.at(json.at("DST").as_string());
      const StorageId source = names_.at(json.at("SRC").as_string());
      ++refs_[source];
      release(target);
      target = source;
    } else if (what == "RELEASE") {
      const auto name = names_.find(json.at("NAME").as_string());
      if (name != names_.end()) release(name->second);
    }
  }

  Trace finish() {
    for (const auto& [tensor, refs] : refs_) {
      if (refs > 0 && !trace_.storages[tensor.index()].source) trace_.pin(tensor);
    }
    return std::move(trace_);
  }

 private:
  // A CALL is followed by MEMORY and ALIAS of each result.
  void call(const Json& json) {
    for (const Json& name : json.at("ARGS").as_array()) {
      reads_.push_back(names_.at(name.as_string()));
    }
    cost_ns_ = number(json.at("TIME"));
    results_left_ = json.at("RESULT").as_array().size();
  }
  void memory(const std::string& name, std::uint64_t bytes) {
    if (!constant_.empty()) {
      const StorageId id = trace_.add_source(bytes);
      names_[name] = id;
      ++refs_[id];
      constant_.clear();
      return;
    }
    result_ = name;
    result_bytes_ = bytes;
  }
  void alias(long argument) {
    const StorageId id =
        argument < 0
            ? trace_.add_storage(result_bytes_)
            : trace_.add_storage(0, trace_.root(reads_.at(static_cast<std::size_t>(argument))));
    names_[result_] = id;
    ++refs_[id];
    writes_.push_back(id);
    if (--results_left_ == 0) {
      trace_.run(cost_ns_, reads_, writes_);
      reads_.clear();
      writes_.clear();
    }
  }
  void mutate(const Json& json) {
    const auto& arguments = json.at("ARGS").as_array();
    for (const Json& name : arguments) reads_.push_back(names_.at(name.as_string()));
    std::vector<std::string> changed;
    for (const Json& index : json.at("MUTATE").as_array()) {
      const std::size_t at = index.is_string() ? number(index) : index.as_uint64();
      changed.push_back(arguments.at(at).as_string());
      const StorageId old = names_.at(changed.back());
      writes_.push_back(trace_.add_storage(trace_.storages[trace_.root(old).index()].bytes));
    }
    trace_.run(number(json.at("TIME")), reads_, writes_);
    for (std::size_t i = 0; i < changed.size(); ++i) {
      StorageId& tensor = names_.at(changed[i]);
      const StorageId old = tensor;
      tensor = writes_[i];
      ++refs_[tensor];
      release(old);
    }
    reads_.clear();
    writes_.clear();
  }
  void release(StorageId tensor) {
    if (--refs_[tensor] == 0 && !trace_.storages[tensor.index()].source) trace_.release(tensor);
  }

  Trace trace_;
  std::map<std::string, StorageId> names_;
  std::map<StorageId, long> refs_;
  std::string constant_;
  std::vector<StorageId> reads_;
  std::vector<StorageId> writes_;
  std::uint64_t cost_ns_ = 0;
  std::size_t results_left_ = 0;
  std::string result_;
  std::uint64_t result_bytes_ = 0;
};

}  // namespace

Trace trace_of_dtr_log(const std::string& text) {
  Reader reader;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) reader.line(line);
  }
  return reader.finish();
}

Trace read_dtr_log(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw IoError("LT0102", concat("cannot open ", path));
  std::ostringstream text;
  text << file.rdbuf();
  return trace_of_dtr_log(text.str());
}

std::string dtr_log_folder() {
  const char* folder = std::getenv("LOWTIDE_DTR_LOGS");
  return folder == nullptr ? "" : folder;
}

}  // namespace lowtide::testing
