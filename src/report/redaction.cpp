#include "src/report/redaction.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace lowtide {
namespace {

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool is_path(char c) {
  return is_name(c) || c == '/' || c == '\\' || c == '~' || c == '+' || c == '@';
}

constexpr std::uint32_t kUnset = 0xffffffffu;

// What a user's folder lies in.
constexpr std::array<std::string_view, 5> kHomes{"/home/", "/Users/", "\\Users\\", "/u/",
                                                 "/scratch/"};

// Where a path begins at `at`: "/x", "~/x", "C:\x", "C:/x".
bool path_begins(std::string_view text, std::size_t at) {
  const bool fresh =
      at == 0 || (!is_name(text[at - 1]) && text[at - 1] != '/' && text[at - 1] != ':' &&
                  text[at - 1] != '>' && text[at - 1] != '\\');
  if (!fresh) return false;
  if (text[at] == '~' && at + 1 < text.size() && text[at + 1] == '/') return true;
  if (text[at] == '/' && at + 1 < text.size() && is_name(text[at + 1])) {
    // A division or "and/or" has a word before it; one folder alone ("/dev") is a device.
    return true;
  }
  return at + 2 < text.size() && std::isalpha(static_cast<unsigned char>(text[at])) &&
         text[at + 1] == ':' && (text[at + 2] == '\\' || text[at + 2] == '/');
}

std::string short_path(std::string_view path) {
  if (path.starts_with("/dev/") || path.starts_with("/proc/")) return std::string(path);
  std::string text(path);
  std::replace(text.begin(), text.end(), '\\', '/');
  constexpr std::string_view kCompiled = "/torchinductor_";
  for (const std::string_view shared :
       {std::string_view("/site-packages/"), std::string_view("/dist-packages/"), kCompiled}) {
    const std::size_t at = text.rfind(shared);
    if (at == std::string::npos) continue;
    if (shared != kCompiled) return "<path>" + text.substr(at);
    // torchinductor_USER/ab/code.py
    const std::size_t user_end = text.find('/', at + shared.size());
    return "<path>/torchinductor" +
           (user_end == std::string::npos ? std::string() : text.substr(user_end));
  }
  return "<path>/" + text.substr(text.rfind('/') + 1);
}

// "node7.lab.example.org", "gpu-node-12", "ip-10-0-0-1": letters and digits around dots or dashes.
bool looks_like_host(std::string_view word) {
  if (word.size() < 5 || !std::isalpha(static_cast<unsigned char>(word[0]))) return false;
  const bool digit = std::any_of(
      word.begin(), word.end(), [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
  const bool domain = [&] {
    for (const std::string_view end :
         {".com", ".org", ".edu", ".net", ".local", ".internal", ".lan", ".cluster", ".io", ".de",
          ".uk", ".cn", ".ca", ".fr"}) {
      if (word.ends_with(end)) return true;
    }
    return false;
  }();
  if (domain && word != "pytorch.org" && !word.ends_with(".pytorch.org") && word != "github.com") {
    return true;
  }
  for (const std::string_view begin :
       {"node", "host", "worker-", "gpu-", "ip-", "compute-", "login"}) {
    if (word.starts_with(begin) && digit) return true;
  }
  return false;
}

bool is_address(std::string_view word) {
  int dots = 0;
  int run = 0;
  for (const char c : word) {
    if (c == '.') {
      if (run == 0) return false;
      ++dots;
      run = 0;
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      if (++run > 3) return false;
    } else {
      return false;
    }
  }
  return dots == 3 && run > 0;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    const bool begins = at == 0 || !is_name(text[at - 1]);
    const std::size_t end = at + from.size();
    const bool ends = end >= text.size() || !is_name(text[end]);
    if (begins && ends) {
      text.replace(at, from.size(), to);
    } else {
      at += from.size() > to.size() ? from.size() - to.size() : 0;
    }
  }
}

}  // namespace

void Redactor::learn(const Json& value) {
  if (value.is_string()) learn(std::string_view(value.as_string()));
  if (value.is_array()) {
    for (const Json& one : value.as_array()) learn(one);
  }
  if (value.is_object()) {
    for (const auto& [key, one] : value.as_object()) learn(one);
  }
}

void Redactor::learn(const Snapshot& snapshot) {
  for (std::uint32_t id = 0; id < snapshot.texts.size(); ++id) learn(snapshot.texts.view(id));
}

void Redactor::learn(std::string_view text) {
  for (const std::string_view home : kHomes) {
    for (std::size_t at = text.find(home); at != std::string_view::npos;
         at = text.find(home, at + 1)) {
      // Of an absolute path only: "/home/" within "src/home/page" is none, "C:\\Users\\" is one.
      if (at > 0 && home[0] == '/' && (is_name(text[at - 1]) || text[at - 1] == '~')) continue;
      std::size_t end = at + home.size();
      while (end < text.size() && is_name(text[end])) ++end;
      const std::string name(text.substr(at + home.size(), end - at - home.size()));
      // Short words and file names would take too much else with them.
      if (name.size() >= 3 && name.find('.') == std::string::npos &&
          std::find(users_.begin(), users_.end(), name) == users_.end()) {
        users_.push_back(name);
      }
    }
  }
}

std::string Redactor::path(std::string_view path) const {
  if (path.find_first_of("/\\") == std::string_view::npos) return text(path);
  std::string out = short_path(path);
  for (const std::string& user : users_) replace_all(out, user, "<user>");
  return out;
}

std::string Redactor::text(std::string_view text) const {
  std::string out;
  std::size_t i = 0;
  while (i < text.size()) {
    if (path_begins(text, i)) {
      std::size_t end = i + (text[i] == '/' || text[i] == '~' ? 1 : 3);
      while (end < text.size() && is_path(text[end])) ++end;
      const std::string_view path = text.substr(i, end - i);
      if (std::count_if(path.begin(), path.end(), [](char c) { return c == '/' || c == '\\'; }) >
              1 ||
          text[i] != '/') {
        out += short_path(path);
        i = end;
        continue;
      }
    }
    if (is_name(text[i]) && (i == 0 || !is_name(text[i - 1]))) {
      std::size_t end = i;
      while (end < text.size() && is_name(text[end])) ++end;
      std::string_view word = text.substr(i, end - i);
      while (!word.empty() && word.back() == '.') word.remove_suffix(1);
      if (end < text.size() && text[end] == '@') {
        std::size_t host = end + 1;
        while (host < text.size() && is_name(text[host])) ++host;
        if (host > end + 1) {
          out += "<user>@<host>";
          i = host;
          continue;
        }
      }
      if (is_address(word)) {
        out += "<address>";
        i += word.size();
        continue;
      }
      if (looks_like_host(word) && !word.ends_with(".py")) {
        out += "<host>";
        i += word.size();
        continue;
      }
      out += text.substr(i, end - i);
      i = end;
      continue;
    }
    out += text[i++];
  }
  for (const std::string& user : users_) replace_all(out, user, "<user>");
  return out;
}

Json Redactor::json(const Json& value) const {
  if (value.is_string()) return text(value.as_string());
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& one : value.as_array()) out.push_back(json(one));
    return out;
  }
  if (value.is_object()) {
    Json out = Json::object();
    for (const auto& [key, one] : value.as_object()) out[key] = json(one);
    return out;
  }
  return value;
}

void redact(Snapshot& snapshot) {
  Redactor redactor;
  redactor.learn(snapshot);
  TextPool clean;
  clean.intern("");
  // Ids change, since two files can become one name. Most texts are of one sort only.
  std::vector<std::uint32_t> files(snapshot.texts.size(), kUnset);
  std::vector<std::uint32_t> others(snapshot.texts.size(), kUnset);
  const auto as_file = [&](std::uint32_t id) {
    if (files[id] == kUnset) files[id] = clean.intern(redactor.path(snapshot.texts.view(id)));
    return files[id];
  };
  // "node2_forward" is a function, not a machine.
  const auto as_is = [&](std::uint32_t id) { return clean.intern(snapshot.texts.view(id)); };
  const auto as_text = [&](std::uint32_t id) {
    if (others[id] == kUnset) others[id] = clean.intern(redactor.text(snapshot.texts.view(id)));
    return others[id];
  };
  for (SnapshotFrame& frame : snapshot.frames) {
    frame.file = as_file(frame.file);
    frame.function = as_is(frame.function);
  }
  for (SnapshotAnnotation& annotation : snapshot.annotations) {
    annotation.name = as_text(annotation.name);
    annotation.stage = as_text(annotation.stage);
  }
  snapshot.texts = std::move(clean);
  snapshot.name = redactor.path(snapshot.name);
  snapshot.refusal = redactor.text(snapshot.refusal);
  snapshot.settings.configuration = redactor.text(snapshot.settings.configuration);
}

}  // namespace lowtide
