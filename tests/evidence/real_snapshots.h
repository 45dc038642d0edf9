#pragma once
// Real snapshots, where there are some: they are not part of the project.

#include <string>
#include <vector>

namespace lowtide {

// The snapshots in LOWTIDE_SNAPSHOTS, or in ../shared/data/snapshots beside the project. Says so on
// standard output when there are none.
std::vector<std::string> real_snapshots();
std::string read_bytes(const std::string& path);

}  // namespace lowtide
