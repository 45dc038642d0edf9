#pragma once
// A directory for spill files, for the tests of one program; gone when it ends.

#include <string>

#include "tests/train/temporary_folder.h"

namespace lowtide {

inline std::string spill_directory() {
  static const TemporaryFolder folder;
  return folder.path().string();
}

}  // namespace lowtide
