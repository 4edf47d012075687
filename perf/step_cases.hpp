/// @file Models whose steps are timed, and the split of the cores over ranks.
#pragma once

#include <string>
#include <string_view>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::perf {

struct Case {
  std::string_view name;
  const char* family;
  int layers, hidden, heads, kv_heads, head_size, ffn, vocab;
  int batch, seq_len;
  int steps;  ///< measured in each round, after one that warms up
  bool by_default;
  int experts = 0, experts_per_token = 0, expert_ffn = 0;
  int adapter_rank = 0;
  model::Precision precision = model::Precision::fp32;

  std::string text() const;
  double tokens() const { return double(batch) * seq_len; }
};

struct Split {
  int ranks, threads;
};

model::Config model_of(const Case& c);
plan::Plan plan_of(const Case& c, const Split& split);
double model_flops(const Case& c);

}  // namespace brume::perf
