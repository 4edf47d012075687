/// @file Sizes of streams and of key caches, pieces of tokens, and ranks of experts.
#include "segment_sizes.hpp"

#include <algorithm>

namespace brume::model {

Expr cache_bytes(const Config& config) {
  const double tokens = double(config.generation.blocks) * config.generation.block_tokens;
  const Expr columns = config.keeps_latents() ? Expr(config.rotary_dim() + config.kv_lora_rank)
                                              : Sizes(config).keys_tp;
  return 2.0 * double(activation_bytes(config.precision)) * tokens * columns;
}

Pieces pieces(const Config& config, SegmentKind kind, const Division& division) {
  const bool head = kind == SegmentKind::head;
  if (head && config.generates())
    return {double(std::min(config.generation.tokens, config.generation.sequences)), 1.0};
  const Expr tokens = Sizes(config, kind).tokens;
  if (!head && !is_tiled(kind, division)) return {tokens, 1.0};
  const Expr most =
      head ? ceil(tokens / double(config.head_tokens)) : Expr(double(division.mlp_tiles));
  const Expr each = ceil(tokens / most);
  return {each, ceil(tokens / each)};
}

Expr stream_elements(const Config& config) {
  const Sizes s(config);
  return s.tokens * s.hidden;
}

Expr stream_bytes(const Config& config) {
  return double(activation_bytes(config.precision)) * stream_elements(config);
}

Expr stream_bytes(const Config& config, SegmentKind kind) {
  const Expr bytes = stream_bytes(config);
  return kind == SegmentKind::experts ? bytes * expert_data_ranks(config) : bytes;
}

Expr expert_data_ranks(const Config& config) {
  if (config.num_experts == 0) return 1.0;
  return max(Expr::variable("ep") / Expr::variable("tp"), 1.0);
}

Expr ranks_of_token(const Config& config) {
  const double all = config.num_experts;
  const Expr ranks = sum_ranks(SegmentKind::experts), others = all - all / ranks;
  Expr none = 1.0;  // of its experts is on a rank
  for (int i = 0; i < config.experts_per_token; ++i)
    none = none * (max(others - double(i), 0.0) / (all - double(i)));
  return ranks * (1.0 - none);
}

Expr stream_shard_bytes(const Config& config) { return stream_bytes(config) / Sizes(config).tp; }

}  // namespace brume::model
