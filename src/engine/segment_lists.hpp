/// @file Sizes and places of all that the tasks of a rank read, per segment.
#pragma once

#include <algorithm>
#include <utility>

#include "device/device.hpp"
#include "kernels/rope.hpp"
#include "segment_tasks.hpp"
#include "zigzag.hpp"

namespace brume::engine {

template <class Storage>
SegmentTasks<Storage>::SegmentTasks(const plan::Plan& plan, const model::Config& model,
                                    const plan::Place& place,
                                    const std::map<int, BlockPieces>& blocks)
    : hidden_(model.hidden_size),
      eps_(float(model.norm_eps)),
      gain_base_(model.gain_base()),
      embedding_scale_(model.embedding_scale()),
      logits_cap_(float(model.logits_cap)),
      num_experts_(model.num_experts),
      experts_per_token_(model.experts_per_token),
      first_dense_layers_(model.first_dense_layers),
      router_(router(model)),
      balance_loss_(model.balance_loss),
      z_loss_(model.z_loss),
      rotary_dim_(model.rotary_dim()),
      seq_len_(model.padded_len()),
      learned_len_(model.seq_len),
      pairs_(model.pairs),
      block_tokens_(model.generation.block_tokens),
      blocks_per_sequence_(model.blocks_per_sequence()),
      blocks_(blocks),
      loads_{.copies = std::vector<std::int64_t>(
                 std::size_t(model.num_layers - model.first_dense_layers) *
                 std::size_t(model.num_experts))} {
  const plan::Stage& stage = plan.stages[place.stage];
  tp_ = stage.tp;
  tp_rank_ = place.at[model::Axis::tp];
  cp_ = stage.cp;
  cp_rank_ = place.cp_rank;
  first_token_ = stage.gather_keys == 1 ? 0 : cp_rank_ * (seq_len_ / cp_);
  const model::Cut rows = model::cut(model.vocab_size, tp_, tp_rank_);
  vocabulary_ = {.first = int(rows.first), .vocab = model.vocab_size};
  rows_of_table_ = int(rows.count);
  num_held_ = num_experts_ / stage.ep;
  first_held_ = stage.ep > 1 ? place.index(model::expert_axes) * num_held_ : 0;
  describe_attention(stage, model);
  for (const SegmentKind kind : model::segment_kinds(model)) {
    List& list = lists_[kind];
    list.ranks = place.mesh.size(model::sum_axes(kind));
    list.rank = place.index(model::sum_axes(kind));
    describe(list, model, kind, place, stage.split());
    if (kind == SegmentKind::experts && model.padding > 0) mark_padding(list, stage, place);
  }
  if (!model.rotary()) return;
  for (const auto& [kind, layers] : model::layer_counts(model)) {
    const std::vector<float> table = kernels::rope_table(
        model::rope_frequencies(model, kind), seq_len_, model::rope_magnitude(model, kind));
    device::Memory& angles =
        lists_.at(model::segment_kinds(model, model::BlockKind::layer, kind).front()).angles;
    angles = device::Memory(std::int64_t(table.size() * sizeof(float)));
    device::copy_now(angles.data(), table.data(), angles.bytes());
  }
}

/// Marks the tokens that pad sequences, of all ranks that divide experts.
template <class Storage>
void SegmentTasks<Storage>::mark_padding(List& list, const plan::Stage& stage,
                                         const plan::Place& place) {
  const int parts = list.ranks / tp_, rows = stage.microbatch * seq_len_ / cp_;
  const int first = place.index(model::data_axes) - list.rank / tp_;
  for (int part = 0; part < parts; ++part)
    for (int row = 0; row < rows; ++row)
      list.pads.push_back(position(stage, seq_len_, (first + part) % cp_, row) >= learned_len_);
  list.padding = device::Memory(std::int64_t(list.pads.size()));
  device::copy_now(list.padding.data(), list.pads.data(), list.padding.bytes());
}

template <class Storage>
void SegmentTasks<Storage>::describe_attention(const plan::Stage& stage,
                                               const model::Config& model) {
  const int heads = model.num_heads / stage.tp, keys = model.kv_heads();
  const bool cut = keys % stage.tp == 0;  // else every tensor-parallel rank holds all key heads
  attention_ = {.batch = stage.microbatch,
                .seq_len = seq_len_,
                .heads = heads,
                .head_dim = model.head_dim(),
                .kv_heads = cut ? keys / stage.tp : keys,
                .group = model.num_heads / keys,
                .first_head = cut ? 0 : tp_rank_ * heads,
                .scale = model.score_scale(),
                .cap = float(model.attention_cap),
                .zigzag = zigzag(stage, seq_len_, cp_rank_)};
  const int q = attention_.heads * attention_.head_dim, k = attention_.keys() * attention_.head_dim;
  columns_[std::size_t(Module::q)] = columns_[std::size_t(Module::q_norm)] = {0, q};
  columns_[std::size_t(Module::k_norm)] = {q, k};
  columns_[std::size_t(Module::k)] = {q, k};
  columns_[std::size_t(Module::v)] = {q + k, k};
  columns_[std::size_t(Module::kv)] = {q, 2 * k};
  if (model.latent()) {
    latent_ = {.heads = heads,
               .head_dim = model.head_dim(),
               .turned = model.rotary_dim(),
               .value_dim = model.v_head_dim(),
               .rank = model.kv_lora_rank};
    const int pairs = heads * latent_.pair();
    columns_[std::size_t(Module::kv_up)] = {q, pairs};
    columns_[std::size_t(Module::k_turned)] = {q + pairs, latent_.turned};
  }
  if (model.latent() && stage.gather_keys == 1) {
    columns_[std::size_t(Module::kv_up)] = {};
    columns_[std::size_t(Module::kv_down)] = {0, latent_.rank};
    columns_[std::size_t(Module::kv_down_norm)] = {0, latent_.rank};
    columns_[std::size_t(Module::k_turned)] = {latent_.rank, latent_.turned};
  }
  if (model.keeps_latents()) {
    attention_.head_dim = latent_.kept();
    attention_.kv_heads = 1, attention_.group = heads, attention_.first_head = 0;
    columns_[std::size_t(Module::kv_down_norm)] = {0, latent_.rank};
    columns_[std::size_t(Module::k_turned)] = {latent_.rank, latent_.turned};
    columns_[std::size_t(Module::q)] = {latent_.kept(), q};
  }
  const int ffn = model.ffn_size / stage.tp;
  columns_[std::size_t(Module::mlp_gate)] = {0, ffn};
  columns_[std::size_t(Module::mlp_up)] = {ffn, ffn};
  const bool whole = stage.split().division().dispatches;
  const int shared = model.shared_expert_ffn_size / (whole ? 1 : std::max(stage.tp, stage.ep));
  columns_[std::size_t(Module::shared_gate)] = {0, shared};
  columns_[std::size_t(Module::shared_up)] = {shared, shared};
}

template <class Storage>
void SegmentTasks<Storage>::describe_low(const Operator& op, const model::Adapter& adapter) {
  int first = 0;
  for (const Module module : op.modules) {
    const model::Adapter::Target& target = *adapter.find(module);
    low_columns_[std::size_t(module)] = {std::exchange(first, first + target.rank), target.rank};
    lora_scales_[std::size_t(module)] = float(adapter.scale(target));
  }
}

template <class Storage>
void SegmentTasks<Storage>::describe(List& list, const model::Config& model, SegmentKind kind,
                                     const plan::Place& place, const model::Split& split) {
  list.segment = model::segment(model, kind, split.division());
  list.attention = attention_;
  if (split.sharing() == model::Sharing::heads) {
    list.attention.heads /= cp_;
    list.attention.kv_heads = std::max(1, attention_.kv_heads / cp_);
  }
  if (kind == SegmentKind::window) list.attention.window = model.window;
  const auto value = [&](const model::Expr& expression) {
    return std::int64_t(expression.evaluate(split.values()));
  };
  list.product_elements = value(list.segment.product_grads_elements);
  const std::int64_t dequantized = value(list.segment.dequantized_elements);
  list.dequantized_forward = value(list.segment.forward_workspace_elements) - dequantized;
  list.dequantized_backward =
      value(list.segment.backward_workspace_elements) - list.product_elements - dequantized;
  for (const model::Tensor& tensor : list.segment.tensors) {
    if (tensor.held) list.room = int(value(tensor.rows)), list.may_take_rounds = split.ep > 1;
    list.tensors.push_back({.columns = int(value(tensor.columns)),
                            .share = split.size(tensor.cut),
                            .rank = list.rank,
                            .copies = tensor.copies * split.size(tensor.gathered),
                            .held = tensor.held,
                            .sent = tensor.sent,
                            .arrives = tensor.arrives,
                            .forward_offset = value(tensor.forward_offset),
                            .backward_offset = value(tensor.backward_offset),
                            .again_offset = value(tensor.again_offset)});
  }
  for (std::size_t i = 0; i < list.segment.saved.size(); ++i)
    list.tensors[std::size_t(list.segment.saved[i].tensor)].saved = int(i);
  for (const Operator& op : list.segment.operators)
    if (op.kind == OperatorKind::all_gather)
      list.tensors[std::size_t(op.read)].rank =
          op.axes == model::Axis::cp ? place.cp_rank : place.index(op.axes);
  list.forward_runs = model::forward_runs(list.segment, split);
  list.backward_runs = model::backward_runs(list.segment, split);
  list.cuts = list.tensor(TensorId::output).share > 1;
  const std::vector<TensorId> brought = list.segment.brought();
  for (std::size_t i = 0; i < brought.size(); ++i)
    list.tensors[std::size_t(brought[i])].brought = int(i);
  const std::vector<Operator>& operators = list.segment.operators;
  for (int i = 0; const model::Run& run : list.backward_runs) {
    for (int call = run.first; call < run.end; ++call)
      if (list.op(list.segment.backward[call].op).kind == OperatorKind::experts)
        list.experts_run = i;
    ++i;
  }
  const auto choice = std::ranges::find(operators, OperatorKind::choose_experts, &Operator::kind);
  for (int i = 0; i < int(operators.size()); ++i) {
    const Operator& op = list.op(i);
    list.for_output.push_back(
        op.output_only || (op.again && std::ranges::all_of(operators, [&](const Operator& reader) {
                             return reader.read != op.written || reader.output_only;
                           })));
    if (op.kind == OperatorKind::choose_experts && !op.statistics.empty())
      list.routes = op.statistics.front();
    if (op.kind == OperatorKind::order_copies) {
      list.routes = op.statistics.front(), list.sends = op.statistics.back();
      list.choices = op.read;
    }
    if (op.kind == OperatorKind::all_gather && choice != operators.end() &&
        std::ranges::count(choice->statistics, op.written) > 0)
      list.loads = op.written, list.rounds = i + 1;
    if (op.kind == OperatorKind::send_rows)
      list.rounds = list.arrival =
          int(std::ranges::find(operators, op.written, &Operator::read) - operators.begin());
    if (op.part == Part::lora_a) describe_low(op, model.adapter);
    if (op.kind == OperatorKind::cross_entropy)
      list.tensors[std::size_t(op.written)].columns = rows_of_table_;
    if (op.kind != OperatorKind::gelu) continue;
    list.gelu = i;
    // Neither product has the whole sum if an adapter adds to it.
    const auto alone = [&](TensorId Operator::*side, TensorId id) {
      return std::ranges::count(operators, id, side) == 1;
    };
    if (i > 0 && model::is_product(list.op(i - 1).kind) && alone(&Operator::written, op.read))
      list.product_before = i - 1;
    const auto behind = std::ranges::find(operators, op.written, &Operator::read);
    if (model::is_product(behind->kind) && alone(&Operator::read, op.written))
      list.product_behind = int(behind - operators.begin());
  }
}

}  // namespace brume::engine
