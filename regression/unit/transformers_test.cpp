/// @file One rank computes and trains like the Transformers library: small models of each family,
/// made from their own config.json, against the numbers of regression/pytorch/families.json.
#include <fmt/format.h>

#include "pytorch_run.hpp"

namespace brume::engine {
namespace {

model::Config config(const json& file) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("brume-families-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << file;
  deck::ModelKeys keys;
  keys.config = path;
  keys = model::resolved(keys);
  std::filesystem::remove(path);
  return model::config(keys, "fp32");
}

plan::Plan one_rank(const json& all, const model::Config& model) {
  return test::one_rank_plan(model, all.at("global_batch"));
}

/// The gradients of the first batch: with beta1 = 0 and no clipping they are the first moments.
std::map<std::string, std::vector<float>> first_gradients(const json& all,
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
std::vector<double> sequence_losses(const json& all, const model::Config& model) {
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
double difference(const std::vector<float>& found, const json& expected) {
  const auto values = expected.at("values").get<std::vector<double>>();
  const std::size_t stride = expected.at("stride");
  double worst = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(double(found.at(i * stride)) - values[i]);
    worst = std::max(worst, std::isnan(off) ? INFINITY : off);
  }
  return worst / expected.at("largest").get<double>();
}

double norm(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += double(value) * value;
  return std::sqrt(sum);
}

class Families : public ::testing::TestWithParam<const char*> {
 protected:
  const json all = reference("families");
  const json& run = all.at("runs").at(GetParam());
  const model::Config model = config(run.at("config"));

  /// Kept in the test's XML, so that the limits can be compared with what is measured.
  void expect_at_most(const char* what, double measured, double limit) {
    RecordProperty(what, fmt::format("{:.2e}", measured));
    EXPECT_LE(measured, limit) << what;
  }
};

TEST_P(Families, LogitsAreThoseOfTransformers) {
  const auto expected = run.at("sequence_losses").get<std::vector<double>>();
  expect_at_most("loss of a sequence",
                 test::largest_difference(sequence_losses(all, model), expected), 1e-6);
}

TEST_P(Families, GradientsOfAllParametersAreThoseOfTransformers) {
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

TEST_P(Families, TwentyStepsAreThoseOfTransformers) {
  auto losses = run.at("losses").get<std::vector<double>>();
  losses.push_back(run.at("final_loss"));
  const test::Trained trained = train(all, model, 1);
  expect_at_most("loss of a step", test::largest_difference(trained.losses, losses), 3e-6);
  expect_at_most("norm of a step", test::largest_difference(trained.norms, run.at("grad_norms")),
                 5e-5);
}

INSTANTIATE_TEST_SUITE_P(Transformers, Families,
                         ::testing::Values("gpt2", "llama_grouped", "llama_tied", "qwen2", "qwen3",
                                           "mistral", "qwen2_window", "gemma2", "gemma3", "neox",
                                           "neox_sequential", "falcon_one_key_head",
                                           "falcon_grouped"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace brume::engine

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const brume::kernels::Runtime runtime(1);
  return RUN_ALL_TESTS();
}
