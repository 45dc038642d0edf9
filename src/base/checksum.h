#pragma once
// A 64-bit checksum (XXH3, xxhash) as fast as memory is read: tells whether bytes changed, not who
// changed them on purpose. The same on every machine.

#include <cstddef>
#include <cstdint>

#include "lowtide/export.h"

namespace lowtide {

LOWTIDE_API std::uint64_t checksum(const void* data, std::size_t bytes) noexcept;

}  // namespace lowtide
