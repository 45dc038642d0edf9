#pragma once
// What names mean: the methods and functions of torch by what they do to history, and the words by
// which programs call their models, losses, optimizers and loaders.
//
// A name decides only where the code behind it is not in the file. Answers are remembered a name.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/lint/names.h"

namespace lowtide::lint {

enum class MethodRole : std::uint8_t {
  kOther,
  kCut,            // item, tolist, eq, argmax, ...: the result has no history
  kDetach,         // detach
  kDetachInPlace,  // detach_
  kPair,           // max(dim), topk, sort: values with history, indices without
  kReduce,         // mean, sum, norm: history, but small
  kInPlace,        // add_, copy_, lerp_, ...: arithmetic that writes
  kAppend,         // append, add, appendleft, put
  kExtend,
  kRemove,  // pop, popleft, popitem
  kClear,
  kLookUp,  // get, setdefault
  kBackward,
  kModuleQuiet,  // train, to, state_dict, ...: of modules, runs nothing
  kModuleRun,    // forward, encode, ...
};

enum class FunctionRole : std::uint8_t {
  kOther,   // history passes through
  kCreate,  // zeros, randn, ...: a new tensor without history
  kCut,
  kPair,
  kJoinUp,      // cat, stack, hstack
  kArithmetic,  // add, sub, lerp
};

class Vocabulary {
 public:
  explicit Vocabulary(Names& names) : names_(names) {}

  MethodRole method(Name name);
  // For a function of torch, by the last word of its path.
  FunctionRole torch_function(std::string_view last_word) const;

  bool like_module(Name name) { return traits(name) & kModule; }
  bool like_loss(Name name) { return traits(name) & kLoss; }
  bool like_metric(Name name) { return traits(name) & kMetric; }
  bool like_optimizer(Name name) { return traits(name) & kOptimizer; }
  bool like_loader(Name name) { return traits(name) & kLoader; }
  bool like_evaluation(Name name) { return traits(name) & kEvaluation; }
  bool like_teacher(Name name) { return traits(name) & kTeacher; }
  bool like_environment(Name name) { return traits(name) & kEnvironment; }

 private:
  enum Trait : std::uint16_t {
    kKnown = 1,
    kModule = 2,
    kLoss = 4,
    kMetric = 8,
    kOptimizer = 16,
    kLoader = 32,
    kEvaluation = 64,
    kTeacher = 128,
    kEnvironment = 256,
  };
  std::uint16_t traits(Name name);

  Names& names_;
  std::vector<std::uint16_t> traits_;
  std::vector<std::uint8_t> methods_;
};

// "netG_A" -> net, g, a; "trainLoader2" -> train, loader.
std::vector<std::string> words_of(std::string_view name);

}  // namespace lowtide::lint
