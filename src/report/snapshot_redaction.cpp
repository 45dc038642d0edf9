#include "src/report/snapshot_redaction.h"

#include <algorithm>
#include <array>

namespace lowtide {

std::string redacted_path(std::string_view path) {
  std::string text(path);
  std::replace(text.begin(), text.end(), '\\', '/');
  if (text.find('/') == std::string::npos) return std::string(path);
  constexpr std::array<std::string_view, 3> kShared{"/site-packages/", "/dist-packages/",
                                                    "/torchinductor_"};
  for (const std::string_view shared : kShared) {
    const std::size_t at = text.rfind(shared);
    if (at == std::string::npos) continue;
    if (shared != kShared.back()) return "..." + text.substr(at);
    // torchinductor_USER/ab/code.py
    const std::size_t user_end = text.find('/', at + shared.size());
    if (user_end != std::string::npos) return ".../torchinductor" + text.substr(user_end);
  }
  return "..." + text.substr(text.rfind('/'));
}

void redact(Snapshot& snapshot) {
  TextPool clean;
  clean.intern("");
  // Ids change, since two files can become one name.
  std::vector<std::uint32_t> as_path(snapshot.texts.size());
  std::vector<std::uint32_t> as_is(snapshot.texts.size());
  for (std::uint32_t id = 0; id < snapshot.texts.size(); ++id) {
    as_path[id] = clean.intern(redacted_path(snapshot.texts.view(id)));
    as_is[id] = clean.intern(snapshot.texts.view(id));
  }
  for (SnapshotFrame& frame : snapshot.frames) {
    frame.file = as_path[frame.file];
    frame.function = as_is[frame.function];
  }
  for (SnapshotAnnotation& annotation : snapshot.annotations) {
    annotation.name = as_is[annotation.name];
    annotation.stage = as_is[annotation.stage];
  }
  snapshot.texts = std::move(clean);
  snapshot.name = redacted_path(snapshot.name);
}

}  // namespace lowtide
