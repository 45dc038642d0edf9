#include "src/diagnose/diagnosis.h"

#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "src/base/text.h"

using namespace lowtide;

namespace {

LogEvidence log_of(const std::string& text, const std::string& name = "log") {
  return read_log_text(text, name);
}

// Findings of one log, copied out.
std::vector<Finding> findings(const std::string& text) {
  const std::vector<LogEvidence> logs{log_of(text)};
  return diagnose(logs).findings;
}

std::string first(const std::string& text) {
  return std::string(cause_info(findings(text).front().cause).slug);
}

}  // namespace

TEST_CASE(
    "every cause of the contract has a name, a title and fixes, and all but unknown a record") {
  const std::vector<std::string_view> slugs{"batch_or_input_too_large",
                                            "sequence_too_long",
                                            "logits_over_vocab",
                                            "huge_linear",
                                            "unintended_broadcast",
                                            "optimizer_state",
                                            "history_accumulation",
                                            "predictions_kept_on_device",
                                            "exception_keeps_tensors",
                                            "eval_without_no_grad",
                                            "fragmentation",
                                            "variable_shapes",
                                            "other_process",
                                            "rank_contexts_on_gpu0",
                                            "checkpoint_loaded_on_device",
                                            "memory_fraction_cap",
                                            "no_headroom_for_libraries",
                                            "library_workspace",
                                            "graph_private_pool",
                                            "host_ram_exhausted",
                                            "host_ram_dataloader",
                                            "shm_exhausted",
                                            "checkpointing_unavailable",
                                            "checkpointing_inactive",
                                            "not_memory",
                                            "unknown"};
  REQUIRE(all_causes().size() == slugs.size());
  for (std::size_t i = 0; i < slugs.size(); ++i) {
    const CauseInfo& info = all_causes()[i];
    CHECK(info.slug == slugs[i]);
    CHECK(cause_info(info.cause).slug == slugs[i]);
    CHECK_FALSE(info.title.empty());
    CHECK(info.fixes.size() >= 2);
    CHECK(info.record.empty() == (info.cause == Cause::kUnknown));
  }
}

TEST_CASE("17.37 GiB is 30688 tokens times 151936 of vocabulary") {
  const PrintedBytes size{static_cast<Bytes>(17.37 * (1u << 30)), (1u << 30) / 200};
  const auto factors = factor_logits(size, {64, 30688, 151936, 2048});
  REQUIRE(factors.has_value());
  CHECK(factors->lengths == std::vector<Bytes>{30688, 151936});
  CHECK(factors->element_bytes == 4);
  CHECK(factors->words == "17.37 GiB = 30688 tokens x 151936 vocabulary x 4 bytes");
  // The numbers of the log that do not give it.
  CHECK_FALSE(factor_logits(size, {100, 20000}).has_value());

  const auto log = findings(
      "in_feat.shape torch.Size([30688, 151936])\n"
      "Traceback (most recent call last):\n"
      "  File \"train.py\", line 9, in step\n"
      "    loss = F.cross_entropy(logits.float(), labels)\n"
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 17.37 GiB. GPU 0 has a total "
      "capacity of 31.50 GiB of which 9.48 GiB is free. Of the allocated memory 20.91 GiB is "
      "allocated by PyTorch, and 833.28 MiB is reserved by PyTorch but unallocated.\n");
  CHECK(log.front().cause == Cause::kLogitsOverVocab);
  CHECK(log.front().why.find("30688 tokens x 151936 vocabulary x 4 bytes") != std::string::npos);
}

TEST_CASE("without lengths in the log the factors are given as examples, not as a fact") {
  const auto found = findings(
      "Traceback (most recent call last):\n  File \"train.py\", line 9, in step\n"
      "    logits = self.lm_head(hidden).float()\n"
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 17.37 GiB. GPU 0 has a total "
      "capacity of 31.50 GiB of which 9.48 GiB is free. Of the allocated memory 20.91 GiB is "
      "allocated by PyTorch, and 833.28 MiB is reserved by PyTorch but unallocated.\n");
  CHECK(found.front().cause == Cause::kLogitsOverVocab);
  CHECK(found.front().confidence == Confidence::kLikely);
  CHECK(found.front().why.find("would be 30688 tokens x 151936 (Qwen 2 and 3)") !=
        std::string::npos);
}

TEST_CASE("factors are exact: a wrong number of tokens is not taken, rounding to 2 MiB is") {
  const auto printed_exactly = [](Bytes bytes) { return PrintedBytes{bytes, 0}; };
  CHECK(factor_logits(printed_exactly(Bytes{4096} * 128256 * 4), {4096, 128256}).has_value());
  CHECK_FALSE(factor_logits(printed_exactly(Bytes{4096} * 128256 * 4 + 4), {4096, 128256}));
  const Bytes exact = Bytes{1000} * 32000 * 2;
  const Bytes rounded = (exact + (2u << 20) - 1) / (2u << 20) * (2u << 20);
  CHECK(factor_logits(printed_exactly(rounded), {1000, 32000})->element_bytes == 2);
}

TEST_CASE(
    "fairscale's refusal is certain, in all its three classes, with the blanks of its source") {
  for (const char* file :
       {"deformable_detr_layers.py", "detr_layers.py", "grounding_dino_layers.py"}) {
    const auto found = findings(concat(
        "Traceback (most recent call last):\n  File \"mmdet/models/layers/transformer/", file,
        "\", line 33, in _init_layers\n    raise NotImplementedError(\n"
        "NotImplementedError: If you want to reduce GPU memory usage,                     please "
        "install fairscale by executing the                     following command: pip install "
        "fairscale.\n"));
    CHECK(found.front().cause == Cause::kCheckpointingUnavailable);
    CHECK(found.front().confidence == Confidence::kCertain);
  }
}

TEST_CASE("a retry inside an except block is told by the chain") {
  const auto found = findings(
      "Traceback (most recent call last):\n  File \"t.py\", line 5, in run\n    y = model(x)\n"
      "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 8.00 GiB total "
      "capacity; "
      "6.10 GiB already allocated; 300.00 MiB free; 6.20 GiB reserved in total by PyTorch)\n\n"
      "During handling of the above exception, another exception occurred:\n\n"
      "Traceback (most recent call last):\n  File \"t.py\", line 8, in run\n    y = model(x[:1])\n"
      "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 8.00 GiB total "
      "capacity; "
      "6.10 GiB already allocated; 300.00 MiB free; 6.20 GiB reserved in total by PyTorch)\n");
  CHECK(found.front().cause == Cause::kExceptionKeepsTensors);
}

TEST_CASE("a smaller retry that finds as much in use is told without a traceback") {
  const std::string first_try =
      "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 5.90 GiB "
      "already "
      "allocated; 1.10 GiB free; 5.95 GiB reserved in total by PyTorch)\n";
  const std::string second_try =
      "CUDA out of memory. Tried to allocate 1.20 GiB (GPU 0; 8.00 GiB total capacity; 5.90 GiB "
      "already "
      "allocated; 1.10 GiB free; 5.95 GiB reserved in total by PyTorch)\n";
  CHECK(first(first_try + "retrying with batch size 16\n" + second_try) ==
        "exception_keeps_tensors");
  CHECK(first(first_try + "next epoch\n" + second_try) != "exception_keeps_tensors");
}

TEST_CASE("a loss that asks for a third of the device is a broadcast") {
  const std::string end =
      "RuntimeError: CUDA out of memory. Tried to allocate 14.90 GiB (GPU 0; 23.65 GiB total "
      "capacity; "
      "1.20 GiB already allocated; 21.00 GiB free; 1.30 GiB reserved in total by PyTorch)\n";
  for (const char* code : {"loss = F.mse_loss(pred, target)",
                           "loss = ((pred - target) ** 2).mean()", "error = pred - target"}) {
    INFO(code);
    CHECK(first(concat("Traceback (most recent call last):\n  File \"t.py\", line 5, in step\n    ",
                       code, "\n", end)) != "batch_or_input_too_large");
  }
  const std::string larger =
      "RuntimeError: CUDA out of memory. Tried to allocate 37.25 GiB (GPU 0; 23.65 GiB total "
      "capacity; "
      "1.20 GiB already allocated; 21.00 GiB free; 1.30 GiB reserved in total by PyTorch)\n";
  CHECK(first("Traceback (most recent call last):\n  File \"t.py\", line 5, in step\n"
              "    loss = F.mse_loss(pred, target)\n" +
              larger) == "unintended_broadcast");
}

TEST_CASE("one parameter that fills the device is a layer larger than meant") {
  CHECK(
      first(
          "Traceback (most recent call last):\n  File \"t.py\", line 5, in main\n    model.cuda()\n"
          "  File \"/x/lib/python3.9/site-packages/torch/nn/modules/module.py\", line 680, in "
          "<lambda>\n"
          "    return self._apply(lambda t: t.cuda(device))\n"
          "RuntimeError: CUDA out of memory. Tried to allocate 9.19 GiB (GPU 0; 10.76 GiB total "
          "capacity; 52.00 MiB already allocated; 9.10 GiB free; 60.00 MiB reserved in total by "
          "PyTorch)\n") == "huge_linear");
}

TEST_CASE("processes of a context's size on GPU 0, all alike, are other ranks") {
  std::string text =
      "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 39.39 GiB "
      "of "
      "which 200.00 MiB is free. Process 101 has 35.10 GiB memory in use. ";
  for (int pid = 102; pid < 107; ++pid)
    text += concat("Process ", pid, " has 520.00 MiB memory in use. ");
  CHECK(
      first(text +
            "Of the allocated memory 33.80 GiB is allocated by PyTorch, and 500.00 MiB is reserved "
            "by PyTorch but unallocated.\n") == "rank_contexts_on_gpu0");
}

TEST_CASE("memory that rises at every step is history, a peak that rises now and then is not") {
  std::string rising;
  std::string peaks;
  for (int i = 0; i < 12; ++i) {
    rising += concat("step ", 100 + i, " loss 0.5 gpu mem: ", 4000 + 250 * i, " MB\n");
    peaks += concat("step ", 100 + i, " loss 0.5 max mem: ", i < 6 ? 4000 : 6900, " MB\n");
  }
  const std::string end =
      "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total "
      "capacity; "
      "7.20 GiB already allocated; 10.00 MiB free; 7.30 GiB reserved in total by PyTorch)\n";
  CHECK(first(rising + end) == "history_accumulation");
  for (const Finding& finding : findings(peaks + end)) {
    if (finding.cause == Cause::kHistoryAccumulation)
      CHECK(finding.confidence == Confidence::kPossible);
  }
}

TEST_CASE("the code line that failed is enough to know a sum of losses") {
  CHECK(first("Traceback (most recent call last):\n  File \"t.py\", line 5, in run\n"
              "    running_loss += loss * x.size(0)\nRuntimeError: CUDA error: out of memory\n") ==
        "history_accumulation");
  CHECK(first("Traceback (most recent call last):\n  File \"t.py\", line 5, in run\n"
              "    running_loss += loss.item()\nRuntimeError: CUDA error: out of memory\n") !=
        "history_accumulation");
}

TEST_CASE("a kernel's log beside the training log names the one who was killed") {
  const std::vector<LogEvidence> logs{
      log_of("epoch 3 step 200\nKilled\n", "train.log"),
      log_of("[12345.678901] Out of memory: Killed process 24181 (python) total-vm:81236928kB, "
             "anon-rss:62451712kB, file-rss:71680kB, shmem-rss:8192kB\n",
             "kernel.log")};
  const Diagnosis diagnosis = diagnose(logs);
  CHECK(diagnosis.findings.front().cause == Cause::kHostRamExhausted);
  CHECK(diagnosis.findings.front().confidence == Confidence::kCertain);
  CHECK(diagnosis.findings.front().why.find("24181") != std::string::npos);
  CHECK(diagnosis.findings.front().why.find("59.6 GiB") != std::string::npos);
  CHECK(diagnosis.log->source == "kernel.log");
}

TEST_CASE("findings are never empty, and each is ranked, told and fixed") {
  for (const char* text : {"", "\n", "hello\n", "CUDA error: out of memory\n", "exit code 137\n"}) {
    const auto found = findings(text);
    REQUIRE_FALSE(found.empty());
    std::set<Cause> causes;
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(causes.insert(found[i].cause).second);
      CHECK_FALSE(found[i].why.empty());
      CHECK_FALSE(found[i].fixes.empty());
      if (i > 0) CHECK(found[i].weight <= found[i - 1].weight);
    }
  }
  CHECK(findings("hello\n").front().confidence == Confidence::kUnknown);
}

TEST_CASE("ranks that fail on their own devices are one cause, not many") {
  std::string text;
  for (int rank = 0; rank < 8; ++rank) {
    text +=
        concat("[rank", rank,
               "]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
               "64.00 MiB. GPU ",
               rank,
               " has a total capacity of 39.39 GiB of which 30.00 MiB is "
               "free. Including non-PyTorch memory, this process has 39.30 GiB memory in use. Of "
               "the allocated memory 38.20 GiB is allocated by PyTorch, and 100.00 MiB is reserved "
               "by PyTorch but unallocated.\n");
  }
  const auto found = findings(text);
  CHECK(found.front().cause == Cause::kBatchOrInputTooLarge);
  CHECK(std::count_if(found.begin(), found.end(), [](const Finding& finding) {
          return finding.cause == Cause::kBatchOrInputTooLarge;
        }) == 1);
}
