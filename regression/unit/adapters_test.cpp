/// @file One rank computes and trains adapters like PEFT: small models with different targets,
/// ranks, scalings, layers and modules that are trained whole, against the numbers of
/// regression/pytorch/adapters.json.
#include "kernels_main.hpp"
#include "transformers_run.hpp"

namespace brume::engine {
namespace {

class Adapters : public TransformersRun {
 protected:
  Adapters() : TransformersRun("adapters") {}
};

TEST_P(Adapters, LogitsAreThoseOfPeft) { expect_its_logits(); }

TEST_P(Adapters, GradientsOfAllParametersAreThoseOfPeft) { expect_its_gradients(); }

TEST_P(Adapters, TwentyStepsAreThoseOfPeft) { expect_its_training(1e-6, 1e-5); }

INSTANTIATE_TEST_SUITE_P(Peft, Adapters,
                         ::testing::Values("llama_grouped", "llama_tied", "gpt2", "gpt2_all",
                                           "qwen3", "gemma2", "neox", "qwen3_groups", "gpt2_groups",
                                           "llama_grouped_saved", "gpt2_saved", "neox_saved",
                                           "qwen3_layers", "qwen3_moe", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace brume::engine
