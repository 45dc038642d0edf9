#pragma once
// The part of the command line that needs libtorch, loaded when a verb first asks for it.

#include <optional>
#include <string>

#include "cli/verb.h"

namespace lowtide {

// The address of the module's entry point `name` (defined in cli/torch/<verb>.cpp).
// Throws TorchError (LT0701), with the loader's own words and the way to get torch, when the module
// or the libtorch that it was built for cannot be loaded.
void* torch_module_entry(const std::string& name);

// Runs a verb's entry point, `int name(const Arguments&)`.
int run_in_torch_module(const std::string& name, const Arguments& arguments);

// What the loader says when the module cannot be loaded; nothing when it can.
std::optional<std::string> torch_module_problem();

}  // namespace lowtide
