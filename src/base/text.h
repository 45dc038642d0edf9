#pragma once
// Small text building for messages: concat("layer ", 3, " of ", n).

#include <sstream>
#include <string>

namespace lowtide {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace lowtide
