#pragma once
// From the words of a command line to a verb and its arguments, by the verb's table.

#include <string>
#include <vector>

#include "cli/verb.h"

namespace lowtide {

// Reads `arguments` (after the verb) by the verb's table.
// Throws UsageError (LT0703) with a hint for unknown flags, missing or surplus words, values that
// are not among the choices.
Arguments parse_arguments(const Verb& verb, const std::vector<std::string>& arguments);

// Where the words begin that are no flags of the verb's, whatever they look like: after "--", and
// for a verb that passes its words on at the first one.
std::size_t end_of_flags(const Verb& verb, const std::vector<std::string>& arguments);

// Throws UsageError (LT0704) with the nearest verb for an unknown one.
const Verb& find_verb(const std::string& name);

// The help of one verb and of the program; at most 80 columns.
std::string help_text(const Verb& verb);
std::string program_help_text();

}  // namespace lowtide
