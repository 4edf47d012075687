/// @file Runs whose weights, tokens and batches regression/pytorch computes alike.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "contract.hpp"
#include "data/token_writer.hpp"
#include "engine/engine.hpp"
#include "kernels/types.hpp"

namespace brume::engine {

using nlohmann::json;

inline json reference(const std::string& name) {
  return json::parse(
      std::ifstream(std::filesystem::path(BRUME_REGRESSION_DIR) / "pytorch" / (name + ".json")));
}

inline Settings settings(const json& all) {
  const json& o = all.at("optimizer");
  Settings settings;
  settings.steps = all.at("steps");
  settings.optimizer = {.lr = o.at("lr"),
                        .min_lr_ratio = o.at("min_lr_ratio"),
                        .warmup_steps = o.at("warmup_steps"),
                        .beta1 = o.at("beta1"),
                        .beta2 = o.at("beta2"),
                        .eps = o.at("eps"),
                        .weight_decay = o.at("weight_decay"),
                        .clip_norm = o.at("clip_norm")};
  settings.check_memory = true;
  return settings;
}

// The next three are the formulas of gpt_losses.py, in the same order of operations.

inline std::int64_t mix(std::int64_t n) {
  n %= 65521;
  return (n * n + 31 * n + 7) % 65521;
}

inline void set_weights(Engine& engine, const model::Config& model) {
  std::map<std::string, model::Parameter> parameters;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& parameter : block.parameters)
      parameters[parameter.name] = parameter;
  for (const Slab& slab : engine.slabs()) {
    if (slab.kind != "weight") continue;
    const model::Parameter& parameter = parameters.at(slab.name);
    ASSERT_EQ(slab.elements, parameter.elements()) << slab.name;
    const bool gain = slab.name.ends_with("gain"), bias = slab.name.ends_with("bias");
    const bool zero = parameter.id.is_adapter() && parameter.frozen;  // of a layer without terms
    const double middle = gain ? 1.0 : 0.0, width = zero ? 0.0 : gain || bias ? 0.1 : 0.2;
    std::vector<float> weights;
    for (std::int64_t i = 0; i < slab.elements; ++i) {
      const auto mixed = double(mix(parameter.first_index + i));
      weights.push_back(float(middle + width * (2.0 * mixed / 65521.0 - 1.0)));
    }
    set_values(slab, 0, weights);
  }
}

/// Windows of packed documents; none: one document.
inline data::Sampler sampler(const model::Config& model, std::int64_t sequences,
                             const data::DocumentEnds& documents = {}) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i <= sequences * model.seq_len; ++i)
    tokens.push_back(std::int32_t(8 * (i % 7) + mix(i) % 3));
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("brume-pytorch-" + std::to_string(::getpid()) + ".tok");
  data::write_token_file(path, tokens, model.vocab_size, documents);
  data::TokenFile file(path);
  std::filesystem::remove(path);  // the open file stays
  return data::Sampler(std::move(file), data::Order::sequential, 0, model.seq_len, model.isolated);
}

/// Losses and norms of all steps, and the loss of one batch more, which sees the last update.
inline test::Trained train(const plan::Plan& plan, const model::Config& model,
                           const Settings& settings, const data::Sampler& data) {
  test::Trained trained;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Engine engine(plan, model, settings, world);
    set_weights(engine, model);
    test::Trained own;
    for (std::int64_t step = 0; step < settings.steps; ++step) {
      const StepMetrics metrics = engine.step(data);
      own.losses.push_back(metrics.loss);
      own.norms.push_back(metrics.grad_norm);
    }
    own.losses.push_back(
        engine.evaluate(data, settings.steps * plan.global_batch, plan.global_batch));
    if (world.rank() == 0) trained = std::move(own);
  });
  return trained;
}

/// One rank, all sequences of a batch in `microbatches` equal parts.
inline test::Trained train(const json& all, const model::Config& model, int microbatches,
                           const Settings& settings) {
  const int global_batch = all.at("global_batch");
  plan::Plan plan = test::one_rank_plan(model, global_batch);
  plan.microbatches = microbatches;
  plan.stages[0].microbatch = global_batch / microbatches;
  return train(plan, model, settings, sampler(model, (settings.steps + 1) * global_batch));
}

inline test::Trained train(const json& all, const model::Config& model, int microbatches,
                           const std::vector<ParameterGroup>& groups = {}) {
  Settings settings = engine::settings(all);
  settings.optimizer.groups = groups;
  return train(all, model, microbatches, settings);
}

}  // namespace brume::engine
