#pragma once
// A JSON value: what reports are made of and what file headers are read into.
//
//   Json report = Json::object();
//   report["loss"] = 0.5;
//   report["tensors"].push_back("memory");
//   to_text(report);                        // {"loss":0.5,"tensors":["memory"]}
//
//   Json header = parse_json(text);         // throws FormatError (LT0130) with the place
//   header.at("shape").as_array();
//
// Objects keep the order in which keys were added. Reading and number formatting are nlohmann's;
// its header is met in json.cpp only.

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lowtide/export.h"

namespace lowtide {

class LOWTIDE_API Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  template <typename Integer,
            std::enable_if_t<std::is_integral_v<Integer> && !std::is_same_v<Integer, bool> &&
                                 !std::is_same_v<Integer, char>,
                             int> = 0>
  Json(Integer value) {
    if constexpr (std::is_unsigned_v<Integer>) {
      value_ = static_cast<std::uint64_t>(value);
    } else {
      value_ = static_cast<std::int64_t>(value);
    }
  }
  static Json array() { return Json(Array{}); }
  static Json object();

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  bool is_integer() const;

  // Each throws FormatError (LT0131), naming both kinds, when the value is of another kind or does
  // not fit. as_double takes integers too.
  bool as_bool() const;
  std::int64_t as_int64() const;
  std::uint64_t as_uint64() const;
  double as_double() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;

  // The member called `key`: null pointer when there is none, or when this is no object.
  const Json* find(std::string_view key) const;
  // Throws FormatError (LT0131) naming the key when there is none.
  const Json& at(std::string_view key) const;
  // Makes a null value an object, and adds the key when it is missing.
  Json& operator[](std::string_view key);
  // Makes a null value an array.
  void push_back(Json element);

 private:
  friend std::string to_text(const Json& value, int indent);
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_;
};

// Reads one JSON text (RFC 8259). Throws FormatError (LT0130) with the byte offset for malformed
// text, text after the value, duplicate keys and nesting deeper than `max_depth`.
LOWTIDE_API Json parse_json(std::string_view text, int max_depth = 64);

// Writes `value`: on one line when `indent` is negative, else with that many spaces a level.
// Doubles read back to the same bits; infinities and NaN, which JSON lacks, become the strings
// "inf",
// "-inf" and "nan".
LOWTIDE_API std::string to_text(const Json& value, int indent = -1);

}  // namespace lowtide
