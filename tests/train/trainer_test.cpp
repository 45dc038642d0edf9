// Whole runs on photographs that the test draws: bright squares on noise, a few tiny steps.
#include "src/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <doctest/doctest.h>

#include "lowtide/safetensors.h"
#include "src/train/image.h"
#include "src/train/random_stream.h"
#include "src/train/run_file.h"
#include "tests/train/temporary_folder.h"

namespace lowtide {
namespace {

// Two photographs of 150 x 130 pixels with five squares each.
void draw_data(const TemporaryFolder& folder) {
  std::string table = "image_path,xmin,ymin,xmax,ymax\n";
  RandomStream random(11, 22, 33);
  for (const std::string name : {"a.png", "b.png"}) {
    Image image(150, 130);
    for (std::uint8_t& value : image.rgb) value = std::uint8_t(60 + random.below(50));
    for (int i = 0; i < 5; ++i) {
      const int side = 14 + int(random.below(12));
      const int x = int(random.below(std::uint64_t(150 - side)));
      const int y = int(random.below(std::uint64_t(130 - side)));
      for (int row = y; row < y + side; ++row) {
        for (int column = x; column < x + side; ++column) image.at(column, row)[1] = 240;
      }
      table += name + "," + std::to_string(x) + "," + std::to_string(y) + "," +
               std::to_string(x + side) + "," + std::to_string(y + side) + "\n";
    }
    write_png(folder / name, image);
  }
  folder.write("boxes.csv", table);
}

TrainOptions tiny(const TemporaryFolder& folder, const std::string& out) {
  TrainOptions options;
  options.data = folder.path();
  options.out = folder / out;
  options.steps = 6;
  options.batch = 2;
  options.crop = 64;
  options.shrink = 1;
  options.layers = 2;
  options.width = 32;
  options.dropout = 0.1;
  options.save_every = 0;
  return options;
}

// Large enough that what the encoder keeps for backward is the peak: in tiny() the gradients are.
TrainOptions encoder_bound(const TemporaryFolder& folder, const std::string& out) {
  TrainOptions options = tiny(folder, out);
  options.crop = 128;
  options.layers = 4;
  options.width = 64;
  return options;
}

std::vector<double> losses(const TrainReport& report) {
  std::vector<double> values;
  for (const StepRecord& step : report.steps) values.push_back(step.loss);
  return values;
}

bool same_weights(const std::string& a, const std::string& b) {
  const SafetensorsFile first = load_safetensors(a);
  const SafetensorsFile second = load_safetensors(b);
  if (first.tensors.size() != second.tensors.size()) return false;
  for (const auto& [name, tensor] : first.tensors) {
    if (!at::equal(tensor, second.tensors.at(name))) return false;
  }
  return true;
}

TrainListener stop_before(std::int64_t step) {
  auto done = std::make_shared<std::int64_t>(0);
  TrainListener listener;
  listener.progress = [done](const StepProgress&) { ++*done; };
  listener.stop = [done, step] { return *done == step; };
  return listener;
}

}  // namespace

TEST_CASE("equal seeds give equal runs bit for bit, other seeds do not") {
  const TemporaryFolder folder;
  draw_data(folder);
  const TrainReport first = train(tiny(folder, "first"), {});
  const TrainReport second = train(tiny(folder, "second"), {});
  CHECK(losses(first) == losses(second));
  CHECK(same_weights(first.checkpoint, second.checkpoint));
  CHECK(first.precision.value == second.precision.value);
  TrainOptions other = tiny(folder, "other");
  other.seed = 1;
  CHECK(losses(train(other, {})) != losses(first));
}

TEST_CASE("num_cp changes neither losses nor weights by a bit, dropout included") {
  const TemporaryFolder folder;
  draw_data(folder);
  const TrainReport plain = train(tiny(folder, "plain"), {});
  TrainOptions options = tiny(folder, "checkpointed");
  options.num_cp = 2;
  const TrainReport checkpointed = train(options, {});
  CHECK(losses(plain) == losses(checkpointed));
  CHECK(same_weights(plain.checkpoint, checkpointed.checkpoint));
}

TEST_CASE("a run that is interrupted and resumed equals one that is not, bit for bit") {
  const TemporaryFolder folder;
  draw_data(folder);
  const TrainReport whole = train(tiny(folder, "whole"), {});
  const TrainReport half = train(tiny(folder, "parts"), stop_before(3));
  CHECK(half.interrupted);
  CHECK(half.steps.size() == 3);
  TrainOptions options;
  options.data = folder.path();
  options.out = folder / "parts";
  options.resume = half.checkpoint;
  const TrainReport rest = train(options, {});
  CHECK_FALSE(rest.interrupted);
  CHECK(losses(rest) == losses(whole));
  CHECK(same_weights(rest.checkpoint, whole.checkpoint));
  CHECK(rest.precision.value == whole.precision.value);
}

TEST_CASE("a run leaves its report and pictures") {
  const TemporaryFolder folder;
  draw_data(folder);
  TrainOptions options = tiny(folder, "out");
  options.steps = 1;
  std::vector<std::string> notes;
  TrainListener listener;
  listener.note = [&](const std::string& line) { notes.push_back(line); };
  const TrainReport report = train(options, listener);
  CHECK(notes.front().starts_with("2 photographs with 10 boxes"));
  const Json json = parse_json(read_file(folder / "out/report.json"));
  CHECK(json.at("steps_done").as_int64() == 1);
  CHECK(json.at("peak_bytes").at("parameters").as_uint64() > 0);
  CHECK(json.at("peak_bytes").at("optimizer_state").as_uint64() >
        json.at("peak_bytes").at("parameters").as_uint64());
  CHECK(read_image(report.boxes_picture).width == 150);
  CHECK(read_file(report.loss_picture).starts_with("<svg"));
  CHECK(report.steps[0].peak_bytes == report.peak.total());
}

TEST_CASE("comparing finds equal gradients and a lower peak") {
  const TemporaryFolder folder;
  draw_data(folder);
  const CompareReport report = compare_steps(encoder_bound(folder, "out"), {});
  CHECK(report.equal());
  CHECK(report.num_cp == 4);
  CHECK(report.parameters > 50);
  CHECK(report.reduced_peak.total() < report.plain_peak.total());
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("auto takes the smallest num_cp that fits, and refuses a budget that nothing fits") {
  const TemporaryFolder folder;
  draw_data(folder);
  TrainOptions options = encoder_bound(folder, "out");
  options.num_cp = 1;
  const CompareReport peaks = compare_steps(options, {});
  options.steps = 1;
  options.num_cp_auto = true;
  options.budget = peaks.plain_peak.total();
  CHECK(train(options, {}).num_cp == 0);
  options.budget = peaks.plain_peak.total() - 1;
  const TrainReport squeezed = train(options, {});
  CHECK(squeezed.num_cp == 1);
  CHECK(squeezed.peak.total() <= options.budget->bytes());
  options.budget = 1000;
  CHECK(error_of([&] { train(options, {}); }).find("[LT0521]") != std::string::npos);
  options.budget.reset();
  CHECK(error_of([&] { train(options, {}); }).find("[LT0522]") != std::string::npos);
}

TEST_CASE("trying out num_cp does not change the run") {
  const TemporaryFolder folder;
  draw_data(folder);
  TrainOptions options = tiny(folder, "plain");
  options.steps = 2;
  const TrainReport plain = train(options, {});
  options.out = folder / "auto";
  options.num_cp_auto = true;
  options.budget = 1ULL << 40;
  CHECK(losses(train(options, {})) == losses(plain));
}

TEST_CASE("a loss that is no number ends the run with the step and a state to resume from") {
  const TemporaryFolder folder;
  draw_data(folder);
  TrainOptions options = tiny(folder, "out");
  const TrainReport half = train(options, stop_before(2));
  SavedRun run = load_run(half.checkpoint);
  run.model.at("level_embed").fill_(std::numeric_limits<float>::quiet_NaN());
  save_run(folder / "poisoned.safetensors", run);
  options.resume = folder / "poisoned.safetensors";
  const std::string error = error_of([&] { train(options, {}); });
  CHECK(error.find("at step 2: the loss is") != std::string::npos);
  CHECK(error.find("[LT0524]") != std::string::npos);
  CHECK(load_run(folder / "out/checkpoint.safetensors").records.size() == 2);
}

TEST_CASE("checkpoints that do not fit the run are refused, and nothing is half restored") {
  const TemporaryFolder folder;
  draw_data(folder);
  TrainOptions options = tiny(folder, "out");
  options.steps = 2;
  const TrainReport done = train(options, {});
  options.resume = done.checkpoint;

  options.width = 64;
  CHECK(error_of([&] { train(options, {}); }).find("[LT0523]") != std::string::npos);
  options.width.reset();

  save_safetensors(folder / "weights.safetensors", {{"a", load_run(done.checkpoint).generator}});
  options.resume = folder / "weights.safetensors";
  CHECK(error_of([&] { train(options, {}); }).find("no training run") != std::string::npos);

  SavedRun run = load_run(done.checkpoint);
  run.model.erase("level_embed");
  save_run(folder / "less.safetensors", run);
  options.resume = folder / "less.safetensors";
  CHECK(error_of([&] { train(options, {}); }).find("level_embed is missing") != std::string::npos);

  options.resume = done.checkpoint;
  write_png(folder / "b.png", Image(150, 130));
  CHECK(error_of([&] { train(options, {}); }).find("not those that it was trained on") !=
        std::string::npos);
}

TEST_CASE("photographs without boxes can be trained on") {
  const TemporaryFolder folder;
  write_png(folder / "a.png", Image(90, 40));
  folder.write("boxes.csv", "image_path,xmin,ymin,xmax,ymax\na.png,,,,\n");
  TrainOptions options = tiny(folder, "out");
  options.steps = 2;
  const TrainReport report = train(options, {});
  CHECK(report.precision.true_boxes == 0);
  CHECK(report.steps[1].giou == 0);
}

}  // namespace lowtide
