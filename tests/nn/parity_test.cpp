#include "src/nn/parity.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "lowtide/error.h"
#include "lowtide/safetensors.h"

namespace {

namespace fs = std::filesystem;
using lowtide::ParityReport;
using lowtide::ParityTensor;
using lowtide::SafetensorsFile;
using lowtide::verify_parity_file;

fs::path vector_path(const std::string& name) {
  return fs::path(LOWTIDE_SOURCE_DIR) / "tests/data/detr" / (name + ".safetensors");
}

// Verifies a copy of the parity file `name` after `change`, under a name that tells nothing.
ParityReport verify_changed(const std::string& name,
                            const std::function<void(SafetensorsFile&)>& change,
                            std::int64_t num_cp = 0) {
  SafetensorsFile file = lowtide::load_safetensors(vector_path(name));
  change(file);
  const fs::path path =
      fs::temp_directory_path() / ("lowtide-parity-" + std::to_string(::getpid()) + ".bin");
  struct Removal {
    const fs::path& path;
    ~Removal() { fs::remove(path); }
  } removal{path};
  lowtide::save_safetensors(path, file.tensors, file.metadata);
  return verify_parity_file(path, {.num_cp = num_cp});
}

template <typename Refusal>
void check_refused(const std::string& name, const std::function<void(SafetensorsFile&)>& change,
                   const std::string& id, const std::string& part, std::int64_t num_cp = 0) {
  try {
    verify_changed(name, change, num_cp);
    FAIL("not refused: ", part);
  } catch (const Refusal& error) {
    const std::string message = error.what();
    CHECK(error.id() == id);
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
}

const ParityTensor* find(const ParityReport& report, const std::string& name) {
  for (const ParityTensor& tensor : report.tensors) {
    if (tensor.name == name) {
      return &tensor;
    }
  }
  return nullptr;
}

const ParityTensor& at_name(const ParityReport& report, const std::string& name) {
  const ParityTensor* tensor = find(report, name);
  REQUIRE_MESSAGE(tensor != nullptr, name);
  return *tensor;
}

void replace_in_case(SafetensorsFile& file, const std::string& from, const std::string& to) {
  std::string& text = file.metadata.at("case");
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("every public vector passes with no, one and all layers checkpointed") {
  const std::pair<const char*, std::int64_t> kVectors[] = {
      {"p1_basic", 2}, {"p2_pad", 2}, {"p3_one_level", 1}, {"p4_std_hash", 6}, {"msda_op", 99}};
  for (const auto& [name, layers] : kVectors) {
    for (const std::int64_t num_cp : {std::int64_t{-1}, std::int64_t{1}, layers}) {
      const ParityReport report = verify_parity_file(vector_path(name), {.num_cp = num_cp});
      CHECK_MESSAGE(report.passed, std::string(name), " with num_cp ", num_cp, "\n",
                    parity_text(report));
    }
  }
}

TEST_CASE("files of a separate float64 script pass: many levels, no mask, one token, borders") {
  const std::pair<const char*, std::int64_t> kVectors[] = {
      {"v1_eight_levels", 2}, {"v2_nomask", 2}, {"v3_one_token", 3}, {"v4_borders", 6}};
  for (const auto& [name, layers] : kVectors) {
    for (const std::int64_t num_cp : {std::int64_t{0}, layers}) {
      const ParityReport report = verify_parity_file(vector_path(name), {.num_cp = num_cp});
      CHECK_MESSAGE(report.passed, std::string(name), " with num_cp ", num_cp, "\n",
                    parity_text(report));
    }
  }
}

TEST_CASE("a full-size file passes by norms, without single gradients" *
          doctest::test_suite("slow")) {
  const ParityReport report = verify_parity_file(vector_path("v5_full"), {.num_cp = 6});
  CHECK_MESSAGE(report.passed, parity_text(report));
  CHECK(find(report, "grad.feat.val") == nullptr);
  CHECK(at_name(report, "grad.feat.norm").tolerance == 1e-3);
  CHECK(report.loss->spread > 0);
}

TEST_CASE("a single gradient of a hash file that is wrong fails it, whatever float32 can reach") {
  const auto nudge = [](SafetensorsFile& file) {
    at::Tensor& values = file.tensors.at("grad.feat.val");
    values[0] += values.abs().max().item<double>() * 3e-5;
  };
  for (const char* name : {"p4_std_hash", "v4_borders"}) {
    const ParityReport report = verify_changed(name, nudge);
    CHECK_FALSE(report.passed);
    CHECK_FALSE(at_name(report, "grad.feat.val").passed());
    CHECK(at_name(report, "grad.feat.norm").passed());
  }
}

TEST_CASE("a loss is measured by its own size, and by its spread where one is given") {
  CHECK(lowtide::ParityLoss{1.000009, 1}.passed());
  CHECK_FALSE(lowtide::ParityLoss{1.000011, 1}.passed());
  CHECK(lowtide::ParityLoss{1.9, 1, 1e5}.passed());
  CHECK_FALSE(lowtide::ParityLoss{2.1, 1, 1e5}.passed());
  CHECK(lowtide::ParityLoss{0, 0}.passed());
  CHECK_FALSE(lowtide::ParityLoss{1e-9, 0}.passed());
  CHECK_FALSE(lowtide::ParityLoss{std::nan(""), 1, 1e5}.passed());
}

TEST_CASE("a small file compares everything that it stores, by the tolerances of the format") {
  const ParityReport report = verify_parity_file(vector_path("p2_pad"));
  CHECK(report.case_name == "p2_pad");
  CHECK(report.ignored.empty());
  CHECK(at_name(report, "out.memory").tolerance == 5e-6);
  CHECK(at_name(report, "out.layer0").tolerance == 5e-6);
  CHECK(at_name(report, "grad.feat").tolerance == 1e-5);
  CHECK(at_name(report, "grad.param.layers.1.norms.0.bias").tolerance == 1e-5);
  CHECK(at_name(report, "in.key_padding_mask").tolerance == 0);
  for (const char* name : {"in.spatial_shapes", "in.level_start_index", "in.valid_ratios",
                           "pre.sine_pos", "in.query_pos", "ref.reference_points"}) {
    at_name(report, name);
  }
  // 2 layers of 16 parameters, feat, query_pos, 2 layers' outputs and the memory, and the 7 above.
  CHECK(report.tensors.size() == 2 * 16 + 2 + 3 + 7);
  CHECK(report.loss->expected == doctest::Approx(-60.067546619536515).epsilon(1e-15));
}

TEST_CASE("a hash file compares sampled values and the norms of the gradients") {
  const ParityReport report = verify_parity_file(vector_path("p4_std_hash"));
  CHECK(at_name(report, "out.memory.val").tolerance == 5e-6);
  CHECK(at_name(report, "grad.feat.norm").tolerance == 1e-3);
  CHECK(at_name(report, "grad.param.layers.5.ffn.layers.1.weight.norm").tolerance == 1e-3);
  CHECK(at_name(report, "pre.level_embed").max_rel_err == 0);
  CHECK(report.ignored.empty());
}

TEST_CASE("an op file compares each case, and location gradients only where they are stored") {
  const ParityReport report = verify_parity_file(vector_path("msda_op"));
  CHECK(report.case_name == "q1,q2_edges");
  CHECK_FALSE(report.loss.has_value());
  CHECK(at_name(report, "q1.grad_sampling_locations").tolerance == 1e-5);
  CHECK(find(report, "q2_edges.grad_sampling_locations") == nullptr);
  CHECK(report.tensors.size() == 4 + 3);
}

TEST_CASE("one wrong expected value fails the file") {
  const auto nudge = [](const char* name, double amount) {
    return [=](SafetensorsFile& file) {
      at::Tensor& tensor = file.tensors.at(name);
      tensor.view(-1)[0] += tensor.abs().max().item<double>() * amount;
    };
  };
  for (const char* name : {"out.memory", "out.layer0", "grad.feat", "grad.query_pos",
                           "grad.param.layers.0.self_attn.sampling_offsets.weight", "pre.sine_pos",
                           "ref.reference_points", "in.valid_ratios"}) {
    CAPTURE(name);
    const ParityReport report = verify_changed("p1_basic", nudge(name, 3e-5));
    CHECK_FALSE(report.passed);
    CHECK_FALSE(at_name(report, name).passed());
  }
  CHECK_FALSE(verify_changed("p1_basic", nudge("loss", 3e-5)).passed);
  CHECK(verify_changed("p1_basic", nudge("loss", 3e-7)).passed);
  for (const char* name : {"q1.out", "q1.grad_value", "q2_edges.grad_attention_weights"}) {
    CAPTURE(name);
    CHECK_FALSE(verify_changed("msda_op", nudge(name, 3e-5)).passed);
  }
  for (const char* name : {"out.memory.val", "loss", "pre.level_embed"}) {
    CAPTURE(name);
    CHECK_FALSE(verify_changed("p4_std_hash", nudge(name, 3e-5)).passed);
  }
  CHECK_FALSE(verify_changed("p4_std_hash", [](SafetensorsFile& file) {
                std::string& text = file.metadata.at("norm_sum_absmax");
                text.replace(text.find("\"grad.feat\": [222.8"), 19, "\"grad.feat\": [223.8");
              }).passed);
}

TEST_CASE("a wrong parameter fails the file") {
  CHECK_FALSE(verify_changed("p3_one_level", [](SafetensorsFile& file) {
                file.tensors.at("param.layers.0.norms.1.weight")[3] += 1e-3;
              }).passed);
  CHECK_FALSE(verify_changed("p4_std_hash", [](SafetensorsFile& file) {
                file.metadata.at("salt") += "x";
              }).passed);
}

TEST_CASE("NaN on either side fails the file") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const ParityReport expected = verify_changed(
      "p3_one_level", [&](SafetensorsFile& file) { file.tensors.at("grad.feat")[0][0][0] = nan; });
  CHECK_FALSE(expected.passed);
  CHECK(std::isnan(at_name(expected, "grad.feat").max_rel_err));
  CHECK_FALSE(verify_changed("p3_one_level", [&](SafetensorsFile& file) {
                file.tensors.at("in.feat")[0][0][0] = nan;
              }).passed);
  CHECK_FALSE(verify_changed("p3_one_level", [&](SafetensorsFile& file) {
                file.tensors.at("loss")[0] = nan;
              }).passed);
}

TEST_CASE("a file whose padding hides no token may leave its mask out") {
  CHECK(verify_changed("p1_basic", [](SafetensorsFile& file) {
          file.tensors.erase("in.key_padding_mask");
          replace_in_case(file, "\"p1_basic\"", "\"p1_nomask\"");
        }).passed);
}

TEST_CASE("a hash file without mask calls the encoder with none") {
  // Unmasked, padded tokens are sampled: the results differ from those that the file expects.
  const auto unmasked = [](SafetensorsFile& file) {
    replace_in_case(file, "\"hash\": true", "\"hash\": true, \"mask\": false");
  };
  const ParityReport report = verify_changed("p4_std_hash", unmasked);
  CHECK_FALSE(at_name(report, "out.memory.val").passed());
  CHECK(at_name(report, "in.valid_ratios").passed());
}

TEST_CASE("a hash file may store inputs too, and leave level tables out") {
  CHECK(verify_changed("p4_std_hash", [](SafetensorsFile& file) {
          const std::string key = file.metadata.at("salt") + ":layers.0.norms.0.weight";
          file.tensors["param.layers.0.norms.0.weight"] =
              lowtide::parity_fill(key, {256}, 0.1F) + 1;
          for (const char* name : {"in.spatial_shapes", "in.level_start_index", "in.valid_ratios",
                                   "pre.level_embed"}) {
            file.tensors.erase(name);
          }
        }).passed);
}

TEST_CASE("a layer's output may be sampled, a level embedding's gradient stored") {
  const ParityReport report = verify_changed("p2_pad", [](SafetensorsFile& file) {
    const at::Tensor index = at::tensor({0, 5, 12927}, at::kLong);
    file.tensors["out.layer0.val"] =
        file.tensors.at("out.layer0").flatten().index_select(0, index).to(at::kDouble);
    file.tensors["out.layer0.idx"] = index;
    file.tensors.erase("out.layer0");
    at::Tensor grad = file.tensors.at("grad.query_pos").to(at::kDouble);
    file.tensors["grad.level_embed"] =
        at::stack({grad.slice(1, 0, 150).sum({0, 1}), grad.slice(1, 150, 190).sum({0, 1}),
                   grad.slice(1, 190).sum({0, 1})},
                  0);
  });
  CHECK_MESSAGE(report.passed, parity_text(report));
  at_name(report, "out.layer0.val");
  at_name(report, "grad.level_embed");
}

TEST_CASE("tensors that say nothing to compare are listed, not dropped in silence") {
  const ParityReport report = verify_changed(
      "p3_one_level", [](SafetensorsFile& file) { file.tensors["note"] = at::tensor({1.0F}); });
  CHECK(report.passed);
  CHECK(report.ignored == std::vector<std::string>{"note"});
  CHECK(parity_text(report).find("not compared: 1 tensors, from 'note' on") != std::string::npos);
}

TEST_CASE("files that cannot be verified are refused with the piece that is missing or wrong") {
  using lowtide::FormatError;
  const auto without = [](const char* name) {
    return [=](SafetensorsFile& file) { file.tensors.erase(name); };
  };
  check_refused<lowtide::Error>(
      "pdet_refine", [](SafetensorsFile&) {}, "LT0441",
      "decoder and heads, which is not supported yet");
  check_refused<FormatError>(
      "p1_basic", [](SafetensorsFile& file) { file.metadata.clear(); }, "LT0440",
      "nor a 'case' in its metadata");
  check_refused<FormatError>("p1_basic", without("in.feat"), "LT0440",
                             "it has no 'in.feat', and is no hash file");
  check_refused<FormatError>("p1_basic", without("param.layers.1.norms.0.bias"), "LT0440",
                             "it has no 'param.layers.1.norms.0.bias'");
  check_refused<FormatError>("p1_basic", without("out.memory"), "LT0440",
                             "neither 'out.memory' nor 'out.memory.val'");
  check_refused<FormatError>("p1_basic", without("loss"), "LT0440", "no single number 'loss'");
  check_refused<FormatError>("p4_std_hash", without("grad.feat.idx"), "LT0440",
                             "it has 'grad.feat.val' but no 'grad.feat.idx'");
  check_refused<FormatError>(
      "p4_std_hash", [](SafetensorsFile& file) { file.metadata.erase("salt"); }, "LT0440",
      "a hash file without 'salt'");
  check_refused<FormatError>("msda_op", without("q1.spatial_shapes"), "LT0440",
                             "case 'q1' has no 'q1.spatial_shapes'");
  check_refused<FormatError>("msda_op", without("q2_edges.out"), "LT0440",
                             "case 'q2_edges' has no 'q2_edges.out'");
  check_refused<FormatError>(
      "p1_basic",
      [](SafetensorsFile& file) { file.tensors["out.layer7"] = file.tensors.at("out.memory"); },
      "LT0440", "it expects 'out.layer7', which an encoder of 2 layers does not have");
  check_refused<FormatError>(
      "p1_basic",
      [](SafetensorsFile& file) { replace_in_case(file, "\"heads\": 8", "\"heads\": 16"); },
      "LT0442", "'param.layers.0.self_attn.attention_weights.bias' is [128]");
  check_refused<FormatError>(
      "p1_basic",
      [](SafetensorsFile& file) { replace_in_case(file, "\"heads\": 8", "\"heads\": 7"); },
      "LT0442", "embed_dims 32 is not a multiple of num_heads 7");
  check_refused<FormatError>(
      "p4_std_hash",
      [](SafetensorsFile& file) { replace_in_case(file, "\"bs\": 1", "\"bs\": 1000000"); },
      "LT0442", "its case is too large");
  check_refused<FormatError>(
      "p4_std_hash",
      [](SafetensorsFile& file) { replace_in_case(file, "\"layers\": 6", "\"layers\": -6"); },
      "LT0442", "'layers' in its 'case' is not a whole number from 1");
  check_refused<FormatError>(
      "p4_std_hash",
      [](SafetensorsFile& file) { file.tensors.at("out.memory.idx")[0] = 1'000'000; }, "LT0442",
      "'out.memory.idx' points outside the tensor's 163584 elements");
  check_refused<FormatError>(
      "p2_pad", [](SafetensorsFile& file) { file.tensors.at("in.spatial_shapes")[0][0] = 9; },
      "LT0442", "'in.key_padding_mask' is [2, 202], not [2, 187]");
  check_refused<FormatError>(
      "p2_pad", [](SafetensorsFile& file) { file.tensors.at("in.level_start_index")[1] = 9; },
      "LT0442", "its tensors do not fit each other: ");
  check_refused<FormatError>(
      "msda_op", [](SafetensorsFile& file) { file.tensors.at("q1.spatial_shapes")[0][0] = 9; },
      "LT0442", "its tensors do not fit each other: ");
}

TEST_CASE("a num_cp above the file's layers is refused with both numbers, for the op it is not") {
  check_refused<lowtide::UsageError>(
      "p1_basic", [](SafetensorsFile&) {}, "LT0420",
      "num_cp = 3 layers of an encoder with num_layers = 2", 3);
  CHECK(verify_parity_file(vector_path("msda_op"), {.num_cp = 100}).passed);
}

TEST_CASE("the fill is the function that the format defines") {
  // Computed apart, in Python's integers.
  const at::Tensor filled = lowtide::parity_fill("p4_std_hash#0:feat", {3}, 1.7F);
  CHECK(filled[0].item<float>() == 0.0984690338F);
  CHECK(filled[1].item<float>() == 0.915127695F);
  CHECK(filled[2].item<float>() == -0.85955584F);
  CHECK(lowtide::parity_fill("k", {2, 3}, 1.0F)
            .flatten()
            .equal(lowtide::parity_fill("k", {6}, 1.0F)));
}

TEST_CASE("the JSON report has the documented members, the loss null for the op alone") {
  ParityReport report;
  report.file = "a.safetensors";
  report.case_name = "c";
  report.passed = true;
  report.tensors = {{"out.memory", 1.5e-7, 5e-6}};
  report.loss = lowtide::ParityLoss{1.5, 2};
  CHECK(lowtide::to_text(parity_json(report)) ==
        R"({"file":"a.safetensors","case":"c","passed":true,)"
        R"("tensors":[{"name":"out.memory","max_rel_err":1.5e-07,"tolerance":5e-06}],)"
        R"("loss":{"got":1.5,"expected":2.0}})");
  report.loss.reset();
  CHECK(lowtide::to_text(*parity_json(report).find("loss")) == R"({"got":null,"expected":null})");
}

TEST_CASE("the text report marks what differs and ends in the verdict") {
  ParityReport report;
  report.case_name = "c";
  report.tensors = {{"out.memory", 1.5e-7, 5e-6}, {"grad.feat", 1.5e-3, 1e-5}};
  report.loss = lowtide::ParityLoss{1.5, 2};
  CHECK(parity_text(report) ==
        "tensor                    max rel err    tolerance\n"
        "out.memory                   1.50e-07        5e-06  ok\n"
        "grad.feat                    1.50e-03        1e-05  DIFFERS\n"
        "\n"
        "loss 1.5, expected 2: DIFFERS\n"
        "\n"
        "c: FAILED, 1 of 2 tensors within tolerance\n");
}
