/// @file Models whose steps are timed.
#include "step_cases.hpp"

#include <fmt/format.h>

namespace brume::perf {

std::string Case::text() const {
  return fmt::format("{} {} x {} {}", name, batch, seq_len, model::name(precision));
}

model::Config model_of(const Case& c) {
  model::Config model{.num_layers = c.layers,
                      .hidden_size = c.hidden,
                      .num_heads = c.heads,
                      .num_kv_heads = c.kv_heads,
                      .head_size = c.head_size,
                      .ffn_size = c.ffn,
                      .seq_len = c.seq_len,
                      .vocab_size = c.vocab,
                      .precision = c.precision};
  if (c.family != std::string_view("gpt")) {
    model.family = &model::family("llama");
    model.qkv_bias = model.linear_bias = false;
    model.tied_head = model.qk_norm = c.family == std::string_view("qwen3");
  }
  if (c.experts > 0) {
    model.num_experts = c.experts;
    model.experts_per_token = c.experts_per_token;
    model.expert_ffn_size = c.expert_ffn;
    model.normalize_topk = false;
  }
  if (c.adapter_rank == 0) return model;
  for (const model::Module module : model::adapter_targets(model))
    model.adapter.targets.push_back({module, c.adapter_rank, double(c.adapter_rank)});
  model::freeze(model, [](const model::Parameter& one) { return !one.id.is_adapter(); });
  return model;
}

plan::Plan plan_of(const Case& c, const Split& split) {
  return plan::equal_stages(model_of(c), c.batch, 1,
                            {.microbatch = c.batch / split.ranks, .dp = split.ranks});
}

double model_flops(const Case& c) { return c.batch * model::flops_per_sequence(model_of(c)); }

}  // namespace brume::perf
