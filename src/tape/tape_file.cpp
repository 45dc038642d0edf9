#include "src/tape/tape_file.h"

#include <array>

#include "lowtide/error.h"
#include "src/tape/tape_bytes.h"
#include "src/tape/tape_text.h"

namespace lowtide {
namespace {

struct TapeForm {
  std::string_view begin;  // of every file of this form, whatever its version
  Tape (*parse)(std::string_view bytes);
};

// A further form is a line here.
constexpr std::array kForms{
    TapeForm{"lowtide-tape ", parse_tape_text},
    TapeForm{"lt-tape\n", [](std::string_view bytes) { return parse_tape_bytes(bytes); }},
};

const TapeForm* form_of(std::string_view head) {
  for (const TapeForm& form : kForms) {
    if (head.starts_with(form.begin)) return &form;
  }
  return nullptr;
}

}  // namespace

bool is_tape(std::string_view head) { return form_of(head) != nullptr; }

Tape parse_tape(std::string_view bytes) {
  const TapeForm* form = form_of(bytes);
  if (form == nullptr) {
    throw FormatError(
        "LT0140", "these bytes are no tape: none of its forms begins so. Record the step again");
  }
  return form->parse(bytes);
}

}  // namespace lowtide
