#pragma once
// Words as small numbers: equal words have equal numbers, and comparing them costs nothing.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lowtide::lint {

using Name = std::uint32_t;  // 0 is the empty word

class Names {
 public:
  Names() { intern(""); }
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;

  Name intern(std::string_view word) {
    if (const auto found = ids_.find(word); found != ids_.end()) return found->second;
    const std::string& kept = words_.emplace_back(word);
    return ids_.emplace(kept, static_cast<Name>(words_.size() - 1)).first->second;
  }
  const std::string& text(Name name) const { return words_[name]; }

 private:
  std::deque<std::string> words_;  // never moves what it holds
  std::unordered_map<std::string_view, Name> ids_;
};

}  // namespace lowtide::lint
