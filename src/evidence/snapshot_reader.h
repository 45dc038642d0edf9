#pragma once
// From a pickle to a Snapshot.

#include <string>

#include "src/evidence/pickle_reader.h"
#include "src/evidence/snapshot.h"

namespace lowtide {

// Throws IoError (LT0710) when the file cannot be read, and FormatError: LT0711 to LT0714 as
// read_pickle does, LT0715 when the pickle is sound but no snapshot, or has impossible numbers.
// Linear; about 40 bytes an event are kept, and stacks once each.
Snapshot read_snapshot(const std::string& path);
Snapshot read_snapshot(ByteSource& source);

}  // namespace lowtide
