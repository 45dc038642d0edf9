#include <charconv>
#include <cmath>
#include <sstream>

#include "cli/verb.h"
#include "lowtide/error.h"
#include "src/base/assert.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& text, const char* wanted) {
  throw UsageError("LT0702", concat("cannot read --", flag, " \"", text, "\" as ", wanted));
}

template <typename Number>
Number read_number(const std::string& flag, const std::string& text, const char* wanted) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stopped != end) refuse(flag, text, wanted);
  return value;
}

}  // namespace

const std::string& Arguments::text(const std::string& flag) const {
  const auto found = values_.find(flag);
  LOWTIDE_ASSERT(found != values_.end());
  return found->second;
}

std::vector<std::string> Arguments::texts(const std::string& flag) const {
  std::vector<std::string> all;
  if (!has(flag)) return all;
  std::istringstream lines(text(flag));
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  return all;
}

std::int64_t Arguments::integer(const std::string& flag) const {
  return read_number<std::int64_t>(flag, text(flag), "a whole number");
}

double Arguments::number(const std::string& flag) const {
  const auto value = read_number<double>(flag, text(flag), "a number");
  if (!std::isfinite(value)) refuse(flag, text(flag), "a finite number");
  return value;
}

Bytes Arguments::bytes(const std::string& flag) const {
  try {
    return parse_bytes(text(flag));
  } catch (const UsageError&) {
    refuse(flag, text(flag), "a number of bytes (write 6GiB, 512MiB or 4096)");
  }
}

}  // namespace lowtide
