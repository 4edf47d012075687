/// @file Small models of the Transformers library, made from their own config.json: one rank
/// computes and trains like the library.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pytorch_run.hpp"

namespace brume::engine {

/// A model as Transformers describes it. @param adapter  trained in it
inline model::Config config(const json& file, const deck::AdapterKeys& adapter) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("brume-transformers-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << file;
  deck::ModelKeys keys;
  keys.config = path;
  keys = model::resolved(keys);
  keys.adapter = adapter;
  std::filesystem::remove(path);
  return model::config(keys, "fp32");
}

inline plan::Plan one_rank(const json& all, const model::Config& model) {
  return test::one_rank_plan(model, all.at("global_batch"));
}

/// The gradients of the first batch: with beta1 = 0 and no clipping they are the first moments.
inline std::map<std::string, std::vector<float>> first_gradients(const json& all,
                                                                 const model::Config& model) {
  Settings settings = engine::settings(all);
  settings.optimizer.beta1 = settings.optimizer.clip_norm = 0.0;
  const data::Sampler data = sampler(model, all.at("global_batch"));
  std::map<std::string, std::vector<float>> gradients;
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(one_rank(all, model), model, settings, world);
    set_weights(engine, model);
    engine.step(data);
    engine.flush();
    for (const Slab& slab : engine.slabs())
      if (slab.kind == "m") gradients[slab.name] = values(slab);
  });
  return gradients;
}

/// Each sequence of the first batch alone: what the logits of its tokens give their targets.
inline std::vector<double> sequence_losses(const json& all, const model::Config& model) {
  const std::int64_t count = all.at("global_batch");
  const data::Sampler data = sampler(model, 2 * count);
  std::vector<double> losses;
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(one_rank(all, model), model, settings(all), world);
    set_weights(engine, model);
    for (std::int64_t i = 0; i < count; ++i) losses.push_back(engine.evaluate(data, i, 1));
  });
  return losses;
}

/// Largest distance of a gradient's stored values, as a share of its largest element.
inline double difference(const std::vector<float>& found, const json& expected) {
  const auto values = expected.at("values").get<std::vector<double>>();
  const std::size_t stride = expected.at("stride");
  double worst = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(double(found.at(i * stride)) - values[i]);
    worst = std::max(worst, std::isnan(off) ? INFINITY : off);
  }
  return worst / expected.at("largest").get<double>();
}

inline double norm(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += double(value) * value;
  return std::sqrt(sum);
}

/// A test's parameter names a run of a file of regression/pytorch.
class TransformersRun : public ::testing::TestWithParam<const char*> {
 protected:
  explicit TransformersRun(const char* file) : all(reference(file)) {}

  void expect_its_logits() {
    const auto expected = run.at("sequence_losses").get<std::vector<double>>();
    expect_at_most("loss of a sequence",
                   test::largest_difference(sequence_losses(all, model), expected), 1e-6);
  }

  /// Compares the gradients of all trained parameters.
  void expect_its_gradients() {
    const auto found = first_gradients(all, model);
    const json& expected = run.at("gradients");
    ASSERT_EQ(found.size(), expected.size());
    double worst = 0.0, worst_norm = 0.0;
    for (const auto& [name, gradient] : expected.items()) {
      ASSERT_TRUE(found.contains(name)) << name;
      const double off = difference(found.at(name), gradient);
      const double length = gradient.at("norm");
      EXPECT_LE(off, 5e-6) << name;
      worst = std::max(worst, off);
      worst_norm = std::max(worst_norm, std::abs(norm(found.at(name)) - length) / length);
    }
    expect_at_most("gradient", worst, 5e-6);
    expect_at_most("norm of a gradient", worst_norm, 5e-6);
  }

  void expect_its_training(double loss_limit, double norm_limit) {
    auto losses = run.at("losses").get<std::vector<double>>();
    losses.push_back(run.at("final_loss"));
    const test::Trained trained = train(all, model, 1);
    expect_at_most("loss of a step", test::largest_difference(trained.losses, losses), loss_limit);
    expect_at_most("norm of a step", test::largest_difference(trained.norms, run.at("grad_norms")),
                   norm_limit);
  }

  const json all;
  const json& run = all.at("runs").at(GetParam());
  const model::Config model = config(run.at("config"), adapter(run));

 private:
  static deck::AdapterKeys adapter(const json& run) {
    if (!run.contains("adapter")) return {};
    const json& keys = run.at("adapter");
    std::vector<deck::AdapterGroupKeys> groups;
    for (const json& group : keys.value("groups", json::array()))
      groups.push_back({group.at("pattern"), group.value("rank", 0), group.value("alpha", 0.0)});
    return {.rank = keys.at("rank"),
            .alpha = keys.at("alpha"),
            .scaling = keys.at("scaling"),
            .targets = keys.at("targets"),
            .layers = keys.value("layers", std::vector<int>()),
            .modules_to_save = keys.value("modules_to_save", std::vector<std::string>()),
            .groups = groups};
  }

  /// Kept in the test's XML, so that the limits can be compared with what is measured.
  void expect_at_most(const char* what, double measured, double limit) {
    RecordProperty(what, fmt::format("{:.2e}", measured));
    EXPECT_LE(measured, limit) << what;
  }
};

}  // namespace brume::engine
