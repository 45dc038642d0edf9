#include "cli/torch_module.h"

#include <dlfcn.h>

#include <filesystem>

#include "lowtide/error.h"
#include "src/base/assert.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

struct LoadedModule {
  void* handle = nullptr;
  std::string problem;
};

const LoadedModule& load() {
  static const LoadedModule loaded = [] {
    LoadedModule module;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
    const std::filesystem::path file =
        program.parent_path() / LOWTIDE_MODULE_DIR_FROM_BIN / "lowtide_torch_verbs.so";
    module.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (module.handle == nullptr) module.problem = dlerror();
    return module;
  }();
  return loaded;
}

}  // namespace

std::optional<std::string> torch_module_problem() {
  if (load().handle != nullptr) return std::nullopt;
  return load().problem;
}

void* torch_module_entry(const std::string& name) {
  if (const auto problem = torch_module_problem()) {
    throw TorchError("LT0701", concat("cannot load libtorch " LOWTIDE_TORCH_VERSION
                                      ", which this command needs: ",
                                      *problem,
                                      ". Install it with: pip install torch==" LOWTIDE_TORCH_VERSION
                                      ", or see: lowtide doctor"));
  }
  void* entry = dlsym(load().handle, name.c_str());
  LOWTIDE_ASSERT(entry != nullptr);
  return entry;
}

int run_in_torch_module(const std::string& name, const Arguments& arguments) {
  auto* entry = reinterpret_cast<int (*)(const Arguments&)>(torch_module_entry(name));
  return entry(arguments);
}

}  // namespace lowtide
