#include "src/lint/vocabulary.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <unordered_map>
#include <unordered_set>

namespace lowtide::lint {
namespace {

using Set = std::unordered_set<std::string_view>;

const std::unordered_map<std::string_view, MethodRole>& methods() {
  static const auto* const table = [] {
    auto* out = new std::unordered_map<std::string_view, MethodRole>;
    const auto put = [&](MethodRole role, std::initializer_list<std::string_view> words) {
      for (const std::string_view word : words) (*out)[word] = role;
    };
    put(MethodRole::kCut, {"item",
                           "tolist",
                           "numpy",
                           "argmax",
                           "argmin",
                           "argsort",
                           "eq",
                           "ne",
                           "gt",
                           "lt",
                           "ge",
                           "le",
                           "equal",
                           "allclose",
                           "isnan",
                           "isinf",
                           "isfinite",
                           "bool",
                           "long",
                           "int",
                           "byte",
                           "short",
                           "nonzero",
                           "size",
                           "dim",
                           "numel",
                           "ndimension",
                           "is_cuda",
                           "any",
                           "all",
                           "data_ptr",
                           "element_size",
                           "stride",
                           "nelement",
                           "sign",
                           "bincount",
                           "histc",
                           "unique",
                           "multinomial",
                           "bernoulli",
                           "new_zeros",
                           "new_ones",
                           "new_full",
                           "new_tensor",
                           "new_empty",
                           "get_device",
                           "is_contiguous",
                           "type_as_index",
                           "logical_not",
                           "logical_and",
                           "logical_or",
                           "count_nonzero",
                           "isclose",
                           "__len__",
                           "isin",
                           "randint_like"});
    put(MethodRole::kDetach, {"detach", "stop_gradient"});
    put(MethodRole::kDetachInPlace, {"detach_"});
    put(MethodRole::kPair, {"topk", "sort", "kthvalue", "mode", "cummax", "cummin"});
    put(MethodRole::kReduce, {"mean", "sum", "norm", "prod", "std", "var", "logsumexp", "dist"});
    put(MethodRole::kInPlace,
        {"add_",         "sub_",     "mul_",        "div_",       "copy_",
         "lerp_",        "addcmul_", "addcdiv_",    "set_",       "clamp_",
         "addmm_",       "pow_",     "index_copy_", "index_add_", "scatter_",
         "masked_fill_", "baddbmm_", "neg_",        "sqrt_",      "masked_scatter_",
         "index_put_"});
    put(MethodRole::kAppend, {"append", "appendleft", "add", "put", "put_nowait", "insert"});
    put(MethodRole::kExtend, {"extend", "extendleft", "update"});
    put(MethodRole::kRemove, {"pop", "popleft", "popitem", "remove", "discard"});
    put(MethodRole::kClear, {"clear"});
    put(MethodRole::kLookUp, {"get", "setdefault"});
    put(MethodRole::kBackward, {"backward", "manual_backward"});
    put(MethodRole::kModuleQuiet,
        {"train", "eval", "to", "cuda", "cpu", "parameters", "named_parameters", "buffers",
         "named_buffers", "state_dict", "load_state_dict", "zero_grad", "requires_grad_",
         "children", "named_children", "modules", "named_modules", "apply", "half", "float",
         "double", "bfloat16", "share_memory", "save_pretrained", "push_to_hub",
         "register_forward_hook", "register_forward_pre_hook", "register_buffer",
         "register_parameter", "register_backward_hook", "register_full_backward_hook",
         "add_module", "compile", "freeze", "unfreeze", "gradient_checkpointing_enable", "save",
         "load", "no_sync", "init_weights", "type", "reset_parameters", "_init_weights",
         "initialize", "summary", "get_parameter", "get_submodule", "save_checkpoint", "extra_repr",
         "xpu", "ipu", "print_trainable_parameters", "resize_token_embeddings",
         "get_input_embeddings", "tie_weights", "load_weights", "flatten_parameters",
         // These run the module under no_grad themselves.
         "generate", "sample_no_grad"});
    put(MethodRole::kModuleRun, {"forward",
                                 "encode",
                                 "decode",
                                 "loss",
                                 "compute_loss",
                                 "forward_features",
                                 "forward_train",
                                 "get_loss",
                                 "calculate_loss",
                                 "nll",
                                 "elbo",
                                 "log_likelihood",
                                 "reconstruct",
                                 "embed",
                                 "training_step",
                                 "shared_step",
                                 "_step",
                                 "forward_head",
                                 "extract_features",
                                 "get_features",
                                 "encode_image",
                                 "encode_text",
                                 "evaluate_actions",
                                 "score"});
    return out;
  }();
  return *table;
}

const Set& cut_functions() {
  static const auto* const set = new Set{"argmax",      "argmin",      "argsort",
                                         "eq",          "ne",          "gt",
                                         "lt",          "ge",          "le",
                                         "equal",       "allclose",    "isnan",
                                         "isinf",       "isfinite",    "is_tensor",
                                         "numel",       "nonzero",     "sign",
                                         "bincount",    "histc",       "unique",
                                         "multinomial", "bernoulli",   "save",
                                         "one_hot",     "manual_seed", "is_grad_enabled",
                                         "any",         "all",         "count_nonzero",
                                         "isclose",     "logical_and", "logical_or",
                                         "logical_not"};
  return *set;
}

const Set& create_functions() {
  static const auto* const set = new Set{
      "zeros",      "ones",          "randn",      "rand",         "empty",        "full",
      "tensor",     "arange",        "eye",        "linspace",     "randint",      "randperm",
      "from_numpy", "as_tensor",     "load",       "zeros_like",   "ones_like",    "randn_like",
      "rand_like",  "empty_like",    "full_like",  "normal",       "FloatTensor",  "LongTensor",
      "Tensor",     "IntTensor",     "BoolTensor", "ByteTensor",   "DoubleTensor", "HalfTensor",
      "device",     "Generator",     "logspace",   "tril_indices", "triu_indices", "complex",
      "frombuffer", "scalar_tensor", "Size",       "finfo",        "iinfo"};
  return *set;
}

const Set& pair_functions() {
  static const auto* const set = new Set{"topk", "sort", "kthvalue", "mode", "cummax", "cummin"};
  return *set;
}

bool has_any(const std::vector<std::string>& words, const Set& set) {
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& word) { return set.count(word) != 0; });
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> out;
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) out.push_back(std::move(word));
    word.clear();
  };
  for (std::size_t i = 0; i < name.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(name[i]);
    if (!std::isalpha(c)) {
      finish();
      continue;
    }
    if (std::isupper(c)) {
      const bool after_lower = i > 0 && std::islower(static_cast<unsigned char>(name[i - 1]));
      const bool before_lower = i > 0 && i + 1 < name.size() &&
                                std::isupper(static_cast<unsigned char>(name[i - 1])) &&
                                std::islower(static_cast<unsigned char>(name[i + 1]));
      if (after_lower || before_lower) finish();
    }
    word += static_cast<char>(std::tolower(c));
  }
  finish();
  return out;
}

MethodRole Vocabulary::method(Name name) {
  if (name >= methods_.size()) methods_.resize(name + 64, 0xff);
  if (methods_[name] == 0xff) {
    const auto found = methods().find(names_.text(name));
    methods_[name] =
        static_cast<std::uint8_t>(found != methods().end() ? found->second : MethodRole::kOther);
  }
  return static_cast<MethodRole>(methods_[name]);
}

FunctionRole Vocabulary::torch_function(std::string_view word) const {
  static const auto* const join_up =
      new Set{"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"};
  static const auto* const arithmetic =
      new Set{"add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "maximum", "minimum"};
  if (cut_functions().count(word)) return FunctionRole::kCut;
  if (create_functions().count(word)) return FunctionRole::kCreate;
  if (pair_functions().count(word)) return FunctionRole::kPair;
  if (join_up->count(word)) return FunctionRole::kJoinUp;
  if (arithmetic->count(word)) return FunctionRole::kArithmetic;
  return FunctionRole::kOther;
}

std::uint16_t Vocabulary::traits(Name name) {
  if (name >= traits_.size()) traits_.resize(name + 64, 0);
  if (traits_[name] != 0) return traits_[name];
  static const auto* const module = new Set{
      "model",      "models",     "net",           "nets",        "network",     "encoder",
      "decoder",    "generator",  "discriminator", "critic",      "actor",       "policy",
      "backbone",   "classifier", "module",        "student",     "teacher",     "rnn",
      "lstm",       "gru",        "cell",          "vae",         "gan",         "unet",
      "resnet",     "vgg",        "bert",          "gpt",         "transformer", "mlp",
      "cnn",        "extractor",  "qnet",          "autoencoder", "regressor",   "segmenter",
      "detector",   "embedder",   "predictor",     "ddp",         "vit",         "clip",
      "lm",         "llm",        "netd",          "netg",        "denoiser",    "embedding",
      "head",       "layer",      "conv",          "fc",          "linear",      "proj",
      "engine",     "seq2seq",    "featurizer",    "inception",   "lpips",       "projector",
      "tower",      "trunk",      "dqn",           "wrapper",     "enc",         "dec",
      "disc",       "gen",        "encoders",      "decoders",    "critics",     "actors",
      "generators", "rssm",       "experts"};
  static const auto* const loss =
      new Set{"loss", "losses", "criterion", "criteria", "crit",    "objective", "nll",
              "bce",  "mse",    "elbo",      "kld",      "penalty", "cost",      "ce"};
  static const auto* const metric = new Set{
      "accuracy",  "items",       "stats",    "logs",      "acc",       "metric",  "metrics",
      "score",     "f1",          "iou",      "auc",       "psnr",      "ssim",    "print",
      "log",       "plot",        "save",     "write",     "show",      "count",   "correct",
      "precision", "recall",      "bleu",     "wer",       "cer",       "render",  "draw",
      "dump",      "str",         "format",   "numpy",     "np",        "info",    "debug",
      "warning",   "error",       "evaluate", "evaluator", "visualize", "summary", "record",
      "topk",      "postprocess", "nms",      "assert",    "clip",      "lr",      "schedule",
      "seed",      "barrier",     "item",     "display",   "imshow",    "report",  "confusion",
      "json",      "hash",        "decode",   "tokenize",  "tokenizer", "len",     "logger",
      "epoch",     "progress",    "timer",    "time",      "check",     "is",      "has",
      "num"};
  static const auto* const optimizer = new Set{
      "optimizer", "optim", "opt", "optimiser", "optimizers", "opts", "adam", "sgd", "solver"};
  static const auto* const loader = new Set{
      "loader", "loaders",    "dataloader",  "dataloaders", "dl",       "batches", "dataset",
      "data",   "prefetcher", "minibatches", "iterator",    "stream",   "iter",    "dls",
      "ds",     "episodes",   "samples",     "images",      "sequences"};
  static const auto* const evaluation =
      new Set{"eval",        "evaluate", "evaluation", "evaluating", "validate", "validation",
              "val",         "valid",    "test",       "testing",    "predict",  "prediction",
              "predictions", "infer",    "inference",  "evaluator"};
  static const auto* const teacher = new Set{"teacher",   "target", "targets",  "ema",       "ref",
                                             "reference", "frozen", "momentum", "pretrained"};
  static const auto* const environment =
      new Set{"env", "envs", "environment", "game", "simulator", "venv", "gym"};
  const std::string& text = names_.text(name);
  const std::vector<std::string> words = words_of(text);
  std::uint16_t out = kKnown;
  if (!words.empty()) {
    const std::string& last = words.back();
    const bool single_capital = text == "G" || text == "D" || text == "F" || text == "E";
    const bool letter_suffix = words.size() > 1 && last.size() == 1;
    const std::string& main = letter_suffix ? words[words.size() - 2] : last;
    if (has_any(words, *module) || (single_capital && text != "F" && text != "E") ||
        ends_with(main, "net") || ends_with(main, "former") || ends_with(main, "model")) {
      out |= kModule;
    }
    if (has_any(words, *loss) || ends_with(main, "loss")) out |= kLoss;
    if (has_any(words, *metric)) out |= kMetric;
    static const auto* const densities = new Set{"prob", "probs", "likelihood", "softmax"};
    if (has_any(words, *densities)) out &= static_cast<std::uint16_t>(~kMetric);
    if (has_any(words, *optimizer) || ends_with(main, "optimizer")) out |= kOptimizer;
    if (loader->count(main) || ends_with(main, "loader")) out |= kLoader;
    if (has_any(words, *evaluation)) out |= kEvaluation;
    if (has_any(words, *teacher)) out |= kTeacher;
    if (environment->count(main)) out |= kEnvironment;
    if (has_any(words, *loss)) out &= static_cast<std::uint16_t>(~kModule);
    // What makes, names or describes the thing is not the thing.
    static const auto* const about =
        new Set{"tokenizer", "tokenizers", "processor", "cls",       "class",  "type", "factory",
                "builder",   "config",     "cfg",       "name",      "names",  "path", "dir",
                "id",        "ids",        "size",      "sizes",     "kwargs", "args", "dict",
                "params",    "key",        "keys",      "fn",        "dim",    "dims", "options",
                "file",      "url",        "state",     "scheduler", "card"};
    static const auto* const functions =
        new Set{"value", "q", "policy", "actor", "critic", "energy", "denoise", "forward", "apply"};
    static const auto* const verbs =
        new Set{"get",    "build",  "make",    "create",  "load",  "init",     "save",     "set",
                "unwrap", "wrap",   "prepare", "convert", "push",  "download", "register", "add",
                "remove", "export", "compile", "replace", "find",  "select",   "setup",    "print",
                "count",  "check",  "is",      "has",     "reset", "clear",    "num"};
    if (words.size() > 1 && verbs->count(words[0]) != 0) {
      out &= static_cast<std::uint16_t>(~kModule);
    }
    if (last == "fn" && functions->count(words[0]) != 0) {
      out |= kModule;
    } else if (about->count(last) != 0) {
      out &= static_cast<std::uint16_t>(~(kModule | kOptimizer | kLoader));
    }
  }
  return traits_[name] = out;
}

}  // namespace lowtide::lint
