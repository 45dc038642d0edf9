#include "src/evidence/traceback.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>

namespace lowtide {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_identifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::uint64_t number_at(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// A function's name, with what Python puts around some: "<module>", "Foo.bar", "bar(self, x)".
std::string function_name(std::string_view text) {
  text = trimmed(text);
  std::size_t end = 0;
  while (end < text.size() &&
         (is_identifier(text[end]) || text[end] == '.' || text[end] == '<' || text[end] == '>')) {
    ++end;
  }
  return std::string(text.substr(0, end));
}

bool has_source_suffix(std::string_view file) {
  return file.ends_with(".py") || file.ends_with(".pyx") || file.ends_with(".ipynb") ||
         file.find("<ipython-input-") != std::string_view::npos;
}

// `File "x.py", line 3, in f`.
std::optional<Frame> python_frame(std::string_view text) {
  const std::size_t begin = text.find("File \"");
  if (begin == std::string_view::npos || begin > 8) return std::nullopt;
  const std::size_t name = begin + 6;
  const std::size_t quote = text.find('"', name);
  if (quote == std::string_view::npos) return std::nullopt;
  const std::size_t line = text.find("line ", quote);
  if (line == std::string_view::npos || line > quote + 4) return std::nullopt;
  Frame frame;
  frame.file.assign(text.substr(name, quote - name));
  frame.line = number_at(text.substr(line + 5));
  const std::size_t in = text.find(", in ", line);
  if (in != std::string_view::npos) frame.function = function_name(text.substr(in + 5));
  return frame;
}

// "path.py in f(x)", "File ~/path.py:12, in f(x)", "Cell In[5], line 3", "Input In [5], in <cell
// ...>", of IPython.
std::optional<Frame> notebook_frame(std::string_view text) {
  if (text.starts_with("Cell In") || text.starts_with("Input In")) {
    Frame frame;
    const std::size_t comma = text.find(',');
    frame.file.assign(text.substr(0, comma));
    const std::size_t line = text.find("line ");
    if (line != std::string_view::npos) frame.line = number_at(text.substr(line + 5));
    const std::size_t in = text.find(", in ");
    if (in != std::string_view::npos) frame.function = function_name(text.substr(in + 5));
    return frame;
  }
  if (text.starts_with("File ") && !text.starts_with("File \"")) {
    const std::size_t in = text.find(", in ");
    std::string_view place = text.substr(5, in == std::string_view::npos ? in : in - 5);
    const std::size_t colon = place.rfind(':');
    if (colon == std::string_view::npos || !has_source_suffix(place.substr(0, colon))) {
      return std::nullopt;
    }
    Frame frame;
    frame.file.assign(trimmed(place.substr(0, colon)));
    frame.line = number_at(place.substr(colon + 1));
    if (in != std::string_view::npos) frame.function = function_name(text.substr(in + 5));
    return frame;
  }
  const std::size_t in = text.find(" in ");
  if (in == std::string_view::npos || in > 400) return std::nullopt;
  std::string_view place = text.substr(0, in);
  Frame frame;
  const std::size_t colon = place.rfind(':');
  // rich: "/path/file.py:12 in f"
  if (colon != std::string_view::npos && colon + 1 < place.size() && is_digit(place[colon + 1])) {
    frame.line = number_at(place.substr(colon + 1));
    place = place.substr(0, colon);
  }
  if (place.find(' ') != std::string_view::npos && place.find(":\\") == std::string_view::npos) {
    return std::nullopt;
  }
  if (!has_source_suffix(place)) return std::nullopt;
  frame.file.assign(place);
  frame.function = function_name(text.substr(in + 4));
  return frame;
}

// pytest: "path/file.py:12: in f", "path/file.py:12: RuntimeError".
std::optional<Frame> pytest_frame(std::string_view text) {
  const std::size_t suffix = text.find(".py:");
  if (suffix == std::string_view::npos || suffix > 300 ||
      text.substr(0, suffix).find(' ') != std::string_view::npos) {
    return std::nullopt;
  }
  std::size_t end = suffix + 4;
  while (end < text.size() && is_digit(text[end])) ++end;
  if (end == suffix + 4 || end >= text.size() || text[end] != ':') return std::nullopt;
  Frame frame;
  frame.file.assign(text.substr(0, suffix + 3));
  frame.line = number_at(text.substr(suffix + 4));
  const std::string_view rest = text.substr(end + 1);
  if (rest.starts_with(" in ")) {
    frame.function = function_name(rest.substr(4));
  } else if (!rest.empty() && rest.find("Error") == std::string_view::npos) {
    return std::nullopt;  // a compiler's or a logger's place
  }
  return frame;
}

std::optional<Frame> frame_at(std::string_view text) {
  if (const auto frame = python_frame(text)) return frame;
  if (const auto frame = notebook_frame(text)) return frame;
  return pytest_frame(text);
}

// "torch.cuda.OutOfMemoryError: CUDA out of memory. ..." -> class and message.
bool exception_at(std::string_view text, std::string& name, std::string& message) {
  std::size_t end = 0;
  while (end < text.size() && (is_identifier(text[end]) || text[end] == '.')) ++end;
  if (end < 4 || end > 120) return false;
  const std::string_view word = text.substr(0, end);
  const bool named = word.ends_with("Error") || word.ends_with("Exception") ||
                     word.ends_with("Interrupt") || word.ends_with("SystemExit") ||
                     word.ends_with("StopIteration") || word.ends_with("Failure");
  if (!named || !std::isalpha(static_cast<unsigned char>(word[0]))) return false;
  std::string_view rest = text.substr(end);
  // IPython: "RuntimeError             Traceback (most recent call last)"
  if (rest.find("Traceback (most recent") != std::string_view::npos) return false;
  if (!rest.empty() && rest[0] != ':') return false;
  name.assign(word);
  message.assign(trimmed(rest.empty() ? rest : rest.substr(1)));
  return true;
}

// IPython's "---> 73  code" and rich's "> 566 | code": the line that ran.
std::optional<std::string> marked_code(std::string_view text) {
  std::size_t i = 0;
  if (text.starts_with("--")) {
    while (i < text.size() && text[i] == '-') ++i;
    if (i >= text.size() || text[i] != '>') return std::nullopt;
    ++i;
  } else if (text.starts_with(">")) {
    ++i;
  } else {
    return std::nullopt;
  }
  while (i < text.size() && text[i] == ' ') ++i;
  if (i >= text.size() || !is_digit(text[i])) return std::nullopt;
  while (i < text.size() && is_digit(text[i])) ++i;
  return std::string(trimmed(text.substr(i)));
}

bool contains(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string with_slashes(std::string_view file) {
  std::string out(file);
  std::replace(out.begin(), out.end(), '\\', '/');
  return out;
}

// A name that says that a function evaluates: whole words in snake_case or CamelCase only, so that
// "latest" and "contest" do not count.
bool names_evaluation(const std::string& function) {
  const std::string name = lower(function);
  constexpr std::array<std::string_view, 18> kWords{
      "eval",       "evaluate", "evaluation", "validate",  "validation", "valid",
      "val",        "test",     "predict",    "inference", "infer",      "evaluator",
      "prediction", "testing",  "evaluating", "demo",      "sample",     "validating"};
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= name.size(); ++i) {
    if (i < name.size() && std::isalnum(static_cast<unsigned char>(name[i]))) continue;
    const std::string_view word = std::string_view(name).substr(begin, i - begin);
    if (std::find(kWords.begin(), kWords.end(), word) != kWords.end()) return true;
    begin = i + 1;
  }
  return false;
}

bool names_loss(const std::string& function, const std::string& code) {
  const std::string name = lower(function);
  return contains(name, "cross_entropy") || contains(name, "nll_loss") ||
         contains(name, "log_softmax") || contains(name, "criterion") ||
         contains(name, "logprob") || contains(name, "log_prob") ||
         contains(code, "cross_entropy") || contains(code, "log_softmax(") ||
         contains(code, "criterion(") || contains(code, "loss_fct(") || contains(code, "loss_fn(");
}

Phase phase_of(const Frame& frame) {
  const std::string file = with_slashes(frame.file);
  const std::string& function = frame.function;
  const std::string& code = frame.code;
  const auto in = [&file](std::string_view part) { return contains(file, part); };

  // C++ without a file, as snapshots name it.
  if (contains(function, "torch::optim::") && contains(function, "::step")) {
    return Phase::kOptimizerStep;
  }
  if (contains(function, "torch::autograd::Engine::")) return Phase::kBackward;
  if (contains(function, "torch::jit::load") || contains(function, "torch::load")) {
    return Phase::kLoading;
  }
  if (in("torch/cuda/graphs.py") || contains(code, "capture_begin(") || in("cudagraph_trees.py") ||
      contains(function, "capture_model") || contains(lower(function), "cuda_graph") ||
      contains(lower(function), "cudagraph")) {
    return Phase::kCapture;
  }
  if (in("torch/optim/") || in("/apex/optimizers/") || in("bitsandbytes/optim/") ||
      in("deepspeed/ops/adam") || contains(function, "initialize_optimizer_states") ||
      contains(code, "exp_avg") || contains(code, "optimizer.step(") ||
      contains(code, "scaler.step(")) {
    if (contains(function, "load_state_dict")) return Phase::kLoading;
    // What load_state_dict calls: the frame outside tells.
    if (contains(function, "cast") || contains(function, "_process_value") ||
        function == "update_group" || function.starts_with("<")) {
      return Phase::kUnknown;
    }
    return contains(function, "zero_grad") ? Phase::kUnknown : Phase::kOptimizerStep;
  }
  if (in("torch/autograd/__init__.py") || in("torch/autograd/graph.py") ||
      (in("torch/_tensor.py") && function == "backward") ||
      (in("torch/tensor.py") && function == "backward") || contains(code, ".backward(")) {
    return Phase::kBackward;
  }
  if (in("torch/serialization.py") || in("safetensors/torch.py") ||
      contains(function, "load_state_dict") || contains(function, "load_checkpoint") ||
      contains(function, "_load_from_checkpoint") || contains(code, "torch.load(") ||
      contains(code, "load_state_dict(") || contains(code, "load_checkpoint(") ||
      contains(function, "from_pretrained") || contains(code, "from_pretrained(")) {
    return Phase::kLoading;
  }
  if (names_loss(function, code)) return Phase::kLoss;
  if (contains(function, "generate") || contains(code, ".generate(")) return Phase::kGeneration;
  if (in("torch/utils/data/")) return Phase::kDataLoading;
  if (in("torch/nn/functional.py") || function == "forward" || contains(function, "_call_impl") ||
      function == "__call__" || contains(function, "_conv_forward")) {
    return Phase::kForward;
  }
  if (in("torch/nn/modules/module.py") &&
      (function == "to" || function == "cuda" || function == "_apply" || function == "convert" ||
       function == "<lambda>")) {
    return Phase::kPlacement;
  }
  if (contains(code, "model.to(") || contains(code, "model.cuda(") || contains(code, "net.cuda(") ||
      contains(code, "net.to(")) {
    return Phase::kPlacement;
  }
  if (in("torch/cuda/__init__.py") || contains(code, "_cuda_init") ||
      contains(code, "set_device(") || contains(code, "init_process_group")) {
    return Phase::kStart;
  }
  return Phase::kUnknown;
}

void judge(Traceback& traceback) {
  for (auto frame = traceback.frames.rbegin(); frame != traceback.frames.rend(); ++frame) {
    if (traceback.phase != Phase::kUnknown) break;
    traceback.phase = phase_of(*frame);
  }
  for (const Frame& frame : traceback.frames) {
    const std::string file = with_slashes(frame.file);
    // pytest and unittest run everything below functions called test_...
    const bool test_case = frame.function.starts_with("test_") || contains(file, "unittest/");
    if (!test_case && names_evaluation(frame.function)) traceback.in_evaluation = true;
    if (frame.function == "decorate_context" || frame.function == "decorate_no_grad" ||
        contains(file, "torch/utils/_contextlib.py") ||
        contains(file, "torch/autograd/grad_mode.py") || contains(frame.code, "no_grad()") ||
        contains(frame.code, "inference_mode()") ||
        (contains(file, "transformers/") &&
         (frame.function == "prediction_step" || frame.function == "prediction_loop" ||
          frame.function == "evaluation_loop")) ||
        (contains(file, "lightning/") && names_evaluation(frame.function))) {
      traceback.grad_disabled = true;
    }
    if (contains(file, "torch/utils/checkpoint.py") ||
        contains(file, "activation_checkpointing/checkpointing.py")) {
      traceback.in_checkpoint = true;
    }
    if (phase_of(frame) == Phase::kCapture) traceback.in_capture = true;
  }
}

}  // namespace

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kUnknown:
      return "unknown";
    case Phase::kStart:
      return "start";
    case Phase::kPlacement:
      return "placement";
    case Phase::kLoading:
      return "loading";
    case Phase::kForward:
      return "forward";
    case Phase::kLoss:
      return "loss";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizerStep:
      return "optimizer_step";
    case Phase::kCapture:
      return "capture";
    case Phase::kGeneration:
      return "generation";
    case Phase::kDataLoading:
      return "data_loading";
  }
  return "";
}

Traceback traceback_of(std::vector<Frame> frames) {
  Traceback traceback;
  traceback.frames = std::move(frames);
  judge(traceback);
  return traceback;
}

bool is_library_file(std::string_view name) {
  const std::string file = with_slashes(name);
  return contains(file, "site-packages/") || contains(file, "dist-packages/") ||
         contains(file, "/lib/python") || file.starts_with("<frozen") || file == "<string>" ||
         file.starts_with("torch/") || contains(file, "/torch/nn/") ||
         contains(file, "/torch/autograd/");
}

const Frame* user_frame(const Traceback& traceback) {
  for (auto frame = traceback.frames.rbegin(); frame != traceback.frames.rend(); ++frame) {
    if (!is_library_file(frame->file)) return &*frame;
  }
  return nullptr;
}

std::vector<Traceback> read_tracebacks(const std::vector<std::string>& lines) {
  std::vector<Traceback> found;
  Traceback open;
  bool is_open = false;
  ChainLink next_link = ChainLink::kNone;
  std::size_t last_frame_line = 0;
  const auto close = [&](std::size_t line) {
    if (!is_open) return;
    open.exception_line = line;
    judge(open);
    found.push_back(std::move(open));
    open = {};
    is_open = false;
  };
  const auto start = [&](std::size_t line) {
    if (is_open && !open.frames.empty()) close(line == 0 ? 0 : line - 1);
    open = {};
    is_open = true;
    open.first_line = line;
    open.link = next_link;
    next_link = ChainLink::kNone;
  };
  // More lines than this without a frame: the traceback was cut off.
  constexpr std::size_t kGap = 40;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view text = lines[i];
    if (text.empty()) continue;
    if (is_open && !open.frames.empty() && i > last_frame_line + kGap) close(last_frame_line);
    if (contains(text, "Traceback (most recent call last)")) {
      start(i);
      last_frame_line = i;
      continue;
    }
    if (contains(text, "During handling of the above exception")) {
      next_link = ChainLink::kDuringHandling;
      continue;
    }
    if (contains(text, "was the direct cause of the following exception")) {
      next_link = ChainLink::kDirectCause;
      continue;
    }
    std::optional<Frame> frame = frame_at(text);
    // Broken over two or three lines by a terminal or a box.
    if (!frame && text.starts_with("File \"") && i + 1 < lines.size()) {
      std::string joined(text);
      for (std::size_t more = 1; more <= 2 && i + more < lines.size() && !frame; ++more) {
        joined += lines[i + more];
        frame = frame_at(joined);
        if (frame && !contains(joined, ", in ")) frame.reset();
        if (frame) i += more;
      }
    }
    if (frame) {
      if (!is_open) start(i);
      open.frames.push_back(std::move(*frame));
      last_frame_line = i;
      continue;
    }
    if (!is_open) continue;
    if (const auto code = marked_code(text)) {
      if (!open.frames.empty()) open.frames.back().code = *code;
      last_frame_line = i;
      continue;
    }
    std::string name;
    std::string message;
    if (exception_at(text, name, message)) {
      open.exception = std::move(name);
      open.message = std::move(message);
      close(i);
      continue;
    }
    if (!open.frames.empty() && open.frames.back().code.empty() && i == last_frame_line + 1) {
      open.frames.back().code.assign(text);
    }
  }
  close(lines.empty() ? 0 : std::min(last_frame_line, lines.size() - 1));
  // Headers without a frame tell nothing.
  std::erase_if(found, [](const Traceback& traceback) { return traceback.frames.empty(); });
  return found;
}

}  // namespace lowtide
