/// @file Pairs of answers train like PyTorch: losses, accuracies, margins and gradient norms of
/// regression/pytorch/preference.py, which TRL's DPOTrainer gives too.
#include "kernels_main.hpp"
#include "own_folder.hpp"
#include "transformers_run.hpp"

namespace brume::engine {
namespace {

/// The pairs of preference.py, by the same formulas.
data::Sampler pairs(const model::Config& model, int count) {
  std::vector<std::int32_t> tokens;
  data::DocumentEnds documents;
  constexpr std::int32_t end = 60;
  for (std::int64_t p = 0; p < count; ++p) {
    const auto cycle = [&](std::int64_t i) {
      return std::int32_t(8 * ((p + i) % 7) + mix(100 * p + i) % 3);
    };
    const std::int64_t given = 2 + mix(p) % 8;
    for (const bool chosen : {true, false}) {
      for (std::int64_t i = 0; i < given; ++i) tokens.push_back(cycle(i));
      documents.answers.push_back(std::ssize(tokens));
      const std::int64_t length = chosen ? mix(p + 1000) % 14 : mix(p + 2000) % 30;
      for (std::int64_t i = 0; i < length; ++i)
        tokens.push_back(chosen ? cycle(given + i) : std::int32_t(mix(5000 + 100 * p + i) % 60));
      tokens.push_back(end);
      documents.ends.push_back(std::ssize(tokens));
    }
  }
  const test::OwnFolder folder;
  data::write_token_file(folder / "pairs.tok", tokens, model.vocab_size, documents, true);
  return data::Sampler(data::TokenFile(folder / "pairs.tok"), data::Order::sequential, 0,
                       model.seq_len);
}

class PyTorchPreference : public ::testing::TestWithParam<int> {};

TEST_P(PyTorchPreference, TrainsLikeIt) {
  const json all = reference("preference");
  const json& run = all.at("runs").at(std::size_t(GetParam()));
  model::Config model =
      config(reference("families").at("runs").at("llama_grouped").at("config"), {});
  model.pairs = true;
  const data::Sampler data = pairs(model, all.at("pairs"));
  EXPECT_GT(data.answers_cut(), 0);
  Settings settings = engine::settings(all);
  settings.preference = {.beta = run.at("beta"),
                         .loss = preference_loss(run.at("loss").get<std::string>()),
                         .label_smoothing = run.at("label_smoothing")};
  test::Trained trained;
  std::vector<double> accuracies, margins;
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(one_rank(all, model), model, settings, world);
    set_weights(engine, model);
    engine.set_reference(engine.log_probabilities(data.by_number(), 0, data.num_windows()));
    for (std::int64_t step = 0; step < settings.steps; ++step) {
      const StepMetrics metrics = engine.step(data);
      trained.losses.push_back(metrics.loss);
      trained.norms.push_back(metrics.grad_norm);
      accuracies.push_back(metrics.accuracy);
      margins.push_back(metrics.margin);
    }
  });
  EXPECT_LE(test::largest_difference(trained.losses, run.at("losses")), 2e-6);
  EXPECT_LE(test::largest_difference(trained.norms, run.at("grad_norms")), 1e-5);
  const auto theirs = run.at("margins").get<std::vector<double>>();
  for (std::size_t step = 0; step < margins.size(); ++step) {
    EXPECT_EQ(accuracies[step], run.at("accuracies").at(step)) << step;
    EXPECT_NEAR(margins[step], theirs[step], 2e-6 * (1.0 + std::abs(theirs[step]))) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, PyTorchPreference, ::testing::Range(0, 3));

}  // namespace
}  // namespace brume::engine
