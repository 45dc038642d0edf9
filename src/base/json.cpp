#include "src/base/json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr const char* kKindNames[] = {"null",     "a boolean", "an integer", "an integer",
                                      "a number", "a string",  "an array",   "an object"};

[[noreturn]] void refuse_kind(const char* wanted, const char* got) {
  throw FormatError("LT0131", concat("expected ", wanted, " in the JSON text, found ", got));
}

// Builds a Json from nlohmann's events, so that duplicate keys and depth can be refused and no
// second tree is made.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back().second.find(name) != nullptr)
      return fail(concat("the key \"", name, "\" stands twice"));
    open_.back().first = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return fail(concat("at byte ", position, ": ", error.what()));
  }

  const std::string& error() const { return error_; }
  Json take() { return std::move(root_); }

 private:
  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().second.is_array()) {
      open_.back().second.push_back(std::move(value));
    } else {
      open_.back().second[open_.back().first] = std::move(value);
    }
    return true;
  }

  bool open(Json container) {
    if (open_.size() >= static_cast<std::size_t>(max_depth_)) {
      return fail(concat("it is nested deeper than ", max_depth_, " levels"));
    }
    open_.emplace_back(std::string(), std::move(container));
    return true;
  }

  bool close() {
    Json done = std::move(open_.back().second);
    open_.pop_back();
    return add(std::move(done));
  }

  int max_depth_;
  Json root_;
  std::vector<std::pair<std::string, Json>> open_;  // the pending key and the container it goes in
  std::string error_;
};

void append_line(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(depth), ' ');
}

void append_scalar(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "\"nan\"";
  } else if (std::isinf(value)) {
    out += value > 0 ? "\"inf\"" : "\"-inf\"";
  } else {
    out += nlohmann::json(value).dump();
  }
}

}  // namespace

Json Json::object() {
  Json made;
  made.value_ = Object{};
  return made;
}

bool Json::is_integer() const {
  return std::holds_alternative<std::int64_t>(value_) ||
         std::holds_alternative<std::uint64_t>(value_);
}

bool Json::as_bool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  refuse_kind("a boolean", kKindNames[value_.index()]);
}

std::int64_t Json::as_int64() const {
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return *value;
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) {
    if (*value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse_kind("an integer below 2^63", "a larger one");
    }
    return static_cast<std::int64_t>(*value);
  }
  refuse_kind("an integer", kKindNames[value_.index()]);
}

std::uint64_t Json::as_uint64() const {
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&value_)) {
    if (*value < 0) refuse_kind("an integer of at least 0", "a negative one");
    return static_cast<std::uint64_t>(*value);
  }
  refuse_kind("an integer", kKindNames[value_.index()]);
}

double Json::as_double() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*value);
  refuse_kind("a number", kKindNames[value_.index()]);
}

const std::string& Json::as_string() const {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  refuse_kind("a string", kKindNames[value_.index()]);
}

const Json::Array& Json::as_array() const {
  if (const auto* value = std::get_if<Array>(&value_)) return *value;
  refuse_kind("an array", kKindNames[value_.index()]);
}

const Json::Object& Json::as_object() const {
  if (const auto* value = std::get_if<Object>(&value_)) return *value;
  refuse_kind("an object", kKindNames[value_.index()]);
}

const Json* Json::find(std::string_view key) const {
  const auto* members = std::get_if<Object>(&value_);
  if (members == nullptr) return nullptr;
  for (const auto& [name, value] : *members) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* value = find(key)) return *value;
  throw FormatError("LT0131", concat("the JSON object has no key \"", key, "\""));
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object{};
  if (const Json* value = find(key)) return *const_cast<Json*>(value);
  auto* members = std::get_if<Object>(&value_);
  if (members == nullptr) refuse_kind("an object", kKindNames[value_.index()]);
  return members->emplace_back(std::string(key), Json()).second;
}

void Json::push_back(Json element) {
  if (is_null()) value_ = Array{};
  auto* elements = std::get_if<Array>(&value_);
  if (elements == nullptr) refuse_kind("an array", kKindNames[value_.index()]);
  elements->push_back(std::move(element));
}

Json parse_json(std::string_view text, int max_depth) {
  Builder builder(max_depth);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    throw FormatError("LT0130", concat("the JSON text cannot be read: ", builder.error()));
  }
  return builder.take();
}

std::string to_text(const Json& root, int indent) {
  std::string out;
  // Bytes that are not UTF-8 (a file name, say) are shown by the replacement character.
  const auto quote = [&out](const std::string& text) {
    out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  const auto append = [&](const auto& self, const Json& value, int depth) -> void {
    std::visit(
        [&](const auto& held) {
          using Held = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<Held, std::monostate>) {
            out += "null";
          } else if constexpr (std::is_same_v<Held, bool>) {
            out += held ? "true" : "false";
          } else if constexpr (std::is_same_v<Held, double>) {
            append_scalar(out, held);
          } else if constexpr (std::is_same_v<Held, std::string>) {
            quote(held);
          } else if constexpr (std::is_integral_v<Held>) {
            out += std::to_string(held);
          } else {
            constexpr bool kIsObject = std::is_same_v<Held, Json::Object>;
            out += kIsObject ? '{' : '[';
            bool first = true;
            for (const auto& element : held) {
              if (!first) out += ",";
              first = false;
              append_line(out, indent, depth + 1);
              if constexpr (kIsObject) {
                quote(element.first);
                out += indent < 0 ? ":" : ": ";
                self(self, element.second, depth + 1);
              } else {
                self(self, element, depth + 1);
              }
            }
            if (!held.empty()) append_line(out, indent, depth);
            out += kIsObject ? '}' : ']';
          }
        },
        value.value_);
  };
  append(append, root, 0);
  return out;
}

}  // namespace lowtide
