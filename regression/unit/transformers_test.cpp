/// @file One rank computes and trains like the Transformers library: small models of each family,
/// against the numbers of regression/pytorch/families.json.
#include "kernels_main.hpp"
#include "transformers_run.hpp"

namespace brume::engine {
namespace {

class Families : public TransformersRun {
 protected:
  Families() : TransformersRun("families") {}
};

TEST_P(Families, LogitsAreThoseOfTransformers) { expect_its_logits(); }

TEST_P(Families, GradientsOfAllParametersAreThoseOfTransformers) { expect_its_gradients(); }

TEST_P(Families, TwentyStepsAreThoseOfTransformers) { expect_its_training(3e-6, 5e-5); }

INSTANTIATE_TEST_SUITE_P(Transformers, Families,
                         ::testing::Values("gpt2", "llama_grouped", "llama_tied", "qwen2", "qwen3",
                                           "mistral", "mixtral", "qwen3_moe", "qwen2_moe",
                                           "qwen2_moe_dense", "olmoe", "glm4_moe", "qwen2_window",
                                           "gemma2", "gemma3", "neox", "neox_sequential",
                                           "falcon_one_key_head", "falcon_grouped", "llama_yarn",
                                           "gpt_oss", "deepseek_v2", "deepseek_v3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace brume::engine
