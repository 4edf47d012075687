/// @file The numerical contract: every plan trains like one rank does. Shared by the local and the
/// MPI test.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/statistics.hpp"
#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "engine/engine.hpp"
#include "random_plan.hpp"
#include "trials.hpp"

namespace brume::test {

/// A file of tokens with some structure, removed at the end.
class TokenFixture {
 public:
  explicit TokenFixture(int vocab_size, int tokens = 6000)
      : path_(std::filesystem::temp_directory_path() /
              ("brume-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter()++) +
               ".tok")) {
    std::mt19937 random(3);
    std::vector<std::uint16_t> values(std::size_t(tokens), 0);
    // Mostly a short cycle, so that a few steps learn something.
    for (std::size_t i = 1; i < values.size(); ++i)
      values[i] = std::uint16_t(random() % 5 == 0 ? random() % unsigned(vocab_size)
                                                  : (values[i - 1] + 1u) % 9u);
    data::write_token_file(path_, values, vocab_size);
  }
  ~TokenFixture() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }
  data::Sampler sampler(int seq_len) const {
    return data::Sampler(data::TokenFile(path_), data::Order::shuffled, 11, seq_len);
  }

 private:
  static int& counter() {
    static int count = 0;
    return count;
  }
  std::filesystem::path path_;
};

/// Large steps from the first on, so that a wrong gradient shows at once.
inline engine::Settings contract_settings(int steps) {
  engine::Settings settings;
  settings.steps = steps;
  settings.optimizer.lr = 3e-3;
  settings.optimizer.warmup_steps = 3;
  settings.optimizer.clip_norm = 0.5;
  settings.check_memory = true;
  return settings;
}

/// What a run gave, by step.
struct Trained {
  std::vector<double> losses;  ///< of the steps, then one validation loss
  std::vector<double> norms;
};

inline Trained train(const plan::Plan& plan, const model::Config& model,
                     const engine::Settings& settings, comm::Communicator& world,
                     const data::Sampler& data) {
  engine::Engine engine(plan, model, settings, world);
  Trained trained;
  for (std::int64_t step = 0; step < settings.steps; ++step) {
    const engine::StepMetrics metrics = engine.step(data);
    trained.losses.push_back(metrics.loss);
    trained.norms.push_back(metrics.grad_norm);
  }
  trained.losses.push_back(engine.evaluate(data, 100, plan.global_batch + 1));
  return trained;
}

/// The same by ranks that are threads of this process; what rank 0 saw.
inline Trained train(const plan::Plan& plan, const model::Config& model,
                     const engine::Settings& settings, const data::Sampler& data) {
  Trained result;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    const Trained mine = train(plan, model, settings, world, data);
    if (world.rank() == 0) result = mine;
  });
  return result;
}

/// The plan that does everything on one rank, in one microbatch a sequence.
inline plan::Plan one_rank_plan(const model::Config& model, int global_batch) {
  return plan::equal_stages(model, global_batch, 1, {.microbatch = global_batch});
}

using brume::largest_difference;

}  // namespace brume::test
