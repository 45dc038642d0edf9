// Tested by tests/plan/dtr_log_test.cpp.

#include "src/plan/dtr_log.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "lowtide/error.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
constexpr std::size_t kMostTensors = 50'000'000;

class Reader {
 public:
  DtrLog read(std::string_view text) {
    while (!text.empty()) {
      ++line_;
      const std::size_t end = text.find('\n');
      std::string_view line = text.substr(0, end);
      text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.empty()) continue;
      try {
        read_line(parse_json(line, 8));
      } catch (const FormatError& error) {
        if (error.id() == "LT0150") throw;
        fail("it is no such JSON object (", error.what(), ")");
      }
    }
    if (results_left_ > 0) fail("the log ends before all results of its last op");
    if (log_.trace.ops.empty()) fail("the log has no op");
    for (std::uint32_t i = 0; i < refs_.size(); ++i) {
      if (refs_[i] > 0 && !log_.trace.storages[i].source) log_.trace.pin(StorageId{i});
    }
    return std::move(log_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FormatError("LT0150",
                      concat("cannot read the operator log: line ", line_, ": ", parts...,
                             ". docs/formats/dtr_log.md has the format"),
                      {{"line", static_cast<std::int64_t>(line_)}});
  }

  void read_line(const Json& json) {
    const std::string& what = json.at("INSTRUCTION").as_string();
    const bool belongs_to_results = what == "MEMORY" || what == "ALIAS";
    if (results_left_ > 0 && !belongs_to_results) {
      fail(what, " stands where a result of the op before should");
    }
    if (what == "CONSTANT") {
      constant_ = json.at("NAME").as_string();
    } else if (what == "MEMORY") {
      memory(json.at("NAME").as_string(), number(json.at("MEMORY")));
    } else if (what == "ALIAS") {
      alias(json.at("ALIAS").as_string());
    } else if (what == "CALL") {
      call(json);
    } else if (what == "MUTATE") {
      mutate(json);
    } else if (what == "COPY") {
      const StorageId tensor = named(json.at("SRC").as_string());
      bind(json.at("DST").as_string(), tensor);
    } else if (what == "COPY_FROM") {
      const StorageId source = named(json.at("SRC").as_string());
      const StorageId old = named(json.at("DST").as_string());
      bind(json.at("DST").as_string(), source);
      release(old);
    } else if (what == "RELEASE") {
      // Logs release names that they never bound.
      const auto name = names_.find(json.at("NAME").as_string());
      if (name == names_.end()) return;
      const StorageId tensor = named(name->first);
      names_.erase(name);
      release(tensor);
    } else if (what != "ANNOTATE") {
      fail("unknown instruction '", what.substr(0, 40), "'");
    }
  }

  std::uint64_t number(const Json& value) const {
    if (!value.is_string()) return checked(value.as_uint64());
    const std::string& text = value.as_string();
    std::uint64_t result = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (error != std::errc{} || end != text.data() + text.size()) {
      fail("'", text.substr(0, 40), "' is no whole number");
    }
    return checked(result);
  }
  std::uint64_t checked(std::uint64_t value) const {
    if (value >= kMost) fail(value, " is too large");
    return value;
  }
  StorageId named(const std::string& name) const {
    const auto found = names_.find(name);
    if (found == names_.end() || refs_[found->second.index()] == 0) {
      fail("there is no tensor '", name.substr(0, 40), "' now");
    }
    return found->second;
  }
  void bind(const std::string& name, StorageId tensor) {
    names_[name] = tensor;
    if (refs_[tensor.index()]++ == 0) ++root_refs_[log_.trace.root(tensor).index()];
  }
  StorageId grown(StorageId id) {
    if (log_.trace.storages.size() > kMostTensors) fail("too many tensors");
    const Bytes bytes = log_.trace.storages[id.index()].bytes;
    if (total_bytes_ + bytes >= kMost) fail("the tensors' bytes add up to more than 2^60");
    total_bytes_ += bytes;
    live_bytes_ += bytes;
    refs_.resize(log_.trace.storages.size(), 0);
    root_refs_.resize(log_.trace.storages.size(), 0);
    return id;
  }
  void run(std::uint64_t cost_ns) {
    if (total_ns_ + cost_ns >= kMost) fail("the ops' times add up to more than 2^60 ns");
    total_ns_ += cost_ns;
    log_.trace.run(cost_ns, reads_, writes_);
    log_.peak_bytes = std::max(log_.peak_bytes, live_bytes_);
    reads_.clear();
    writes_.clear();
  }

  // A CALL is followed by MEMORY and ALIAS of each result.
  void call(const Json& json) {
    for (const Json& name : json.at("ARGS").as_array()) reads_.push_back(named(name.as_string()));
    cost_ns_ = number(json.at("TIME"));
    results_left_ = json.at("RESULT").as_array().size();
    if (results_left_ == 0) run(cost_ns_);
  }
  void memory(const std::string& name, std::uint64_t bytes) {
    if (!constant_.empty()) {
      bind(constant_, grown(log_.trace.add_source(bytes)));
      log_.peak_bytes = std::max(log_.peak_bytes, live_bytes_);
      constant_.clear();
      return;
    }
    if (results_left_ == 0) fail("MEMORY belongs to no constant and no result");
    result_ = name;
    result_bytes_ = bytes;
  }
  void alias(const std::string& text) {
    if (text == "-1" && results_left_ == 0) return;  // of a constant
    if (results_left_ == 0 || result_.empty()) fail("ALIAS belongs to no result");
    StorageId base;
    if (text != "-1") {
      const std::uint64_t argument = number(Json(text));
      if (argument >= reads_.size()) fail("the op has no argument ", argument);
      base = log_.trace.root(reads_[argument]);
      result_bytes_ = 0;
    }
    const StorageId id = grown(log_.trace.add_storage(result_bytes_, base));
    bind(result_, id);
    result_.clear();
    writes_.push_back(id);
    if (--results_left_ == 0) run(cost_ns_);
  }
  void mutate(const Json& json) {
    const auto& arguments = json.at("ARGS").as_array();
    for (const Json& name : arguments) reads_.push_back(named(name.as_string()));
    std::vector<std::string> changed;
    for (const Json& index : json.at("MUTATE").as_array()) {
      const std::uint64_t at = number(index);
      if (at >= arguments.size()) fail("the op has no argument ", at);
      changed.push_back(arguments[at].as_string());
      const Bytes bytes = log_.trace.storages[log_.trace.root(reads_[at]).index()].bytes;
      writes_.push_back(grown(log_.trace.add_storage(bytes)));
    }
    const std::vector<StorageId> made = writes_;
    run(number(json.at("TIME")));
    for (std::size_t i = 0; i < changed.size(); ++i) {
      const StorageId old = named(changed[i]);
      bind(changed[i], made[i]);
      release(old);
    }
  }
  void release(StorageId tensor) {
    if (--refs_[tensor.index()] > 0) return;
    const StorageId root = log_.trace.root(tensor);
    if (--root_refs_[root.index()] == 0) {
      live_bytes_ -= log_.trace.storages[root.index()].bytes;
    }
    if (!log_.trace.storages[tensor.index()].source) log_.trace.release(tensor);
  }

  DtrLog log_;
  std::size_t line_ = 0;
  std::unordered_map<std::string, StorageId> names_;
  std::vector<std::uint32_t> refs_;       // by tensor: names bound to it
  std::vector<std::uint32_t> root_refs_;  // by root: tensors with names
  Bytes live_bytes_ = 0;
  Bytes total_bytes_ = 0;
  std::uint64_t total_ns_ = 0;
  std::string constant_;
  std::vector<StorageId> reads_;
  std::vector<StorageId> writes_;
  std::uint64_t cost_ns_ = 0;
  std::size_t results_left_ = 0;
  std::string result_;
  std::uint64_t result_bytes_ = 0;
};

}  // namespace

DtrLog parse_dtr_log(std::string_view text) { return Reader().read(text); }

DtrLog read_dtr_log(const std::string& path) { return parse_dtr_log(read_file(path)); }

}  // namespace lowtide
