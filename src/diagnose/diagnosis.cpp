#include "src/diagnose/diagnosis.h"

// How causes are weighed.
//
// Each rule looks at one message, what ran when it was raised, and the lines around it, and gives a
// cause a weight from 0 to 100: 90 and more is certain, 60 likely, 30 possible. Rules do not know
// of each other; the heaviest wins. What raises a weight is arithmetic on the message's numbers or
// a frame of the traceback, never a single word of the log alone.
//
// Numbers used below: X what was asked for, T the device's size, F free, A allocated by PyTorch, U
// reserved by PyTorch and unused, O = T - F - A - U what others hold.
//
// X is what the allocator asks the driver for, not a tensor's size: requests up to 1 MiB ask for
// 2 MiB, up to 10 MiB for 20 MiB. No rule reads a tensor's size from an X under 10 MiB, or of 20
// MiB.

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "lowtide/bytes.h"
#include "src/base/text.h"
#include "src/diagnose/findings.h"
#include "src/diagnose/joined_rules.h"

namespace lowtide {
namespace {

using namespace literals;

// What a process holds on a device outside PyTorch's pool: the CUDA context, kernels, library
// handles. From 0.3 to 1 GiB on the cards of the last ten years.
constexpr Bytes kContextBytes = 1_GiB;

bool contains(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return contains(text, word); });
}

double share(Bytes part, Bytes whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

int percent(Bytes part, Bytes whole) {
  return static_cast<int>(std::lround(100 * share(part, whole)));
}

std::string size(const std::optional<PrintedBytes>& printed) {
  return printed ? format_bytes(printed->bytes) : "an unknown amount";
}

// "17.37 GiB", with the digits that PyTorch prints.
std::string as_printed(const PrintedBytes& printed) {
  if (printed.bytes < 1_GiB) return format_bytes(printed.bytes);
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB",
                static_cast<double>(printed.bytes) / static_cast<double>(1_GiB));
  return text;
}

// What the rules ask of one sighting, worked out once.
struct Case {
  Case(const Sighting& seen, const LogEvidence& in) : sighting(seen), m(seen.message), log(in) {}

  const Sighting& sighting;
  const MemoryMessage& m;
  const LogEvidence& log;
  const Traceback* traceback = nullptr;  // the one that raised the message
  Phase phase = Phase::kUnknown;
  const Frame* user = nullptr;   // innermost frame of user code
  std::string code;              // its code, else the innermost frame's
  std::string inner_code;        // of the innermost frame
  std::string frames;            // functions and files, lower case, a blank between
  std::string all_code;          // code of all frames
  std::optional<Bytes> unused;   // U
  std::optional<Bytes> outside;  // O
  std::optional<Bytes> others;   // held by other processes, as far as the message says
  std::size_t other_count = 0;
  bool truthful_process_size = false;  // `this_process` is a real number
  std::uint64_t steps = 0;
  bool late = false;  // more than the first steps were done

  Bytes requested() const { return m.requested ? m.requested->bytes : 0; }
  Bytes capacity() const { return m.capacity ? m.capacity->bytes : 0; }
  // X tells a tensor's size.
  bool tells_tensor_size() const {
    return m.requested && m.requested->bytes > 10_MiB && m.requested->bytes != 20_MiB;
  }
  // X is a large part of the device, or larger than anything a layer keeps in passing.
  bool large_request() const {
    return m.requested &&
           (m.requested->bytes >= 1_GiB ||
            (capacity() != 0 && share(requested(), capacity()) >= 0.04 && requested() >= 256_MiB));
  }
};

// "12.3 GiB", "this process has 0 bytes" and 2^64 - 1 under WSL are no sizes.
bool believable(const std::optional<PrintedBytes>& printed) {
  return printed && printed->bytes > 0 && printed->bytes < (Bytes{1} << 46);
}

void weigh_processes(Case& c) {
  const MemoryMessage& m = c.m;
  if (!m.allocated || !c.unused) return;
  const Bytes own = m.allocated->bytes + *c.unused;
  c.truthful_process_size = believable(m.this_process);
  Bytes others = 0;
  std::size_t count = 0;
  // In a container this program's own id differs from the driver's, so that it is listed as another
  // process: take the one whose size is what PyTorch holds plus a context for it.
  std::size_t self = m.processes.size();
  if (!c.truthful_process_size) {
    Bytes best = 7_GiB + 1;
    for (std::size_t i = 0; i < m.processes.size(); ++i) {
      const Bytes there = m.processes[i].bytes.bytes;
      const Bytes slack = m.processes[i].bytes.half_step + m.allocated->half_step + 16_MiB;
      if (there + slack < own) continue;
      const Bytes more = there > own ? there - own : 0;
      if (more < best) {
        best = more;
        self = i;
      }
    }
  }
  for (std::size_t i = 0; i < m.processes.size(); ++i) {
    if (i == self || !believable(m.processes[i].bytes)) continue;
    others += m.processes[i].bytes.bytes;
    ++count;
  }
  if (!m.processes.empty() || c.truthful_process_size) {
    c.others = others;
    c.other_count = count;
  }
}

Case examine(const Sighting& sighting, const LogEvidence& log) {
  Case c(sighting, log);
  if (!sighting.tracebacks.empty()) c.traceback = &sighting.tracebacks.back();
  if (const auto unused = unused_reserved(c.m)) c.unused = unused->bytes;
  c.outside = outside_pytorch(c.m);
  weigh_processes(c);
  if (c.traceback != nullptr) {
    c.phase = c.traceback->phase;
    c.user = user_frame(*c.traceback);
    if (!c.traceback->frames.empty()) c.inner_code = c.traceback->frames.back().code;
    c.code = c.user != nullptr ? c.user->code : c.inner_code;
    for (const Frame& frame : c.traceback->frames) {
      c.frames += lower(frame.file) + " " + lower(frame.function) + " ";
      c.all_code += frame.code + "\n";
    }
  }
  if (sighting.progress.step) c.steps = *sighting.progress.step;
  c.late = c.steps > 50 || sighting.progress.epoch.value_or(0) > 1;
  return c;
}

bool on_device(MessageFamily family) {
  switch (family) {
    case MessageFamily::kThcCheck:
    case MessageFamily::kRuntimeErrorTwo:
    case MessageFamily::kCudaErrorBare:
    case MessageFamily::kCached:
    case MessageFamily::kReservedTotal:
    case MessageFamily::kUnallocated:
    case MessageFamily::kShortened:
    case MessageFamily::kMallocAsync:
    case MessageFamily::kMps:
    case MessageFamily::kDriver:
    case MessageFamily::kSnapshotFailure:
      return true;
    default:
      return false;
  }
}

// Whole numbers that stand near the message, for factoring: of the lines before and of the frames.
std::vector<Bytes> numbers_near(const Case& c) {
  std::set<Bytes> found;
  const auto collect = [&found](const std::string& text) {
    Bytes value = 0;
    bool in_number = false;
    bool plain = true;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      const char ch = i < text.size() ? text[i] : ' ';
      if (ch >= '0' && ch <= '9') {
        if (!in_number) {
          plain = i == 0 || (text[i - 1] != '.' && text[i - 1] != '_' && text[i - 1] != 'x' &&
                             !std::isalpha(static_cast<unsigned char>(text[i - 1])));
          value = 0;
        }
        in_number = true;
        value = value > (Bytes{1} << 40) ? value : value * 10 + static_cast<Bytes>(ch - '0');
      } else if (in_number) {
        in_number = false;
        if (plain && ch != '.' && value >= 32 && value < (Bytes{1} << 32)) found.insert(value);
      }
    }
  };
  for (const std::string& line : c.sighting.before) {
    if (!contains(line, "File \"") && found.size() < 400) collect(line);
  }
  for (const std::string& line : c.sighting.after) {
    if (found.size() < 500) collect(line);
  }
  return {found.begin(), found.end()};
}

constexpr std::array<Bytes, 45> kVocabularies{
    21128,  28996,  30522,  32000,  32001,  32064,  32100,  32128,  32768,  49152,  49408,  50257,
    50265,  50272,  50280,  50304,  50368,  50432,  51200,  51865,  51866,  57344,  64000,  65024,
    92544,  100352, 102400, 103168, 119547, 128000, 128256, 129280, 130528, 131072, 151552, 151646,
    151669, 151936, 152064, 200064, 201088, 248320, 250002, 256000, 262144};

std::optional<Factors> two_lengths(const PrintedBytes& printed, Bytes first, Bytes vocabulary,
                                   Bytes element_bytes) {
  const Bytes row = vocabulary * element_bytes;
  if (first == 0 || row == 0 || first > (Bytes{1} << 62) / row) return std::nullopt;
  // The allocator rounds what it asks for up to 2 MiB.
  const Bytes exact = first * row;
  const Bytes rounded = (exact + 2_MiB - 1) / 2_MiB * 2_MiB;
  if (!printed.contains(exact) && !printed.contains(rounded)) return std::nullopt;
  Factors factors;
  factors.lengths = {first, vocabulary};
  factors.element_bytes = element_bytes;
  factors.words = concat(as_printed(printed), " = ", first, " tokens x ", vocabulary,
                         " vocabulary x ", element_bytes, " bytes");
  return factors;
}

// A layer's own weight is what was asked for.
bool makes_weight(const Case& c) {
  if (c.traceback == nullptr) return false;
  for (const Frame& frame : c.traceback->frames) {
    std::string file = lower(frame.file);
    std::replace(file.begin(), file.end(), '\\', '/');
    if (contains(file, "torch/nn/modules/") && frame.function == "__init__" &&
        contains_any(frame.code, {"torch.empty(", "torch.Tensor(", "Parameter("})) {
      return true;
    }
  }
  return false;
}

// Where the log gives no lengths: the roundest number of tokens that `printed` allows, for a
// vocabulary and 4 bytes a score. 0 when none does.
Bytes likely_tokens(const PrintedBytes& printed, Bytes vocabulary) {
  const Bytes row = vocabulary * 4;
  const Bytes low = printed.bytes > printed.half_step ? printed.bytes - printed.half_step : 0;
  const Bytes first = (low + row - 1) / row;
  const Bytes last = (printed.bytes + printed.half_step) / row;
  for (Bytes step = Bytes{1} << 16; step >= 1; step /= 2) {
    const Bytes tokens = (first + step - 1) / step * step;
    if (tokens != 0 && tokens <= last) return tokens;
  }
  return 0;
}

std::string logits_examples(const PrintedBytes& printed) {
  struct Model {
    Bytes vocabulary;
    const char* name;
  };
  constexpr std::array<Model, 3> kModels{
      {{151936, "Qwen 2 and 3"}, {128256, "Llama 3"}, {32000, "Llama 2"}}};
  std::string out;
  for (const Model& model : kModels) {
    const Bytes tokens = likely_tokens(printed, model.vocabulary);
    if (tokens == 0) continue;
    out += concat(out.empty() ? "" : ", ", tokens, " tokens x ", model.vocabulary, " (", model.name,
                  ")");
  }
  return out.empty() ? out : concat(as_printed(printed), " at 4 bytes a score would be ", out);
}

// -- Rules ---------------------------------------------------------------------------------------

void weigh_cap(const Case& c, Findings& out) {
  const MemoryMessage& m = c.m;
  if (m.family == MessageFamily::kMps) {
    if (m.allowed && m.allocated) {
      out.add(Cause::kMemoryFractionCap, 45,
              concat("MPS refuses past ", size(m.allowed), ", its high-water mark; ",
                     size(m.allocated), " are allocated"));
    }
    return;
  }
  if (!m.allowed || !m.requested || !m.allocated) return;
  const Bytes held = m.allocated->bytes + c.unused.value_or(0);
  const bool over = held + m.requested->bytes + m.allowed->half_step >= m.allowed->bytes;
  const bool device_had_room = m.free && m.free->bytes >= m.requested->bytes;
  if (over && device_had_room) {
    out.add(Cause::kMemoryFractionCap, 95,
            concat(size(m.requested), " were refused with ", size(m.free),
                   " free on the device: this process may use ", size(m.allowed), " and holds ",
                   format_bytes(held)));
  } else if (over && (!m.capacity || m.allowed->bytes < m.capacity->bytes)) {
    out.add(Cause::kMemoryFractionCap, 50,
            concat("this process is limited to ", size(m.allowed), " and holds ",
                   format_bytes(held), "; the device is full as well"));
  }
}

void weigh_free_but_refused(const Case& c, Findings& out) {
  const MemoryMessage& m = c.m;
  if (m.allowed || !m.free || !m.requested || !m.capacity) return;
  if (m.free->bytes < m.requested->bytes + m.requested->half_step) return;
  const std::string numbers = concat(size(m.requested), " were refused with ", size(m.free), " of ",
                                     size(m.capacity), " free");
  const bool windows = contains(c.frames, ":\\") || contains(c.frames, ":/users/");
  if (windows) {
    out.add(Cause::kHostRamExhausted, 56,
            numbers +
                ". Windows backs device memory with its page file: a small or full one refuses "
                "what the card has");
  }
  // The free figure is read after the failure, so another process may have given it back by then.
  out.add(Cause::kOtherProcess, windows ? 40 : 46,
          numbers + ". The figure is read after the failure: another process may have freed it");
  out.add(
      Cause::kMemoryFractionCap, 42,
      numbers + ": a limit outside PyTorch (a MIG slice, a vGPU, a container) gives this picture");
}

void weigh_fragmentation(const Case& c, Findings& out) {
  if (!c.unused || !c.m.requested || !c.m.allocated) return;
  const Bytes unused = *c.unused;
  const Bytes asked = c.m.requested->bytes;
  const Bytes whole = c.capacity() != 0 ? c.capacity() : c.m.allocated->bytes + unused;
  // U > 0 by rounding alone tells nothing, and where the device itself had room, holes are not why.
  if (unused < 32_MiB) return;
  if (c.capacity() != 0 && asked > c.capacity()) return;
  if (c.m.free && c.m.free->bytes >= asked) return;
  const std::string numbers =
      concat(format_bytes(unused), " are reserved and unused while ", format_bytes(asked),
             " cannot be placed: no single hole is large enough");
  int weight = 0;
  if (unused >= asked && share(unused, whole) >= 0.10) {
    weight = asked < unused / 2 ? 93 : 91;
  } else if (c.m.free && share(asked, whole) >= 0.02 && c.m.free->bytes < asked &&
             c.m.free->bytes + unused >= asked && unused >= asked / 2) {
    // A request that matters, and that would fit if the holes and what is free lay together.
    weight = 64;
  } else if (unused >= asked && share(unused, whole) >= 0.05) {
    weight = 54;
  } else if (share(unused, c.m.allocated->bytes) > 0.2 && share(unused, whole) >= 0.08) {
    weight = 62;
  } else if (unused >= asked) {
    // A full card with a little slack: defragmenting gains little.
    weight = 36;
  } else {
    return;
  }
  // A card that others fill is not freed by defragmenting this process's share.
  if (c.others && *c.others > unused * 2) weight -= 25;
  // Windows, and memory put to sleep, count more than the card holds: the unused part is not on it.
  if (c.capacity() != 0 && c.m.allocated->bytes + unused > c.capacity()) {
    weight = std::min(weight, 50);
  }
  out.add(Cause::kFragmentation, weight, numbers);
  if (c.late && weight >= kLikelyFrom) {
    out.add(Cause::kVariableShapes, weight - 12,
            concat("holes of unequal size after ", c.steps, " steps: shapes change between steps"));
  }
}

void weigh_other_process(const Case& c, Findings& out) {
  const MemoryMessage& m = c.m;
  if (!m.capacity) return;
  const Bytes capacity = m.capacity->bytes;
  const Bytes threshold = std::max<Bytes>(1_GiB, capacity / 10);
  if (c.others) {
    // Several processes of a context's size on device 0, alike: ranks that touched it in passing.
    std::size_t small = 0;
    Bytes small_bytes = 0;
    for (const ProcessUse& use : m.processes) {
      std::size_t alike = 0;
      for (const ProcessUse& other : m.processes) {
        const Bytes more = std::max(use.bytes.bytes, other.bytes.bytes) -
                           std::min(use.bytes.bytes, other.bytes.bytes);
        if (more <= use.bytes.bytes / 8) ++alike;
      }
      if (alike >= 3 && use.bytes.bytes >= 100_MiB && use.bytes.bytes <= 2560_MiB) {
        ++small;
        small_bytes += use.bytes.bytes;
      }
    }
    if (m.device.value_or(1) == 0 && small >= 3 && small_bytes >= *c.others / 2) {
      out.add(Cause::kRankContextsOnGpu0, 84,
              concat(small, " processes hold a context's worth each on GPU 0, ",
                     format_bytes(small_bytes), " together"));
      return;
    }
    if (*c.others <= threshold) return;
    const int weight = 66 + static_cast<int>(30 * share(*c.others, capacity));
    out.add(Cause::kOtherProcess, std::min(weight, 94),
            concat(c.other_count,
                   c.other_count == 1 ? " other process holds " : " other processes hold ",
                   format_bytes(*c.others), " of the ", format_bytes(capacity), " (",
                   percent(*c.others, capacity), "%)"));
    return;
  }
  if (!c.outside || *c.outside <= threshold) return;
  if (!m.processes.empty()) return;  // listed, and none is another
  // Part of it is this process's own context.
  const Bytes beyond = *c.outside > kContextBytes ? *c.outside - kContextBytes : 0;
  const int weight = 50 + static_cast<int>(60 * share(beyond, capacity));
  out.add(Cause::kOtherProcess, std::min(weight, 89),
          concat(format_bytes(*c.outside), " of ", format_bytes(capacity),
                 " are neither free nor PyTorch's: capacity - free - allocated - unused reserve = ",
                 size(m.capacity), " - ", size(m.free), " - ", size(m.allocated), " - ",
                 format_bytes(c.unused.value_or(0))));
}

void weigh_device_table(const Case& c, Findings& out) {
  // nvidia-smi's table in the same log.
  if (c.log.processes.empty()) return;
  std::map<std::uint64_t, std::vector<const DeviceProcess*>> by_device;
  std::map<std::uint64_t, std::set<std::uint64_t>> devices_of;
  for (const DeviceProcess& process : c.log.processes) {
    by_device[process.device].push_back(&process);
    devices_of[process.pid].insert(process.device);
  }
  const std::uint64_t device = c.m.device.value_or(0);
  const auto here = by_device.find(device);
  if (here == by_device.end()) return;
  std::size_t small = 0;
  Bytes small_bytes = 0;
  Bytes largest = 0;
  Bytes total = 0;
  for (const DeviceProcess* process : here->second) {
    total += process->bytes;
    largest = std::max(largest, process->bytes);
    if (process->bytes >= 100_MiB && process->bytes <= 2560_MiB &&
        devices_of[process->pid].size() > 1) {
      ++small;
      small_bytes += process->bytes;
    }
  }
  // Contexts are alike: processes of one size beside a larger one are ranks of the same job.
  std::size_t alike = 0;
  Bytes alike_bytes = 0;
  for (const DeviceProcess* one : here->second) {
    std::size_t same = 0;
    for (const DeviceProcess* other : here->second) {
      const Bytes more = std::max(one->bytes, other->bytes) - std::min(one->bytes, other->bytes);
      if (one->name == other->name && more <= one->bytes / 20) ++same;
    }
    if (same >= 3 && one->bytes >= 100_MiB && one->bytes <= 2560_MiB) {
      ++alike;
      alike_bytes += one->bytes;
    }
  }
  if (small < alike) {
    small = alike;
    small_bytes = alike_bytes;
  }
  if (device == 0 && small >= 2) {
    out.add(Cause::kRankContextsOnGpu0, 86,
            concat(small, " processes, other ranks by their likeness, hold ",
                   format_bytes(small_bytes), " on GPU 0"));
  } else if (here->second.size() > 1 && total - largest > 512_MiB) {
    out.add(Cause::kOtherProcess, 70,
            concat(here->second.size(), " processes share GPU ", device, ": ", format_bytes(total),
                   " together"));
  }
}

bool names_language(const Case& c) {
  const std::string code = lower(c.all_code);
  return contains_any(code, {"lm_head", "vocab", "input_ids", "shift_logits", "token", "log_probs",
                             "logprobs", "generator(", "embed_out"}) ||
         contains_any(c.frames, {"transformers", "llama", "qwen", "gpt", "bert", "fairseq", "trl",
                                 "language", "causal_lm", "causallm", "decoder", "seq2seq", "nmt",
                                 "liger", "megatron", "verl", "mistral", "gemma"});
}

void weigh_logits(const Case& c, Findings& out) {
  if (c.traceback == nullptr) return;
  const std::string code = lower(c.code + "\n" + c.inner_code);
  const bool loss = c.phase == Phase::kLoss || contains_any(code, {"cross_entropy", "log_softmax"});
  const bool head = contains_any(code, {"lm_head(", "logits.float()", "shift_logits", "embed_out(",
                                        "logits.clone(", "logits.to(", "log_probs", "logprob"}) ||
                    (contains(code, "logits = ") && names_language(c));
  // The name of the loss in the frames (a fused cross entropy's own file).
  const bool named =
      contains_any(c.frames, {"cross_entropy", "crossentropy", "logprob", "log_prob"});
  if (!loss && !head && !named) return;
  const bool language = names_language(c) || named;
  std::optional<Factors> factors;
  if (c.tells_tensor_size() && (language || head)) {
    factors = factor_logits(*c.m.requested, numbers_near(c));
  }
  int weight = 40;
  if (head && c.large_request()) {
    weight = 82;
  } else if (head && language) {
    weight = 72;
  } else if (language && c.large_request()) {
    weight = 80;
  } else if (language) {
    weight = 66;
  } else if (c.large_request()) {
    weight = 50;
  }
  std::string why = concat("raised where scores over the vocabulary are made or compared: ",
                           c.code.empty() ? c.inner_code : c.code);
  if (factors) {
    weight = std::max(weight, 88);
    why += ". " + factors->words;
  } else if (c.tells_tensor_size() && c.large_request() && language) {
    if (const std::string examples = logits_examples(*c.m.requested); !examples.empty()) {
      why += ". " + examples;
    }
  }
  out.add(Cause::kLogitsOverVocab, weight, why);
}

void weigh_attention(const Case& c, Findings& out) {
  if (c.traceback == nullptr) return;
  const std::string code = lower(c.code + "\n" + c.inner_code);
  const std::string inner_function =
      c.traceback->frames.empty() ? std::string() : lower(c.traceback->frames.back().function);
  bool attention = contains_any(code, {"attn", "attention", "baddbmm", "q @ k", "query @ key",
                                       "matmul(q", "matmul(query", "bmm(q", "qk"});
  attention = attention || contains_any(inner_function, {"attention", "attn"});
  // What is named less clearly counts only below something called attention.
  if (contains_any(code, {"softmax(", "einsum(", "bmm(", "scores", "matmul"}) &&
      contains(c.frames, "attention")) {
    attention = true;
  }
  if (attention && c.phase != Phase::kOptimizerStep) {
    const int weight = c.large_request() ? 78 : c.tells_tensor_size() ? 54 : 46;
    std::string why =
        concat("raised in attention, whose scores grow with the square of the length: ",
               c.inner_code.empty() ? c.code : c.inner_code);
    out.add(Cause::kSequenceTooLong, weight, why);
  }
  if (c.phase == Phase::kGeneration ||
      (contains_any(c.frames, {"generation/", "generation_utils", "cache_utils"}) &&
       contains_any(code, {"cat(", "past_key", "key_states", "value_states"}))) {
    out.add(
        Cause::kSequenceTooLong, 62,
        "raised while text is generated: keys and values of every token are kept, and grow with "
        "its length and the number of beams");
  }
}

void weigh_notices(const LogEvidence& log, Findings& out) {
  for (const NoticeSighting& notice : log.notices) {
    const std::string place = concat(log.source, ":", notice.line, ": ", notice.text);
    switch (notice.notice) {
      case Notice::kCheckpointingRefused:
        out.add(Cause::kCheckpointingUnavailable, 97,
                "activation checkpointing was asked for and refused")
            .evidence.push_back(place);
        break;
      case Notice::kCheckpointingWithoutGrad:
        out.add(Cause::kCheckpointingInactive, 72,
                "a checkpointed region has no input that needs a gradient: what is inside gets "
                "none, "
                "and nothing is recomputed")
            .evidence.push_back(place);
        break;
      case Notice::kBroadcastWarning:
        out.add(Cause::kUnintendedBroadcast, 78,
                "a loss was given operands of different shapes: each is repeated along the other")
            .evidence.push_back(place);
        break;
      case Notice::kLongSequence:
        out.add(Cause::kSequenceTooLong, 64, "an input is longer than the model's stated maximum")
            .evidence.push_back(place);
        break;
      case Notice::kBatchSkipped:
        // Holes are what changing sizes leave: they are the consequence here.
        for (Finding& finding : out.list()) {
          if (finding.cause == Cause::kFragmentation) finding.weight = std::min(finding.weight, 62);
        }
        out.add(
               Cause::kVariableShapes, notice.count > 1 ? 72 : 63,
               concat("batches that did not fit were skipped ", notice.count,
                      notice.count == 1 ? " time" : " times", ": sizes change from batch to batch"))
            .evidence.push_back(place);
        break;
      case Notice::kDeviceAssert:
        break;  // weighed with the messages after it
    }
  }
}

void weigh_broadcast(const Case& c, Findings& out) {
  if (c.code.empty() && c.inner_code.empty()) return;
  const std::string& code = c.code.empty() ? c.inner_code : c.code;
  const bool expands = contains_any(code, {".unsqueeze(", "[:, None", "[None,", ".expand(",
                                           ".repeat(", "cdist(", "[:,None", "[..., None"});
  // "a - b", "pred + target": two names and a sign, so that the result should be as large as
  // either.
  bool plain = false;
  {
    std::string_view right = code;
    if (const std::size_t equals = right.find(" = "); equals != std::string_view::npos) {
      right = right.substr(equals + 3);
    }
    if (right.starts_with("return ")) right = right.substr(7);
    std::size_t operands = 0;
    bool simple = !right.empty();
    bool in_word = false;
    std::size_t signs = 0;
    for (const char ch : right) {
      const bool word = std::isalnum(static_cast<unsigned char>(ch)) || ch == '_' || ch == '.';
      if (word && !in_word) ++operands;
      in_word = word;
      if (ch == '+' || ch == '-' || ch == '*' || ch == '/') ++signs;
      if (!word && ch != ' ' && ch != '+' && ch != '-' && ch != '*' && ch != '/' && ch != '(' &&
          ch != ')') {
        simple = false;
      }
    }
    plain = simple && operands == 2 && signs == 1 &&
            std::isalpha(static_cast<unsigned char>(right.front()));
  }
  // A loss that takes two operands of one shape: its temporaries are as large as either.
  const bool elementwise_loss =
      contains_any(c.inner_code + "\n" + code,
                   {"mse_loss(", "l1_loss(", "huber_loss(", "broadcast_tensors(", "MSELoss"});
  // "(pred - target) ** 2", "((a - b).abs()"
  const bool difference = [&code] {
    const std::size_t minus = code.find(" - ");
    if (minus == std::string::npos || minus == 0) return false;
    const auto word = [](char ch) {
      return std::isalnum(static_cast<unsigned char>(ch)) || ch == '_' || ch == ')' || ch == ']';
    };
    return word(code[minus - 1]) && std::isalpha(static_cast<unsigned char>(code[minus + 3])) &&
           contains_any(code, {"** 2", ".pow(", ".abs(", "torch.abs(", ".square(", ".norm("});
  }();
  const bool impossible = c.m.capacity && c.requested() > c.capacity();
  const bool huge = impossible || (c.capacity() != 0 && share(c.requested(), c.capacity()) >= 0.3);
  if (huge && (expands || plain || elementwise_loss || difference)) {
    out.add(Cause::kUnintendedBroadcast, impossible ? 86 : 74,
            concat(size(c.m.requested), " for one elementwise operation: ", code));
  } else if (!c.m.requested && plain) {
    out.add(
        Cause::kUnintendedBroadcast, 61,
        concat("raised by one elementwise operation on two tensors, which needs no more than the "
               "larger of them unless shapes are repeated along each other: ",
               code));
  }
}

void weigh_phase(const Case& c, Findings& out) {
  const MemoryMessage& m = c.m;
  const std::string code = lower(c.code + "\n" + c.inner_code);
  const Traceback* traceback = c.traceback;
  if (traceback == nullptr) return;

  if (c.phase == Phase::kOptimizerStep) {
    const bool made = contains_any(code, {"zeros_like", "exp_avg", "momentum_buffer", "state["}) ||
                      contains_any(c.frames, {"_init_group", "initialize_optimizer_states"});
    out.add(Cause::kOptimizerState, made ? 92 : 80,
            made ? concat("raised while the optimizer makes its state: ",
                          c.inner_code.empty() ? c.code : c.inner_code)
                 : concat("raised inside the optimizer's step, which needs its state and, with "
                          "foreach, copies of it in passing: ",
                          c.inner_code.empty() ? c.code : c.inner_code));
  }
  if (contains(c.frames, "deepspeed") &&
      contains_any(c.frames, {"initialize_optimizer_states", "_configure_zero_optimizer",
                              "deepspeedzerooptimizer"})) {
    out.add(Cause::kOptimizerState, 84,
            "raised while ZeRO sets up the optimizer's partitions and their float32 copies");
  }
  if (makes_weight(c)) {
    out.add(Cause::kHugeLinear, 92,
            concat("raised while a layer's weight is made, inputs x outputs x 4 bytes = ",
                   size(m.requested), ": ", c.code));
  }
  if (c.phase == Phase::kLoading) {
    const bool restored = contains_any(c.frames, {"_cuda_deserialize", "default_restore_location",
                                                  "restore_location", "persistent_load"}) ||
                          contains(code, "torch.load(");
    out.add(Cause::kCheckpointLoadedOnDevice, restored ? 91 : 72,
            restored
                ? "raised while torch.load puts a checkpoint's tensors on the device that they "
                  "were saved from"
                : concat("raised while weights or states are loaded: ",
                         c.code.empty() ? c.inner_code : c.code));
  }
  if (traceback->in_capture) {
    out.add(
        Cause::kGraphPrivatePool, 84,
        "raised while a CUDA graph is captured: its pool keeps what it takes and shares nothing");
  }
  if (c.phase == Phase::kStart || c.phase == Phase::kPlacement) {
    if (m.family == MessageFamily::kCudaErrorBare || m.family == MessageFamily::kThcCheck ||
        m.family == MessageFamily::kRuntimeErrorTwo) {
      out.add(
          Cause::kOtherProcess, c.phase == Phase::kStart ? 66 : 60,
          "the device had no room before this process held anything on it: something else fills "
          "it");
    }
    if (c.phase == Phase::kPlacement && c.capacity() != 0 &&
        c.requested() >= std::max<Bytes>(1_GiB, c.capacity() * 3 / 20)) {
      out.add(Cause::kHugeLinear, 68,
              concat("one parameter takes ", size(m.requested), ", ",
                     percent(c.requested(), c.capacity()), "% of the device"));
    }
    if (c.phase == Phase::kPlacement) {
      out.add(Cause::kBatchOrInputTooLarge, 57,
              "raised while the model is moved to the device: its weights alone do not fit in what "
              "is left");
    }
  }
  if (traceback->in_evaluation) {
    const bool keeps = contains_any(
        c.frames, {"nested_concat", "distributed_concat", "nested_gather", "nested_truncate"});
    const bool gathers = contains_any(code, {"torch.cat(", ".append(", "torch.stack(", "cat((",
                                             "all_gather", "preds_host", "all_preds", "concat("});
    // Scores and metrics of a whole evaluation, after its forward passes.
    const bool measures =
        c.phase == Phase::kUnknown &&
        contains_any(c.frames, {"predictions", "metric", "accuracy", "_score", "score_", "recall"});
    if (keeps || gathers || measures) {
      out.add(
          Cause::kPredictionsKeptOnDevice,
          keeps     ? 94
          : gathers ? 84
                    : 76,
          concat("raised while an evaluation's outputs are gathered or measured on the device: ",
                 c.inner_code.empty() ? c.code : c.inner_code));
    } else if (c.capacity() != 0 && share(c.requested(), c.capacity()) >= 0.25) {
      // What earlier batches left behind does not make one request this large.
      out.add(Cause::kBatchOrInputTooLarge, 75,
              concat("one tensor of an evaluation takes ", size(m.requested), ", ",
                     percent(c.requested(), c.capacity()),
                     "% of the device: its input is larger than the training's"));
    } else if (!traceback->grad_disabled &&
               (c.phase == Phase::kForward || c.phase == Phase::kLoss ||
                c.phase == Phase::kUnknown)) {
      out.add(
          Cause::kEvalWithoutNoGrad, 74,
          "raised in an evaluation without torch.no_grad in its frames: every activation is kept "
          "for a backward that never comes");
    } else if (traceback->grad_disabled && c.phase == Phase::kForward && c.steps > 20 &&
               contains_any(lower(c.sighting.progress.text),
                            {"eval", "valid", "test", "predict"})) {
      out.add(Cause::kPredictionsKeptOnDevice, 66,
              concat("an evaluation without gradients failed after ", c.steps,
                     " batches that fitted: their outputs are kept"));
    } else if (traceback->grad_disabled && c.phase == Phase::kForward) {
      out.add(
          Cause::kBatchOrInputTooLarge, 61,
          "raised in an evaluation that does not record gradients: its batch or its input is too "
          "large");
    }
  } else if (contains_any(c.frames, {"nested_concat", "distributed_concat"})) {
    out.add(Cause::kPredictionsKeptOnDevice, 92,
            "raised while outputs of all batches are joined on the device");
  }
  if (contains_any(
          code, {"f.conv", "conv2d(", "conv3d(", "conv1d(", "conv_transpose", "_conv_forward"}) &&
      m.capacity && m.allocated && c.large_request() && share(c.requested(), c.capacity()) >= 0.2 &&
      m.allocated->bytes < c.requested()) {
    out.add(Cause::kLibraryWorkspace, c.requested() > c.capacity() ? 62 : 52,
            concat("a convolution asked for ", size(m.requested), " with ", size(m.allocated),
                   " in use: a workspace, or a far larger input than meant"));
  }
}

void weigh_history(const Case& c, Findings& out) {
  // The line that failed, and the lines of code that stand in the log.
  const auto accumulates = [](const std::string& text) {
    const std::size_t plus = text.find("+=");
    if (plus == std::string::npos) return false;
    const std::string right = lower(text.substr(plus + 2));
    const std::string left = lower(text.substr(0, plus));
    return contains(right, "loss") &&
           contains_any(left, {"loss", "total", "running", "sum", "epoch"}) &&
           !contains_any(right, {".item(", "float(", ".detach(", ".data", "numpy(", ".cpu("});
  };
  const auto keeps = [](const std::string& text) {
    const std::string small = lower(text);
    return contains(small, ".append(") && contains(small, "loss") &&
           !contains_any(small, {".item(", "float(", ".detach(", ".data", "numpy(", ".cpu("});
  };
  std::string line;
  const auto look = [&](const std::string& text) {
    if (line.empty() && (accumulates(text) || keeps(text))) line = text;
  };
  if (c.traceback != nullptr) {
    for (const Frame& frame : c.traceback->frames) look(frame.code);
  }
  for (const std::string& text : c.sighting.before) look(text);
  for (const std::string& text : c.sighting.after) look(text);
  if (!line.empty()) {
    out.add(Cause::kHistoryAccumulation,
            c.late || c.m.family == MessageFamily::kRuntimeErrorTwo ||
                    c.m.family == MessageFamily::kThcCheck
                ? 76
                : 66,
            concat("a sum or a list keeps the loss and with it the graph of every step: ", line));
  }
  if (contains(lower(c.all_code), "retain_graph=true")) {
    out.add(Cause::kHistoryAccumulation, 70,
            "backward(retain_graph=True) keeps every step's graph for the next");
  }
  for (const MemorySeries& series : c.sighting.memory) {
    std::size_t rises = 0;
    std::size_t falls = 0;
    for (std::size_t i = 1; i < series.values.size(); ++i) {
      if (series.values[i] > series.values[i - 1]) ++rises;
      if (series.values[i] < series.values[i - 1]) ++falls;
    }
    // A peak ("max mem") can only rise: that is no leak unless it rises at nearly every step.
    const bool steady = rises >= 4 && falls == 0 && rises * 10 >= (series.values.size() - 1) * 8 &&
                        series.values.back() >= 1.3 * series.values.front();
    if (steady) {
      const auto whole = [](double value) { return static_cast<long long>(std::llround(value)); };
      out.add(
          Cause::kHistoryAccumulation, 75,
          concat("the memory that the log prints rises at ", rises, " of ",
                 series.values.size() - 1, " steps, from ", whole(series.values.front()), " to ",
                 whole(series.values.back()), " MiB: something keeps each step's tensors"));
    }
  }
}

void weigh_chain(const Case& c, Findings& out) {
  const auto& chain = c.sighting.tracebacks;
  for (std::size_t i = 1; i < chain.size(); ++i) {
    if (chain[i].link != ChainLink::kDuringHandling) continue;
    const std::string first = lower(chain[i - 1].exception + " " + chain[i - 1].message);
    if (contains(first, "out of memory") || contains(first, "outofmemory")) {
      out.add(Cause::kExceptionKeepsTensors, 80,
              "the second failure came while the first one's exception was being handled: its "
              "traceback still holds every tensor of the failed step");
      return;
    }
  }
}

// A second, smaller request that fails with as much in use as the first, after the program said
// that it would try again.
void weigh_retry(const Case& c, const Sighting* earlier, Findings& out) {
  if (earlier == nullptr || earlier->lane != c.sighting.lane) return;
  const MemoryMessage& before = earlier->message;
  if (!before.allocated || !c.m.allocated || !before.requested || !c.m.requested) return;
  if (c.m.requested->bytes >= before.requested->bytes) return;
  if (static_cast<double>(c.m.allocated->bytes) <
      0.9 * static_cast<double>(before.allocated->bytes)) {
    return;
  }
  const std::uint64_t lines = c.sighting.first_line - earlier->last_line;
  const std::size_t near = std::min<std::size_t>(c.sighting.before.size(), lines);
  for (std::size_t i = c.sighting.before.size() - near; i < c.sighting.before.size(); ++i) {
    const std::string line = lower(c.sighting.before[i]);
    if (contains_any(line, {"retry", "trying again", "try again", "smaller batch", "reducing batch",
                            "halving", "batch size to", "batch_size="})) {
      out.add(
          Cause::kExceptionKeepsTensors, 74,
          concat("a smaller retry failed with ", size(c.m.allocated), " still in use, after ",
                 size(before.allocated), " at the first failure: its tensors were not freed (\"",
                 c.sighting.before[i], "\")"));
      return;
    }
  }
}

void weigh_private_pools(const Case& c, Findings& out) {
  if (!c.m.private_pools || !c.m.requested) return;
  const Bytes pools = c.m.private_pools->bytes;
  if (c.capacity() != 0 && share(pools, c.capacity()) >= 0.10 && pools >= c.m.requested->bytes) {
    out.add(Cause::kGraphPrivatePool, 82,
            concat(format_bytes(pools), " are free in private pools of CUDA graphs, where ",
                   size(c.m.requested), " for others cannot be placed"));
  }
}

void weigh_full_device(const Case& c, Findings& out) {
  const MemoryMessage& m = c.m;
  if (m.capacity && m.requested && m.requested->bytes > m.capacity->bytes + m.capacity->half_step) {
    out.add(Cause::kBatchOrInputTooLarge, 70,
            concat("one request of ", size(m.requested), " is more than the whole device has, ",
                   size(m.capacity)));
  }
  if (m.family == MessageFamily::kMps) {
    out.add(Cause::kBatchOrInputTooLarge, 62,
            concat(size(m.allocated), " of tensors and ", size(m.other_allocations),
                   " of others fill what MPS may use"));
    return;
  }
  const bool working =
      c.phase == Phase::kForward || c.phase == Phase::kBackward || c.phase == Phase::kLoss;
  if (m.capacity && m.allocated) {
    const Bytes held = m.allocated->bytes + c.unused.value_or(0);
    const double held_share = share(held, c.capacity());
    int weight = held_share >= 0.85 ? 58 : held_share >= 0.6 ? 57 : held_share >= 0.4 ? 44 : 34;
    if (working && held_share >= 0.6) weight += 4;
    if (c.late) weight -= 12;
    out.add(Cause::kBatchOrInputTooLarge, weight,
            concat("PyTorch holds ", format_bytes(held), " of ", size(m.capacity), " (",
                   percent(held, c.capacity()), "%) and needs ", size(m.requested), " more",
                   working ? concat(" in the ", phase_name(c.phase), " pass") : std::string()));
  } else if (m.allowed && m.allocated) {
    out.add(Cause::kBatchOrInputTooLarge, 48,
            concat(size(m.allocated), " are allocated of ", size(m.allowed), " that are allowed"));
  } else if (m.requested && m.this_process && m.capacity) {
    out.add(Cause::kBatchOrInputTooLarge, working ? 54 : 44,
            concat("this process holds ", size(m.this_process), " of ", size(m.capacity),
                   " and needs ", size(m.requested), " more; the message breaks off there"));
  } else if (working) {
    out.add(Cause::kBatchOrInputTooLarge, 52,
            concat("raised in the ", phase_name(c.phase),
                   " pass; the message gives no sizes, so that this is the commonest cause there"));
  } else if (c.traceback == nullptr || c.phase == Phase::kUnknown) {
    out.add(Cause::kBatchOrInputTooLarge, 32,
            "the message gives no sizes, and nothing says what ran");
  }
  if (c.late) {
    // Some hundred steps fitted: either one is larger than those before, or something is kept.
    const bool outlier = c.large_request();
    const std::string fact = concat("the failure came ",
                                    c.steps > 50 ? concat("after ", c.steps, " steps")
                                                 : concat("in epoch ", *c.sighting.progress.epoch),
                                    " that fitted");
    const bool phase_tells = c.phase == Phase::kOptimizerStep || c.phase == Phase::kLoading ||
                             (c.traceback != nullptr && c.traceback->in_evaluation);
    if (!phase_tells) {
      out.add(Cause::kVariableShapes, outlier ? 66 : 52,
              fact + ": an input larger than those before it, or holes that grew");
      out.add(Cause::kHistoryAccumulation, outlier ? 46 : 56,
              fact + ": tensors of past steps are kept");
    }
  }
}

void weigh_device(const Case& c, Findings& out) {
  weigh_cap(c, out);
  weigh_free_but_refused(c, out);
  weigh_fragmentation(c, out);
  weigh_other_process(c, out);
  weigh_device_table(c, out);
  weigh_logits(c, out);
  weigh_attention(c, out);
  weigh_broadcast(c, out);
  weigh_phase(c, out);
  weigh_history(c, out);
  weigh_chain(c, out);
  weigh_private_pools(c, out);
  weigh_full_device(c, out);

  // What this process does matters less where others hold most of the device.
  const Bytes others = c.others ? *c.others : c.outside.value_or(0);
  if (c.m.capacity && c.m.allocated && share(others, c.capacity()) > 0.5) {
    for (Finding& finding : out.list()) {
      if (finding.cause != Cause::kOtherProcess && finding.cause != Cause::kRankContextsOnGpu0 &&
          finding.cause != Cause::kMemoryFractionCap) {
        finding.weight -= 20;
      }
    }
  }
}

void weigh_library(const Case& c, bool after_assert, Findings& out) {
  const std::string& status = c.m.detail;
  switch (c.m.family) {
    case MessageFamily::kCublas:
      if (status == "CUBLAS_STATUS_ALLOC_FAILED") {
        out.add(Cause::kNoHeadroomForLibraries, 76,
                "cuBLAS could not allocate its handle or workspace: PyTorch's pool and others hold "
                "the whole device");
      } else {
        out.add(Cause::kNoHeadroomForLibraries, after_assert ? 30 : 58,
                "cuBLAS could not start, which a full device causes, and so does an earlier failed "
                "kernel");
        out.add(Cause::kNotMemory, after_assert ? 88 : 46,
                "cuBLAS reports this also after a failed kernel (an index out of range) or with a "
                "mismatched library");
      }
      break;
    case MessageFamily::kCudnn:
      if (status == "no engine") {
        out.add(Cause::kLibraryWorkspace, 68,
                "cuDNN found no way to run a convolution in the memory that is left");
        out.add(Cause::kNotMemory, 44,
                "cuDNN says the same for shapes, types and libraries that it does not support");
      } else {
        out.add(Cause::kNoHeadroomForLibraries, status == "CUDNN_STATUS_ALLOC_FAILED" ? 74 : 56,
                concat("cuDNN could not allocate (", status,
                       "): its memory is not PyTorch's, and none was left"));
        if (status != "CUDNN_STATUS_ALLOC_FAILED") {
          out.add(Cause::kNotMemory, after_assert ? 86 : 44,
                  "cuDNN reports this also with a mismatched library or driver");
        }
      }
      break;
    case MessageFamily::kNccl:
      out.add(Cause::kNoHeadroomForLibraries, 80,
              concat("NCCL could not allocate its buffers",
                     c.m.requested ? " (" + size(c.m.requested) + ")" : std::string(),
                     ": they lie outside PyTorch's pool, which holds the device"));
      break;
    default:
      break;
  }
}

// Lines before or after a sighting that tell of a DataLoader's workers.
bool tells_of_workers(const Case& c) {
  for (const auto* lines : {&c.sighting.before, &c.sighting.after}) {
    for (const std::string& line : *lines) {
      if (contains_any(line, {"DataLoader worker", "_MultiProcessingDataLoaderIter",
                              "pt_data_worker", "num_workers"})) {
        return true;
      }
    }
  }
  return contains(c.frames, "torch/utils/data/");
}

bool tells_of_shm(const Case& c) {
  for (const auto* lines : {&c.sighting.before, &c.sighting.after}) {
    for (const std::string& line : *lines) {
      if (contains_any(line, {"Bus error", "bus error", "shared memory", "/dev/shm"})) return true;
    }
  }
  return false;
}

void weigh_host(const Case& c, Findings& out) {
  const MemoryMessage& m = c.m;
  switch (m.family) {
    case MessageFamily::kCpuAllocator:
    case MessageFamily::kArrayTooLarge: {
      const std::string asked = m.requested ? " for " + size(m.requested) : std::string();
      out.add(Cause::kHostRamExhausted, 86,
              concat("the host's memory, not the device's, had no room", asked));
      if (c.requested() >= (Bytes{1} << 42)) {
        out.add(Cause::kUnintendedBroadcast, 88,
                concat(size(m.requested),
                       " at once: a shape is wrong (a broadcast, an outer product, an overflow)"));
      }
      if (makes_weight(c)) {
        out.add(
            Cause::kHugeLinear, 92,
            concat("raised while a layer's weight of ", size(m.requested), " is made: ", c.code));
      }
      if (tells_of_workers(c)) {
        out.add(
            Cause::kHostRamDataloader, 80,
            "raised in a DataLoader's worker: each worker holds its own copy of what it touches");
      }
      break;
    }
    case MessageFamily::kDataLoader:
      if (m.detail == "Bus error") {
        out.add(Cause::kShmExhausted, 93,
                "a DataLoader worker died of a bus error: shared memory (/dev/shm) is full");
      } else if (m.detail == "Killed") {
        out.add(Cause::kHostRamDataloader, 88,
                "a DataLoader worker was killed by the system, which does that when RAM runs out");
      } else if (tells_of_shm(c)) {
        out.add(Cause::kShmExhausted, 82,
                "DataLoader workers vanished and the log tells of shared memory");
      } else {
        out.add(Cause::kHostRamDataloader, 52,
                "DataLoader workers vanished without a message, as when the system kills them");
        out.add(Cause::kShmExhausted, 46, "a full /dev/shm can end workers in the same way");
        out.add(Cause::kNotMemory, 40,
                "an error in a worker's own code can end it in the same way");
      }
      break;
    case MessageFamily::kSharedMemory:
      if (m.detail == "no reason given") {
        out.add(
            Cause::kShmExhausted, 70,
            "a shared memory object could not be opened: /dev/shm is full, or too many files are "
            "open");
        out.add(Cause::kNotMemory, 48, "the limit of open files gives the same message: ulimit -n");
        break;
      }
      out.add(Cause::kShmExhausted, m.exit_code ? 64 : 91,
              m.exit_code ? concat("the process ended with ", *m.exit_code,
                                   ", a bus error, as when /dev/shm is full")
                          : "shared memory (/dev/shm) had no room");
      break;
    case MessageFamily::kKernelOomKill: {
      const bool worker = contains(m.detail, "data_worker") || tells_of_workers(c);
      const std::string who =
          concat("the kernel killed process ", m.pid.value_or(0),
                 m.detail.empty() ? std::string() : " (" + m.detail + ")",
                 m.anon_rss ? " at " + format_bytes(*m.anon_rss) + " of RAM" : std::string());
      out.add(worker ? Cause::kHostRamDataloader : Cause::kHostRamExhausted, 95, who);
      if (worker) out.add(Cause::kHostRamExhausted, 60, who);
      if (m.shmem_rss && m.anon_rss && *m.shmem_rss > *m.anon_rss) {
        out.add(Cause::kShmExhausted, 62,
                concat(who, ", more of it shared memory (", format_bytes(*m.shmem_rss), ")"));
      }
      break;
    }
    case MessageFamily::kJobMemoryLimit:
      out.add(Cause::kHostRamExhausted, 92,
              concat("the job system ended the job for its RAM: ", c.sighting.text));
      if (tells_of_workers(c)) {
        out.add(Cause::kHostRamDataloader, 80, "and the log tells of DataLoader workers");
      }
      break;
    case MessageFamily::kKilled:
      if (m.detail == "by the launcher") {
        out.add(Cause::kUnknown, 30,
                "the launcher ended this process because another one failed: look for the first "
                "error");
        break;
      }
      out.add(Cause::kHostRamExhausted, 58,
              "the process was killed (signal 9) and the log does not say by whom: the kernel does "
              "that when RAM runs out, and so do people and schedulers");
      if (tells_of_workers(c)) {
        out.add(Cause::kHostRamDataloader, 56, "and the log tells of DataLoader workers");
      }
      break;
    default:
      break;
  }
}

// A budget says itself what was asked for, what is allowed and what would be enough.
void weigh_budget(const Case& c, Findings& out) {
  const MemoryMessage& m = c.m;
  if (m.family != MessageFamily::kBudget) return;
  Finding& finding = out.add(
      Cause::kMemoryFractionCap, 95,
      concat("Lowtide's budget of ", size(m.allowed), " refused ", size(m.requested), " to ",
             m.detail, " with ", size(m.allocated), " live, none of it to be given back"));
  finding.has_own_fixes = true;
  finding.fixes = {"checkpoint the layers: num_cp (lowtide::checkpoint_wrapper)",
                   "halve the batch and accumulate: loss / k, optimizer.step() every k batches",
                   "let go of what the program itself holds: the message names it by op"};
  if (!m.smallest_budget) return;
  finding.why += concat("; this step needs ", m.smallest_budget_is_bound ? "at least " : "",
                        format_bytes(*m.smallest_budget));
  finding.fixes.insert(
      finding.fixes.begin(),
      concat("a budget of ", m.smallest_budget_is_bound ? "at least " : "", *m.smallest_budget,
             " bytes: lowtide::MemoryBudget(", *m.smallest_budget, "), or lowtide train --budget ",
             *m.smallest_budget));
}

void weigh_not_memory(const Case& c, Findings& out) {
  switch (c.m.family) {
    case MessageFamily::kOverOneExabyte:
      out.add(Cause::kNotMemory, 95,
              "more than 1 EB was asked for: the size is a damaged or negative number, not a need");
      break;
    case MessageFamily::kSizeOverflow:
      out.add(Cause::kNotMemory, 93, "a tensor's size overflowed: a shape is wrong");
      break;
    case MessageFamily::kKernelResources:
      out.add(Cause::kNotMemory, 93,
              concat("a kernel asked for more on-chip ", c.m.detail,
                     " than the device has; its main memory is not meant"));
      break;
    case MessageFamily::kNotMemory:
      out.add(Cause::kNotMemory, 88, concat("the message speaks of something else: ", c.m.detail));
      break;
    default:
      break;
  }
}

std::string place_of(const Sighting& sighting, const LogEvidence& log) {
  if (sighting.message.family == MessageFamily::kSnapshotFailure) {
    return concat(log.source, ", event ", sighting.first_line);
  }
  std::string out = concat(log.source, ":", sighting.first_line);
  if (!sighting.lane.empty()) out += " [" + sighting.lane + "]";
  return out;
}

void add_evidence(Finding& finding, const Case& c) {
  auto& evidence = finding.evidence;
  evidence.push_back(concat(place_of(c.sighting, c.log), ": ", c.sighting.text));
  if (c.traceback != nullptr && !c.traceback->frames.empty()) {
    const Frame& frame = c.user != nullptr ? *c.user : c.traceback->frames.back();
    std::string place = concat(frame.file, frame.line != 0 ? concat(":", frame.line) : "");
    if (!frame.function.empty()) place += " in " + frame.function;
    if (!frame.code.empty()) place += ": " + frame.code;
    evidence.push_back(place);
    std::string when = concat("phase: ", phase_name(c.phase));
    if (c.traceback->in_evaluation) when += ", in an evaluation";
    if (c.traceback->in_checkpoint) when += ", in a checkpointed region";
    evidence.push_back(when);
  }
  if (!c.sighting.progress.text.empty()) {
    evidence.push_back("progress: " + c.sighting.progress.text);
  }
  if (c.sighting.count > 1) {
    evidence.push_back(concat("the same message stands ", c.sighting.count, " times"));
  }
}

void judge(const Case& c, bool after_assert, const Sighting* earlier, Findings& all) {
  const bool after_device_message = earlier != nullptr;
  Findings out;
  if (on_device(c.m.family)) {
    weigh_device(c, out);
    weigh_retry(c, earlier, out);
  }
  weigh_library(c, after_assert, out);
  weigh_host(c, out);
  weigh_not_memory(c, out);
  weigh_budget(c, out);
  for (Finding& finding : out.list()) {
    int weight = finding.weight;
    // A process that died of the device's OOM takes others with it: what follows is the echo.
    if (after_device_message && !on_device(c.m.family) &&
        c.m.family != MessageFamily::kKernelOomKill &&
        c.m.family != MessageFamily::kJobMemoryLimit) {
      weight -= 40;
    }
    weight = std::clamp(weight, 0, 100);
    Finding& merged = all.add(finding.cause, weight, finding.why);
    if (merged.evidence.size() < 4) add_evidence(merged, c);
    merged.has_own_fixes |= finding.has_own_fixes;
    for (std::string& fix : finding.fixes) {
      if (std::find(merged.fixes.begin(), merged.fixes.end(), fix) == merged.fixes.end()) {
        merged.fixes.push_back(std::move(fix));
      }
    }
  }
}

Confidence confidence_of(int weight) {
  if (weight >= kCertainFrom) return Confidence::kCertain;
  if (weight >= kLikelyFrom) return Confidence::kLikely;
  return Confidence::kPossible;
}

}  // namespace

const char* confidence_name(Confidence confidence) {
  switch (confidence) {
    case Confidence::kCertain:
      return "certain";
    case Confidence::kLikely:
      return "likely";
    case Confidence::kPossible:
      return "possible";
    case Confidence::kUnknown:
      return "unknown";
  }
  return "";
}

std::optional<Factors> factor_logits(const PrintedBytes& printed,
                                     const std::vector<Bytes>& numbers) {
  constexpr std::array<Bytes, 2> kElementBytes{4, 2};
  // Both lengths stand in the log: the larger is the vocabulary where it is a known one, and else
  // the one past ten thousand.
  for (const Bytes vocabulary : numbers) {
    if (vocabulary < 10000) continue;
    const bool known =
        std::find(kVocabularies.begin(), kVocabularies.end(), vocabulary) != kVocabularies.end();
    for (const Bytes tokens : numbers) {
      if (tokens < 64 || tokens == vocabulary) continue;
      if (!known && tokens > vocabulary) continue;
      for (const Bytes element : kElementBytes) {
        if (auto factors = two_lengths(printed, tokens, vocabulary, element)) return factors;
      }
    }
  }
  // One length stands in the log, the vocabulary: tokens follow when rounding leaves one multiple
  // of 64.
  std::optional<Factors> only;
  const auto take = [&](Bytes vocabulary) {
    for (const Bytes element : kElementBytes) {
      const Bytes row = vocabulary * element;
      const Bytes tokens = (printed.bytes + row / 2) / row;
      const Bytes rounded = (tokens + 32) / 64 * 64;
      if (rounded == 0) continue;
      if (auto factors = two_lengths(printed, rounded, vocabulary, element)) {
        if (only) return false;
        only = std::move(factors);
      }
    }
    return true;
  };
  for (const Bytes vocabulary : kVocabularies) {
    const bool printed_there =
        std::find(numbers.begin(), numbers.end(), vocabulary) != numbers.end();
    if (printed_there && !take(vocabulary)) return std::nullopt;
  }
  if (only) return only;
  for (const Bytes vocabulary : kVocabularies) {
    if (!take(vocabulary)) return std::nullopt;
  }
  return only;
}

Diagnosis diagnose(const std::vector<LogEvidence>& logs) { return diagnose(logs, {}, {}); }

Diagnosis diagnose(const std::vector<LogEvidence>& logs,
                   const std::vector<SnapshotFacts>& snapshots,
                   const std::vector<TapeFacts>& tapes) {
  Findings all;
  Diagnosis result;
  int heaviest = -1;
  const auto judge_log = [&](const LogEvidence& log) {
    const Sighting* earlier = nullptr;  // the last message about the device
    std::uint64_t assert_line = 0;
    for (const NoticeSighting& notice : log.notices) {
      if (notice.notice == Notice::kDeviceAssert) assert_line = notice.line;
    }
    for (const Sighting& sighting : log.sightings) {
      const Case c = examine(sighting, log);
      const bool after_assert = assert_line != 0 && assert_line <= sighting.first_line;
      judge(c, after_assert, earlier, all);
      if (on_device(c.m.family)) earlier = &sighting;
      int best = -1;
      for (const Finding& finding : all.list()) best = std::max(best, finding.weight);
      if (best > heaviest) {
        heaviest = best;
        result.sighting = &sighting;
        result.log = &log;
      }
    }
    weigh_notices(log, all);
  };
  for (const LogEvidence& log : logs) judge_log(log);
  for (const SnapshotFacts& snapshot : snapshots) {
    for (const DeviceFacts& device : snapshot.devices) {
      // What a log tells of the same failure tells more: the lines themselves, and the card.
      if (device.message == nullptr || (!device.is_budget && device.message->tracebacks.empty())) {
        judge_log(device.as_log);
      }
    }
  }
  const bool has_failed =
      std::any_of(logs.begin(), logs.end(),
                  [](const LogEvidence& log) {
                    return std::any_of(
                        log.sightings.begin(), log.sightings.end(), [](const Sighting& sighting) {
                          return on_device(sighting.message.family) ||
                                 sighting.message.family == MessageFamily::kBudget ||
                                 sighting.message.family == MessageFamily::kCpuAllocator;
                        });
                  }) ||
      std::any_of(snapshots.begin(), snapshots.end(), [](const SnapshotFacts& snapshot) {
        return std::any_of(snapshot.devices.begin(), snapshot.devices.end(),
                           [](const DeviceFacts& device) { return device.failure.has_value(); });
      });
  for (const SnapshotFacts& snapshot : snapshots) weigh_snapshot(snapshot, has_failed, all);
  for (const TapeFacts& tape : tapes) weigh_tape(tape, logs, snapshots, has_failed, all);
  result.conflicts = find_conflicts(logs, snapshots, tapes);
  for (Finding& finding : all.list()) {
    if (finding.weight < kPossibleFrom) continue;
    finding.confidence =
        finding.cause == Cause::kUnknown ? Confidence::kUnknown : confidence_of(finding.weight);
    result.findings.push_back(std::move(finding));
  }
  std::stable_sort(result.findings.begin(), result.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.weight > b.weight; });
  // Eight are more than anybody acts on.
  if (result.findings.size() > 8) result.findings.resize(8);
  if (result.findings.empty()) {
    Finding unknown;
    unknown.why = result.sighting != nullptr
                      ? "a memory message is there, but not what it would take to say why"
                  : snapshots.empty() && tapes.empty() ? "no message about memory was found"
                                                       : "nothing failed in what was given";
    if (result.sighting != nullptr) {
      unknown.evidence.push_back(
          concat(place_of(*result.sighting, *result.log), ": ", result.sighting->text));
    }
    for (const LogEvidence& log : logs) {
      unknown.evidence.push_back(concat(log.source, ": ", log.totals.lines, " lines read"));
      for (const Traceback& traceback : log.last_tracebacks) {
        if (!traceback.exception.empty()) {
          unknown.evidence.push_back(
              concat("last exception: ", traceback.exception, ": ", traceback.message));
        }
      }
    }
    for (const SnapshotFacts& snapshot : snapshots) {
      for (const DeviceFacts& device : snapshot.devices) {
        unknown.evidence.push_back(summary_of(snapshot, device));
      }
    }
    for (const TapeFacts& tape : tapes) unknown.evidence.push_back(summary_of(tape));
    if (!snapshots.empty() || !tapes.empty()) {
      unknown.fixes = {"give the log of the run that failed beside these files",
                       "dump the snapshot where it fails, in the except block or with "
                       "lowtide::write_memory_report"};
      unknown.has_own_fixes = true;
    }
    result.findings.push_back(std::move(unknown));
  }
  for (Finding& finding : result.findings) {
    if (finding.has_own_fixes) continue;
    const std::vector<std::string> own = finding.fixes;
    for (const std::string_view fix : cause_info(finding.cause).fixes) {
      const bool is_said = std::any_of(own.begin(), own.end(), [&fix](const std::string& said) {
        return said.starts_with(fix);
      });
      if (!is_said) finding.fixes.emplace_back(fix);
    }
  }
  return result;
}

}  // namespace lowtide
