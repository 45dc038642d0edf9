// libFuzzer's entry point. Built by scripts/fuzz with clang.

#include <cstdlib>

#include "fuzz/message_reader_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (!lowtide::run_message_reader(data, size)) std::abort();
  return 0;
}
