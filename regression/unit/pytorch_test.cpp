/// @file One rank trains like PyTorch: losses and gradient norms of regression/pytorch.
#include "kernels_main.hpp"
#include "pytorch_run.hpp"

namespace brume::engine {
namespace {

model::Config config(const json& sizes, bool tied_head) {
  return {.num_layers = sizes.at("num_layers"),
          .hidden_size = sizes.at("hidden_size"),
          .num_heads = sizes.at("num_heads"),
          .ffn_size = sizes.at("ffn_size"),
          .seq_len = sizes.at("seq_len"),
          .vocab_size = sizes.at("vocab_size"),
          .tied_head = tied_head};
}

void expect_pytorch_numbers(bool tied_head, int microbatches) {
  const json all = reference("gpt_losses");
  const json& run = all.at("runs").at(tied_head ? 0 : 1);
  ASSERT_EQ(run.at("tied_head"), tied_head);
  auto losses = run.at("losses").get<std::vector<double>>();
  losses.push_back(run.at("final_loss"));
  const test::Trained trained = train(all, config(all.at("model"), tied_head), microbatches);
  EXPECT_LE(test::largest_difference(trained.losses, losses), 2e-6);
  EXPECT_LE(test::largest_difference(trained.norms, run.at("grad_norms")), 1e-5);
}

TEST(PyTorch, GroupsOfParameters) {
  const json all = reference("gpt_losses");
  const json& run = all.at("grouped");
  std::vector<ParameterGroup> groups;
  for (const json& group : run.at("groups")) {
    groups.push_back({.pattern = group.at("pattern"), .lr_scale = group.at("lr_scale")});
    if (group.contains("weight_decay")) groups.back().weight_decay = group.at("weight_decay");
  }
  ASSERT_EQ(groups.size(), 4u);
  auto losses = run.at("losses").get<std::vector<double>>();
  losses.push_back(run.at("final_loss"));
  const test::Trained trained = train(all, config(all.at("model"), true), 2, groups);
  EXPECT_LE(test::largest_difference(trained.losses, losses), 2e-6);
  EXPECT_LE(test::largest_difference(trained.norms, run.at("grad_norms")), 1e-5);
}

/// The same model as a deck asks for it that freezes what patterns fit.
model::Config frozen_config(const json& sizes, bool tied_head,
                            const std::vector<std::string>& patterns) {
  deck::ModelKeys keys;
  keys.num_layers = sizes.at("num_layers");
  keys.hidden_size = sizes.at("hidden_size");
  keys.num_heads = sizes.at("num_heads");
  keys.ffn_size = sizes.at("ffn_size");
  keys.seq_len = sizes.at("seq_len");
  keys.vocab_size = sizes.at("vocab_size");
  keys.tied_head = tied_head;
  for (const std::string& pattern : patterns)
    keys.groups.push_back({.pattern = pattern, .frozen = true});
  return model::config(keys, "fp32");
}

TEST(PyTorch, FrozenParameters) {
  const json all = reference("gpt_losses");
  ASSERT_EQ(all.at("frozen").size(), 6u);
  for (const json& run : all.at("frozen")) {
    const model::Config model =
        frozen_config(all.at("model"), run.at("tied_head"), run.at("patterns"));
    auto losses = run.at("losses").get<std::vector<double>>();
    losses.push_back(run.at("final_loss"));
    const test::Trained trained = train(all, model, 2);
    EXPECT_LE(test::largest_difference(trained.losses, losses), 2e-6) << run.at("patterns");
    EXPECT_LE(test::largest_difference(trained.norms, run.at("grad_norms")), 1e-5)
        << run.at("patterns");
  }
}

TEST(PyTorch, StepsOfWholeMatrices) {
  const json all = reference("muon_losses");
  ASSERT_EQ(all.at("runs").size(), 5u);
  for (const json& run : all.at("runs")) {
    model::Config model = config(all.at("model"), run.at("tied_head"));
    model.optimizer = &model::muon;
    Settings settings = engine::settings(all);
    settings.optimizer.lr *= run.at("lr_scale").get<double>();
    settings.optimizer.momentum = all.at("optimizer").at("momentum");
    settings.optimizer.nesterov = run.at("nesterov");
    settings.optimizer.matrix_scale = matrix_scale(run.at("scale").get<std::string>());
    auto losses = run.at("losses").get<std::vector<double>>();
    losses.push_back(run.at("final_loss"));
    const test::Trained trained = train(all, model, 2, settings);
    EXPECT_LE(test::largest_difference(trained.losses, losses), 1e-6) << run.at("scale");
    EXPECT_LE(test::largest_difference(trained.norms, run.at("grad_norms")), 1e-5)
        << run.at("scale");
  }
}

// PyTorch attends with an explicit mask, in float64. Ranks share sequences by heads and by chunks.
// Ten losses are at most 2.1e-7 off here; PyTorch's in float32 are 1.9e-7 off.
TEST(PyTorch, PackedDocuments) {
  const json all = reference("gpt_losses"), &run = all.at("packed");
  model::Config model = config(all.at("model"), true);
  model.isolated = true;
  const int batch = all.at("global_batch"), steps = all.at("steps");
  const data::Sampler data =
      sampler(model, (steps + 1) * batch, {.ends = run.at("document_ends"), .answers = {}});
  auto losses = run.at("losses").get<std::vector<double>>();
  losses.push_back(run.at("final_loss"));
  for (const auto& [dp, cp, gather_keys] :
       {std::tuple(1, 1, 0), {1, 2, 0}, {1, 2, 1}, {1, 4, 1}, {2, 2, 1}, {4, 1, 0}}) {
    const plan::Plan plan = plan::equal_stages(model, batch, 1,
                                               {.devices_per_node = dp * cp,
                                                .microbatch = 1,
                                                .dp = dp,
                                                .cp = cp,
                                                .gather_keys = gather_keys});
    const test::Trained trained = train(plan, model, settings(all), data);
    const auto first_ten = [](const std::vector<double>& all) {
      return std::vector<double>(all.begin(), all.begin() + 10);
    };
    EXPECT_LE(test::largest_difference(first_ten(trained.losses), first_ten(losses)), 4e-7);
    EXPECT_LE(test::largest_difference(trained.losses, losses), 2e-6);
    EXPECT_LE(test::largest_difference(trained.norms, run.at("grad_norms")), 1e-5);
  }
}

TEST(PyTorch, TiedHeadInOneMicrobatch) { expect_pytorch_numbers(true, 1); }
TEST(PyTorch, TiedHeadInFourMicrobatches) { expect_pytorch_numbers(true, 4); }
TEST(PyTorch, OwnHeadInOneMicrobatch) { expect_pytorch_numbers(false, 1); }
TEST(PyTorch, OwnHeadInFourMicrobatches) { expect_pytorch_numbers(false, 4); }

}  // namespace
}  // namespace brume::engine
