/// @file The numerical contract: every plan trains like one rank does. Shared by the local and the
/// MPI test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/statistics.hpp"
#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "data/token_writer.hpp"
#include "engine/engine.hpp"
#include "own_folder.hpp"
#include "random_plan.hpp"
#include "trials.hpp"

namespace brume::test {

/// A file of tokens with some structure, removed at the end.
class TokenFixture {
 public:
  /// @param in_documents  of which a sixth begin with what is given; else all tokens are learned
  explicit TokenFixture(int vocab_size, bool in_documents = true)
      : path_(std::filesystem::temp_directory_path() /
              ("brume-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter()++) +
               ".tok")) {
    constexpr std::int64_t tokens = 6000;
    std::mt19937 random(3);
    std::vector<std::int32_t> values(std::size_t(tokens), 0);
    // Mostly a short cycle, so that a few steps learn something.
    for (std::size_t i = 1; i < values.size(); ++i)
      values[i] = std::int32_t(random() % 5 == 0 ? random() % unsigned(vocab_size)
                                                 : (values[i - 1] + 1u) % 9u);
    data::DocumentEnds documents;
    for (std::int64_t end = 0; in_documents && end < tokens;) {
      const std::int64_t length = 1 + random() % 30, given = random() % 6 == 0 ? length / 2 : 0;
      documents.answers.push_back(std::min<std::int64_t>(end + given, tokens));
      end = std::min<std::int64_t>(end + length, tokens);
      documents.ends.push_back(end);
    }
    data::write_token_file(path_, values, vocab_size, documents);
  }
  ~TokenFixture() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }
  data::Sampler sampler(int seq_len, bool isolated = false) const {
    return data::Sampler(data::TokenFile(path_), data::Order::shuffled, 11, seq_len, isolated);
  }

 private:
  static int& counter() {
    static int count = 0;
    return count;
  }
  std::filesystem::path path_;
};

/// A file of pairs, removed at the end: what follows a prompt goes on with its cycle where it is
/// chosen, and is random where it is rejected. Some answers are longer than any sequence here.
class PairFixture {
 public:
  explicit PairFixture(int vocab_size) : path_(folder_ / "pairs.tok") {
    constexpr int pairs = 60;
    std::mt19937 random(3);
    std::vector<std::int32_t> values;
    data::DocumentEnds documents;
    const auto put = [&](bool cycles) {
      const auto cycle = std::int32_t((values.back() + 1u) % 9u);
      values.push_back(cycles ? cycle : std::int32_t(random() % unsigned(vocab_size)));
    };
    for (int pair = 0; pair < pairs; ++pair) {
      const std::size_t given = 1 + random() % 6;
      const auto first = std::int32_t(random() % 9);
      for (const bool chosen : {true, false}) {
        const std::size_t begin = values.size(), length = 1 + random() % (pair % 8 == 0 ? 60 : 6);
        values.push_back(first);
        while (values.size() < begin + given) put(true);
        documents.answers.push_back(std::ssize(values));
        while (values.size() < begin + given + length) put(chosen);
        documents.ends.push_back(std::ssize(values));
      }
    }
    data::write_token_file(path_, values, vocab_size, documents, true);
  }
  const std::filesystem::path& path() const { return path_; }
  data::Sampler sampler(int seq_len, bool isolated = false) const {
    return data::Sampler(data::TokenFile(path_), data::Order::shuffled, 11, seq_len, isolated);
  }

 private:
  OwnFolder folder_;
  std::filesystem::path path_;
};

/// Large steps from the first on, so that a wrong gradient shows at once.
inline engine::Settings contract_settings(int steps) {
  engine::Settings settings;
  settings.steps = steps;
  settings.optimizer.lr = 3e-3;
  settings.optimizer.warmup_steps = 3;
  settings.optimizer.clip_norm = 0.5;
  settings.optimizer.groups = {{"layers.*.attention.*", 0.5, 0.0}, {"*.bias", 2.0, 0.3}};
  settings.check_memory = true;
  return settings;
}

/// What a run gave, by step.
struct Trained {
  std::vector<double> losses;  ///< of the steps, then one validation loss
  std::vector<double> norms;
  double untrained = 0.0;  ///< loss of the same validation before the first step
};

inline Trained train(engine::Engine& engine, const engine::Settings& settings, int global_batch,
                     const data::Sampler& data) {
  const std::int64_t count = data.pairs() ? global_batch + 2 : global_batch + 1;
  std::vector<double> reference;
  if (data.pairs()) {
    reference = engine.log_probabilities(data.by_number(), 0, data.num_windows());
    engine.set_reference(reference);
  }
  const auto validate = [&] {
    if (!data.pairs()) return engine.evaluate(data, 100, count);
    const std::vector<double> policy = engine.log_probabilities(data, 100, count);
    std::vector<engine::SequenceScore> scores;
    for (std::int64_t i = 0; i < count; ++i)
      scores.push_back({policy[std::size_t(i)], reference[std::size_t(data.window(100 + i))],
                        data.num_targets(100 + i, 1)});
    return engine::prefer(settings.preference, scores).loss;
  };
  Trained trained;
  trained.untrained = validate();
  for (std::int64_t step = 0; step < settings.steps; ++step) {
    const engine::StepMetrics metrics = engine.step(data);
    trained.losses.push_back(metrics.loss);
    trained.norms.push_back(metrics.grad_norm);
  }
  trained.losses.push_back(validate());
  return trained;
}

inline Trained train(const plan::Plan& plan, const model::Config& model,
                     const engine::Settings& settings, comm::Communicator& world,
                     const data::Sampler& data) {
  engine::Engine engine(plan, model, settings, world);
  return train(engine, settings, plan.global_batch, data);
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

/// Whether a training has the losses and norms of one rank.
inline bool trains_like(const Trained& one, const Trained& other, double losses = 1e-5,
                        double norms = 1e-4) {
  return largest_difference(other.losses, one.losses) <= losses &&
         largest_difference(other.norms, one.norms) <= norms;
}

/// Moves each weight of a rank that has them all up or down by a share of itself.
inline void move_weights(engine::Engine& engine, double rounding, unsigned draw) {
  std::mt19937 random(draw);
  const std::vector<engine::Slab> slabs = engine.slabs();
  std::map<std::string, std::vector<float>> weights;
  for (const engine::Slab& slab : slabs) {
    if (slab.kind != "weight" || !slab.owned) continue;
    std::vector<float>& values = weights[slab.name] = engine::values(slab);
    for (float& value : values) value *= float(random() % 2 == 0 ? 1.0 + rounding : 1.0 - rounding);
  }
  for (const engine::Slab& slab : slabs)
    if (slab.kind == "weight") engine::set_values(slab, 0, weights.at(slab.name));
}

/// Directions in which first weights are moved at most.
constexpr unsigned num_draws = 8;

/// Trains a plan of one rank whose first weights are moved by a rounding, as sums in another order
/// move all that is made of them.
///
/// @param draw  chooses the directions
inline Trained train_moved(const plan::Plan& plan, const model::Config& model,
                           const engine::Settings& settings, const data::Sampler& data,
                           double rounding, unsigned draw) {
  Trained moved;
  comm::run_local(1, [&](comm::Communicator& world) {
    engine::Engine engine(plan, model, settings, world);
    move_weights(engine, rounding, draw);
    moved = train(engine, settings, plan.global_batch, data);
  });
  return moved;
}

/// How often plan and one rank start once more from other weights, where one rank alone says that
/// the training enlarges roundings to what they differ by, which tells nothing of the plan.
constexpr std::uint64_t other_weights = 2;

/// Whether a plan differs from one rank by no more than five times what this, a sequence a
/// microbatch, differs from itself by when its weights are moved by a rounding. Further draws only
/// widen that.
inline bool differs_by_roundings(const model::Config& model, int global_batch,
                                 const engine::Settings& settings, const data::Sampler& data,
                                 const Trained& one, const Trained& all) {
  const plan::Plan sequences = plan::equal_stages(model, global_batch, 1, {.microbatch = 1});
  double losses = 1e-5, norms = 1e-4;
  for (unsigned draw = 1; draw <= num_draws; ++draw) {
    const Trained moved = train_moved(sequences, model, settings, data, 0x1p-23, draw);
    losses = std::max(losses, 5.0 * largest_difference(moved.losses, one.losses));
    norms = std::max(norms, 5.0 * largest_difference(moved.norms, one.norms));
    if (trains_like(one, all, losses, norms)) return true;
  }
  return false;
}

/// Whether 20 steps learned something: of the same validation's loss they take at least a share
/// that grows with the model's width. Losses of two steps would differ by their batches too.
inline bool learns(const Trained& trained, const model::Config& model) {
  const double share = std::min(model.hidden_size, 48) / 240.0;
  return trained.losses.back() < (1.0 - share) * trained.untrained;
}

/// Expects that a plan trains like one rank, whose head takes all tokens at once and whose
/// sequences are not padded, and that this learns where nothing is frozen.
///
/// @param train_plan  trains the plan with such settings
/// @param settings    of 20 steps
/// @param losses, norms  bounds of their differences
inline void expect_contract(const model::Config& model, const plan::Plan& plan,
                            const data::Sampler& data,
                            const std::function<Trained(const engine::Settings&)>& train_plan,
                            engine::Settings settings = contract_settings(20), double losses = 1e-5,
                            double norms = 1e-4) {
  model::Config whole = model;
  whole.padding = 0;
  for (const std::uint64_t last_seed = settings.seed + other_weights;; ++settings.seed) {
    const Trained one = train(one_rank_plan(whole, plan.global_batch), whole, settings, data);
    const Trained all = train_plan(settings);
    const bool alike = trains_like(one, all, losses, norms);
    if (!alike && settings.seed < last_seed &&
        differs_by_roundings(whole, plan.global_batch, settings, data, one, all))
      continue;
    EXPECT_TRUE(alike) << "losses differ by " << largest_difference(all.losses, one.losses)
                       << ", norms by " << largest_difference(all.norms, one.norms) << "\n"
                       << model::text(model) << "\n"
                       << plan::text(plan);
    EXPECT_TRUE(!trains_all(model) || learns(one, model))
        << "a loss of " << one.untrained << " becomes " << one.losses.back() << "\n"
        << model::text(model);
    return;
  }
}

/// Of the plans of the contract the first ones have equal stages and at most 4 ranks, then they
/// differ in b, dp, tp and mesh. Beyond num_plans both kinds take turns, on up to 8 ranks.
constexpr int num_equal_plans = 24, num_plans = 40;

inline plan::Plan plan_number(int i, std::mt19937& random, const model::Config& model) {
  if (i < num_equal_plans) return random_plan(random, model, 4);
  return i < num_plans || i % 2 == 0 ? mixed_plan(random, model, 8) : random_plan(random, model, 8);
}

/// Numbers of plans for a check: 12 of `num_plans`, whose remainders of 2, 3, 4 and 7, by which
/// tests choose models, are all there. Where BRUME_TRIALS asks for so many, the first ones.
inline std::vector<int> plan_numbers() {
  std::vector<int> numbers;
  const int all = trials(0);
  for (int i = 0; i < (all > 0 ? all : are_few() ? num_plans / 2 : num_plans); ++i)
    if (all > 0 || i % 13 == 1 || i % 13 == 2 || i % 13 == 4 || i % 13 == 7) numbers.push_back(i);
  return numbers;
}

/// Tokens of a piece of the head, by the number of a plan: all, and such that the last one is
/// smaller.
inline int head_tokens(int i) { return i % 3 == 0 ? 1024 : i % 3 == 1 ? 16 : 5; }

/// median_i |a_i - b_i| / |b_i|; infinite when the lengths differ.
inline double median_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.size(); ++i)
    differences.push_back(std::abs(a[i] - b[i]) / std::abs(b[i]));
  return median(differences);
}

}  // namespace brume::test
