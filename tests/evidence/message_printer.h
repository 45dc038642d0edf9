#pragma once
// Prints records in the forms of PyTorch's versions: what the reader is tested against. It repeats
// what the reader knows of the forms and of rounding on purpose: written from the messages, not
// from the reader, it is the reader's independent twin.

#include <string>
#include <vector>

#include "src/evidence/memory_message.h"

namespace lowtide {

// c10::format_size: two decimals and the unit; whole bytes up to 1024.
std::string print_size(Bytes bytes);

// The size that print_size() shows, with its rounding: what a reader can know of it.
PrintedBytes printed(Bytes bytes);

// One message, with a name for the test's output. The record is complete: reading the text back
// must give an equal one.
struct MadeMessage {
  std::string form;
  MemoryMessage record;
  std::string text;
};

// Every form, with sizes drawn from `seed`.
std::vector<MadeMessage> made_messages(unsigned seed);

}  // namespace lowtide
