#include "tests/evidence/real_snapshots.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace lowtide {

std::vector<std::string> real_snapshots() {
  const char* given = std::getenv("LOWTIDE_SNAPSHOTS");
  const std::filesystem::path folder =
      given != nullptr ? given
                       : std::filesystem::path(LOWTIDE_SOURCE_DIR) / "../shared/data/snapshots";
  std::vector<std::string> paths;
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    const std::string extension = entry.path().extension();
    if (extension == ".pickle" || extension == ".pkl") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    std::printf("skipped: no real snapshots in %s; name a folder in LOWTIDE_SNAPSHOTS\n",
                folder.c_str());
  }
  return paths;
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace lowtide
