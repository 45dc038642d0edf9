// Tested by tests/train/trainer_test.cpp.
#include "src/train/train_options.h"

#include <cmath>
#include <numbers>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

template <typename Value>
void check_range(const char* flag, Value value, Value least, Value most) {
  if (!(value >= least && value <= most)) {
    throw UsageError("LT0520", concat("cannot train with --", flag, " ", value,
                                      ": it must be from ", least, " to ", most));
  }
}

void check(const TrainSettings& s) {
  check_range<std::int64_t>("steps", s.steps, 1, 10'000'000);
  check_range<std::int64_t>("batch", s.batch, 1, 1024);
  check_range<std::int64_t>("crop", s.crop, 64, 4096);
  check_range<std::int64_t>("shrink", s.shrink, 1, 16);
  check_range<std::int64_t>("layers", s.layers, 1, 64);
  check_range<std::int64_t>("width", s.width, 32, 1024);
  check_range("lr", s.learning_rate, 1e-9, 1.0);
  check_range("dropout", s.dropout, 0.0, 0.9);
  if (s.width % 32 != 0) {
    throw UsageError(
        "LT0520", concat("cannot train with --width ", s.width, ": it must be a multiple of 32. ",
                         s.width / 32 * 32 + 32, " is the next"));
  }
}

}  // namespace

TrainSettings settings_for(const TrainOptions& options) {
  TrainSettings settings;
  settings.steps = options.steps.value_or(settings.steps);
  settings.batch = options.batch.value_or(settings.batch);
  settings.seed =
      static_cast<std::uint64_t>(options.seed.value_or(static_cast<std::int64_t>(settings.seed)));
  settings.crop = options.crop.value_or(settings.crop);
  settings.shrink = options.shrink.value_or(settings.shrink);
  settings.layers = options.layers.value_or(settings.layers);
  settings.width = options.width.value_or(settings.width);
  settings.learning_rate = options.learning_rate.value_or(settings.learning_rate);
  settings.dropout = options.dropout.value_or(settings.dropout);
  check(settings);
  return settings;
}

TrainSettings settings_for_resuming(const TrainOptions& options, const TrainSettings& stored) {
  const auto must_agree = [](const char* flag, const auto& given, const auto& before) {
    if (given && static_cast<double>(*given) != static_cast<double>(before)) {
      throw UsageError("LT0523", concat("cannot resume with --", flag, " ", *given,
                                        ": the checkpoint was made with ", before,
                                        ". Leave the flag out, or start a new run"));
    }
  };
  must_agree("batch", options.batch, stored.batch);
  must_agree("seed", options.seed, stored.seed);
  must_agree("crop", options.crop, stored.crop);
  must_agree("shrink", options.shrink, stored.shrink);
  must_agree("layers", options.layers, stored.layers);
  must_agree("width", options.width, stored.width);
  must_agree("dropout", options.dropout, stored.dropout);
  TrainSettings settings = stored;
  settings.steps = options.steps.value_or(stored.steps);
  settings.learning_rate = options.learning_rate.value_or(stored.learning_rate);
  check(settings);
  return settings;
}

double rate_factor(std::int64_t step, std::int64_t steps) {
  constexpr double kWarmupSteps = 20;
  const double rise = std::min(1.0, (double(step) + 1) / kWarmupSteps);
  const double done = double(step) / double(steps);
  return rise * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

Json to_json(const TrainSettings& settings) {
  Json json = Json::object();
  json["steps"] = settings.steps;
  json["batch"] = settings.batch;
  json["seed"] = settings.seed;
  json["crop"] = settings.crop;
  json["shrink"] = settings.shrink;
  json["layers"] = settings.layers;
  json["width"] = settings.width;
  json["learning_rate"] = settings.learning_rate;
  json["dropout"] = settings.dropout;
  return json;
}

TrainSettings settings_from_json(const Json& json) {
  TrainSettings settings;
  settings.steps = json.at("steps").as_int64();
  settings.batch = json.at("batch").as_int64();
  settings.seed = json.at("seed").as_uint64();
  settings.crop = json.at("crop").as_int64();
  settings.shrink = json.at("shrink").as_int64();
  settings.layers = json.at("layers").as_int64();
  settings.width = json.at("width").as_int64();
  settings.learning_rate = json.at("learning_rate").as_double();
  settings.dropout = json.at("dropout").as_double();
  check(settings);
  return settings;
}

}  // namespace lowtide
