#include "segment_tasks.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/rope.hpp"
#include "zigzag.hpp"

namespace brume::engine {

using kernels::Write;
using model::Module;
using model::Operator;
using model::OperatorKind;
using model::Part;
using model::SegmentKind;
using model::TensorId;
using schedule::Operation;
using schedule::Role;

namespace {

/// Columns [first, first + count) of a view; all of it if there are none, or it is empty.
template <class View, class Columns>
void cut(View& view, const Columns& columns) {
  if (columns.count == 0 || view.data() == nullptr) return;
  view =
      View(view.data() + columns.first, view.extent(0), std::size_t(columns.count), view.stride(0));
}

/// An exchange of one rank.
template <class Storage>
void copy(kernels::ConstMatrixOf<Storage> from, kernels::MatrixOf<Storage> to) {
  kernels::copy<Storage>({from.data(), from.size()}, {to.data(), to.size()});
}

bool makes_input(const Operands& o) { return o.task.operation != Operation::backward_weights; }
bool makes_weights(const Operands& o) { return o.task.operation != Operation::backward_input; }

}  // namespace

// --- lists --------------------------------------------------------------------------------------

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
      seq_len_(model.seq_len),
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
  first_token_ = stage.gather_keys == 1 ? 0 : cp_rank_ * (model.seq_len / cp_);
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
  }
  if (!model.rotary()) return;
  for (const auto& [kind, layers] : model::layer_counts(model)) {
    const std::vector<float> table = kernels::rope_table(
        model::rope_frequencies(model, kind), model.seq_len, model::rope_magnitude(model, kind));
    device::Memory& angles =
        lists_.at(model::segment_kinds(model, model::BlockKind::layer, kind).front()).angles;
    angles = device::Memory(std::int64_t(table.size() * sizeof(float)));
    device::copy_now(angles.data(), table.data(), angles.bytes());
  }
}

template <class Storage>
void SegmentTasks<Storage>::describe_attention(const plan::Stage& stage,
                                               const model::Config& model) {
  const int heads = model.num_heads / stage.tp, keys = model.kv_heads();
  const bool cut = keys % stage.tp == 0;  // else every tensor-parallel rank holds all key heads
  attention_ = {.batch = stage.microbatch,
                .seq_len = model.seq_len,
                .heads = heads,
                .head_dim = model.head_dim(),
                .kv_heads = cut ? keys / stage.tp : keys,
                .group = model.num_heads / keys,
                .first_head = cut ? 0 : tp_rank_ * heads,
                .scale = model.score_scale(),
                .cap = float(model.attention_cap),
                .zigzag = zigzag(stage, model.seq_len, cp_rank_)};
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
  const int shared = model.shared_expert_ffn_size / std::max(stage.tp, stage.ep);
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
      if (list.op(list.segment.backward[std::size_t(call)].op).kind == OperatorKind::experts)
        list.experts_run = i;
    ++i;
  }
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
    if (op.kind == OperatorKind::send_rows) list.arrival = i + 1;
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

// --- memory -------------------------------------------------------------------------------------

template <class Storage>
auto SegmentTasks<Storage>::pass(const Operands& o, bool backward) const -> Pass {
  const List& list = lists_.at(o.task.segment);
  const bool embeds = o.task.segment == SegmentKind::embedding;
  Pass p{.o = o,
         .list = list,
         .block = blocks_.at(o.block()),
         .rows =
             embeds ? 0 : stream(o, Role::input).extent_int(0) * list.tensor(TensorId::input).share,
         .backward = backward,
         .scratch = o.optional<Storage>(Role::workspace),
         .products = o.optional<Storage>(Role::products),
         .gelu_in_product = false};
  if (backward && p.products == nullptr && p.scratch != nullptr) {
    p.products = p.scratch;
    p.scratch += list.product_elements;
  }
  if (p.scratch != nullptr)
    p.dequantized = p.scratch + (backward ? list.dequantized_backward : list.dequantized_forward);
  // In a segment that is an MLP alone the norm's output is where the segment's will be, so that the
  // workspace is free for GELU's, unless it was gathered there.
  p.gelu_in_product = !backward && list.product_before >= 0 && o.task.segment == SegmentKind::mlp &&
                      o.task.find(Role::output);
  return p;
}

template <class Storage>
bool SegmentTasks<Storage>::keeps(const Pass& p, TensorId id) const {
  const int saved = p.list.tensor(p.list.segment.tensor(id).rows_of).saved;
  return saved >= 0 && p.o.task.find(Role::saved, saved) != nullptr;
}

/// The tensor where it is kept, or else in the scratch. The scratch also holds an output that
/// nobody reads.
template <class Storage>
auto SegmentTasks<Storage>::tensor(const Pass& p, TensorId id) const -> Matrix {
  if (id == TensorId::input) return p.of_round(stream(p.o, Role::input));
  if (id == TensorId::output)
    return p.of_round(p.o.task.find(Role::output)
                          ? stream(p.o, Role::output)
                          : rows(p.scratch, p.all_rows / p.list.tensor(id).share, hidden_));
  if (id == p.list.segment.terms) return this->tensor(p, TensorId::output);
  if (const TensorId all = p.list.segment.tensor(id).rows_of; all != id)
    return own_rows(p, id, this->tensor(p, all));
  const Tensor& tensor = p.list.tensor(id);
  if (keeps(p, id))
    return rows(p.o.template data<Storage>(Role::saved, tensor.saved) + skipped(p, tensor),
                num_rows(p, tensor), tensor.columns);
  if (tensor.brought >= 0) {  // a backward that makes nothing of it again may do without
    if (!p.o.task.find(Role::normed, tensor.brought)) return {};
    return p.of_round(stream(p.o, Role::normed, tensor.brought));
  }
  if (p.gelu_in_product && id == p.list.op(p.list.product_before).read)
    return stream(p.o, Role::output);
  return rows(
      p.scratch + (p.backward ? tensor.again_offset : tensor.forward_offset) + skipped(p, tensor),
      num_rows(p, tensor), tensor.columns);
}

/// A gradient lies in the place of its tensor's, or in that of another tensor: then as this rank's
/// rows, if the other one has more.
template <class Storage>
auto SegmentTasks<Storage>::gradient(const Pass& p, TensorId id) const -> Matrix {
  if (id == TensorId::input)
    return p.of_round(stream(p.o, p.o.task.find(Role::output) ? Role::output : Role::gradient));
  const TensorId place = p.list.segment.tensor(id).gradient_of;
  const Matrix all = gradient_at(p, place);
  const bool whole = id != TensorId::output || p.list.tensor(id).share == 1;
  return place == id && whole ? all : own_rows(p, id, all);
}

/// The rows of a tensor on this rank, from a matrix that may have those of other ranks too.
template <class Storage>
auto SegmentTasks<Storage>::own_rows(const Pass& p, TensorId id, const Matrix& all) const
    -> Matrix {
  const Tensor& tensor = p.list.tensor(id);
  const int count = num_rows(p, tensor);
  if (count == all.extent_int(0) || all.data() == nullptr) return all;
  return Matrix(all.data() + std::size_t(tensor.rank * count) * all.stride(0), std::size_t(count),
                all.extent(1), all.stride(0));
}

/// The place of a tensor's gradient; of the output's it has all tokens.
template <class Storage>
auto SegmentTasks<Storage>::gradient_at(const Pass& p, TensorId id) const -> Matrix {
  if (id == TensorId::output) return p.of_round(stream(p.o, Role::gradient));
  const Tensor& tensor = p.list.tensor(id);
  switch (p.list.segment.tensor(id).gradient) {
    case model::Tensor::Gradient::in_place: return this->tensor(p, id);
    case model::Tensor::Gradient::products:
      return rows(p.products + tensor.backward_offset + skipped(p, tensor), num_rows(p, tensor),
                  tensor.columns);
    case model::Tensor::Gradient::scratch: break;
  }
  return rows(p.scratch + tensor.backward_offset + skipped(p, tensor), num_rows(p, tensor),
              tensor.columns);
}

template <class Storage>
kernels::Vector SegmentTasks<Storage>::statistic(const Pass& p, TensorId id) const {
  const int saved = p.list.tensors[std::size_t(id)].saved;
  if (p.o.task.find(Role::saved, saved) == nullptr) return {};
  return part(p.o.data(Role::saved, saved), p.o.elements(Role::saved, saved));
}

/// The gradient of a tensor of fp32, in the scratch.
template <class Storage>
float* SegmentTasks<Storage>::wide_gradient(const Pass& p, TensorId id) const {
  if (p.scratch == nullptr) return nullptr;
  return reinterpret_cast<float*>(p.scratch + p.list.tensor(id).backward_offset);
}

/// Such a tensor of a forward.
template <class Storage>
float* SegmentTasks<Storage>::wide(const Pass& p, TensorId id) const {
  return reinterpret_cast<float*>(p.scratch + p.list.tensor(id).forward_offset);
}

/// The routes that the operator of the choice writes.
template <class Storage>
kernels::Routes SegmentTasks<Storage>::routes(const Pass& p) const {
  auto* const experts = reinterpret_cast<std::int32_t*>(statistic(p, p.list.routes).data());
  const std::int64_t copies = std::int64_t{p.all_rows} * experts_per_token_,
                     before = std::int64_t{p.first_row} * experts_per_token_;
  // Gates in the order of tokens follow, if rows travel, and the places of these behind all else.
  const bool travel = p.list.arrival > 0;
  std::int32_t* const begins = experts + (travel ? 3 : 2) * copies;
  return {.experts = experts + before,
          .rows = experts + copies + before,
          .begins = begins,
          .num_experts = num_experts_,
          .chosen = experts_per_token_,
          .first_held = first_held_,
          .num_held = num_held_,
          .places = travel ? begins + num_experts_ + 1 + p.first_row : nullptr,
          .placed = p.rows};
}

/// The rows that this rank and others send each other.
template <class Storage>
kernels::TokenRows SegmentTasks<Storage>::token_rows(const Pass& p) const {
  auto* const sent = reinterpret_cast<std::int32_t*>(statistic(p, p.list.sends).data());
  const int ranks = p.list.ranks;
  const std::int64_t copies = std::int64_t{p.own_rows()} * experts_per_token_;
  const std::int64_t first = -std::int64_t{p.first_row};
  return {.sent = sent,
          .sent_begins = sent + copies,
          .places = const_cast<std::int32_t*>(routes(p).places) + first,
          .place_begins = sent + copies + ranks + 1,
          .ranks = ranks,
          .rank = p.list.rank,
          .own_tokens = p.own_rows()};
}

/// Rows that this rank sends as the copies of its tokens, for ranks in place of experts.
template <class Storage>
kernels::Routes SegmentTasks<Storage>::sent_rows(const Pass& p) const {
  const kernels::TokenRows found = token_rows(p);
  kernels::Routes made{.rows = found.sent,
                       .begins = found.sent_begins,
                       .num_experts = found.ranks,
                       .chosen = experts_per_token_,
                       .num_held = found.ranks};
  if (p.sent_begins.empty()) p.sent_begins = kernels::read_begins(made);
  made.host_begins = p.sent_begins.data();
  return made;
}

/// The routes after the choice. A task reads their numbers on the host once.
template <class Storage>
kernels::Routes SegmentTasks<Storage>::made_routes(const Pass& p) const {
  kernels::Routes made = routes(p);
  if (p.begins.empty()) p.begins = kernels::read_begins(made);
  made.host_begins = p.begins.data();
  return made;
}

template <class Storage>
int SegmentTasks<Storage>::num_rows(const Pass& p, const Tensor& tensor) const {
  if (tensor.held) return made_routes(p).held_rows();
  if (tensor.sent) return sent_rows(p).held_rows();
  const bool own = tensor.share > 1 && p.list.arrival > 0;
  const int tokens = tensor.arrives || own ? p.all_rows : p.rows;
  return tokens * tensor.copies / tensor.share;
}

/// Elements of the tokens before a round.
template <class Storage>
std::int64_t SegmentTasks<Storage>::skipped(const Pass& p, const Tensor& tensor) const {
  if (tensor.held || tensor.sent || tensor.arrives) return 0;
  return std::int64_t{p.first_row} * tensor.copies * tensor.columns;
}

/// A head multiplies with its own table or with the tied one.
template <class Storage>
auto SegmentTasks<Storage>::weight(const Pass& p, model::ParameterId id) const -> ConstMatrix {
  if (const Storage* tied = p.o.template optional<Storage>(Role::weights, 1))
    return {tied, std::size_t(rows_of_table_), std::size_t(hidden_)};
  return p.block.matrix(p.o.template data<Storage>(Role::weights), id);
}

/// A product's weight, which is made of blocks where the product does not take them.
template <class Storage>
void SegmentTasks<Storage>::set_weight(const Pass& p, model::ParameterId id, Call& c) const {
  const model::Piece* const piece = p.block.find(id);
  const Quantization format =
      piece == nullptr ? Quantization::none : p.block.parameter(*piece).quantization;
  if (format == Quantization::none) {
    c.weight = weight(p, id);
    return;
  }
  const std::int64_t values = p.block.parameter(*piece).stored_values(piece->elements);
  const std::int64_t columns = piece->shape.back();
  const Storage* const weights = p.o.template data<Storage>(Role::weights);
  const auto* const blocks = reinterpret_cast<const std::byte*>(weights + piece->first);
  if (!p.backward && c.kind == OperatorKind::matmul &&
      kernels::takes_blocks<Storage>(c.read.extent_int(0))) {
    c.blocks = {format, blocks, values / columns, columns};
    return;
  }
  kernels::dequantize<Storage>(format, blocks, {p.dequantized, std::size_t(values)});
  c.weight = {p.dequantized, std::size_t(values / columns), std::size_t(columns)};
}
template <class Storage>
kernels::Matrix SegmentTasks<Storage>::weight_grads(const Pass& p, model::ParameterId id) const {
  if (float* tied = p.o.optional(Role::grads, 1)) return rows(tied, rows_of_table_, hidden_);
  return p.block.matrix_grads(p.o.optional(Role::grads), id);
}

/// Whether a product that reads the tensor, or one made from it again, trains its weights.
template <class Storage>
bool SegmentTasks<Storage>::trains_reader(const Pass& p, TensorId id) const {
  return std::ranges::any_of(p.list.segment.operators, [&](const Operator& op) {
    if (op.read != id || op.in_place()) return false;
    if (!model::is_product(op.kind)) return op.again && trains_reader(p, op.written);
    return std::ranges::any_of(op.modules, [&](Module module) {
      return weight_grads(p, {module, op.part}).data() != nullptr;
    });
  });
}

/// Whether this rank adds biases and the stream to a tensor: one rank does if terms are summed.
template <class Storage>
bool SegmentTasks<Storage>::adds_to(const Pass& p, TensorId id) const {
  return p.list.rank == 0 || !p.list.segment.tensor(id).summed;
}

// --- calls --------------------------------------------------------------------------------------

/// The call of an operator without its parameters and gradients.
template <class Storage>
auto SegmentTasks<Storage>::call(const Pass& p, const Operator& op) const -> Call {
  Call c{.kind = op.kind,
         .write = p.adds ? Write::accumulate : p.o.write(),
         .eps = eps_,
         .gain_base = gain_base_,
         .scale = embedding_scale_,
         .attention = p.list.attention,
         .head_dim = attention_.head_dim,
         .vocabulary = vocabulary_};
  // Attention sees whole sequences, all else this rank's tokens of them.
  const auto* const begins = p.o.template optional<std::int32_t>(Role::documents);
  c.attention.documents = {.begins = begins};
  c.documents = {.begins = begins ? begins + first_token_ : nullptr,
                 .first = first_token_,
                 .zigzag = attention_.zigzag};
  if (op.kind == OperatorKind::embedding)
    c.tokens = tokens(p.o, Role::input);
  else
    c.read = tensor(p, op.queries.value_or(op.read));
  if (op.queries) c.keys = tensor(p, op.read);
  if (op.kind == OperatorKind::logits)
    c.logits = rows(p.o.data(Role::output), p.rows, rows_of_table_);
  else if (!p.backward || op.written != p.list.segment.terms)
    c.written = tensor(p, op.written);
  if (op.kind == OperatorKind::cached_attention)
    c.cache = {.data = p.o.template data<Storage>(Role::cache),
               .block_tokens = block_tokens_,
               .blocks_per_sequence = blocks_per_sequence_,
               .sequences = p.o.template data<std::int32_t>(Role::sequences),
               .tables = p.o.template data<std::int32_t>(Role::tables)};
  if (op.kind == OperatorKind::attention) c.lse = statistic(p, op.statistics.front());
  if (model::is_norm(op.kind)) {
    c.mean = part(statistic(p, op.statistics.front()).data() + p.first_row, c.read.extent_int(0));
    c.rstd = statistic(p, op.statistics.back());
    c.rstd = part(c.rstd.data() + p.first_row, std::int64_t(c.rstd.size()) - p.first_row);
    if (op.modules.front() == Module::q_down_norm || op.modules.front() == Module::kv_down_norm)
      c.eps = float(model::latent_norm_eps);
  }
  route(p, op, c);
  const auto block = [&](int heads) {
    return kernels::HeadBlocks::Block{heads * attention_.head_dim, std::min(heads, cp_)};
  };
  if (op.kind == OperatorKind::cut_heads)
    c.heads = {{block(attention_.heads), block(attention_.keys()), block(attention_.keys())}, cp_};
  if (op.kind == OperatorKind::join_heads)
    c.heads = {{kernels::HeadBlocks::Block{c.written.extent_int(1), cp_}}, cp_};
  if (op.kind == OperatorKind::cut_keys) {
    cut(c.read, columns_[std::size_t(Module::kv)]);
    c.heads = {{kernels::HeadBlocks::Block{c.read.extent_int(1)}}};
  }
  if (op.kind == OperatorKind::expand_keys || model::is_latent_product(op.kind)) c.latent = latent_;
  if (op.kind == OperatorKind::narrow_values) {
    c.latent = latent_;
    c.latent.heads = p.list.attention.heads;
  }
  if (op.kind == OperatorKind::rope) {  // queries and keys
    const Columns turned{0, (attention_.heads + attention_.keys()) * attention_.head_dim};
    cut(c.written, turned);
    c.angles = kernels::ConstMatrix(reinterpret_cast<const float*>(p.list.angles.data()),
                                    std::size_t(attention_.seq_len), std::size_t(rotary_dim_));
  }
  return c;
}

/// Adds what operators of experts alone have.
template <class Storage>
void SegmentTasks<Storage>::route(const Pass& p, const Operator& op, Call& c) const {
  const std::int64_t logits_before = std::int64_t{p.first_row} * num_experts_;
  const auto gates_before = [&](TensorId id) {
    return std::int64_t{p.first_row} * p.list.tensor(id).copies;
  };
  const auto logits = [&](TensorId id) {
    return rows(statistic(p, id).data() + logits_before, num_rows(p, p.list.tensor(id)),
                num_experts_);
  };
  const auto d_logits = [&](TensorId id) {
    return rows(wide_gradient(p, id) + logits_before, num_rows(p, p.list.tensor(id)), num_experts_);
  };
  const auto gates = [&](TensorId id, std::int64_t count) {
    return part(statistic(p, id).data() + gates_before(id), count);
  };
  const auto d_gates = [&](TensorId id, std::int64_t count) {
    return part(wide_gradient(p, id) + gates_before(id), count);
  };
  const bool travel = p.list.arrival > 0;
  if (op.routes) c.routes = travel && *op.routes == p.list.sends ? sent_rows(p) : made_routes(p);
  if (op.kind == OperatorKind::order_copies) return order(p, op, c);
  if (op.kind == OperatorKind::router) {
    c.logits = logits(op.written);
    if (p.backward) c.d_logits = d_logits(op.written);
  }
  if (op.kind == OperatorKind::choose_experts && travel) return choose_own(p, op, c);
  if (op.kind == OperatorKind::choose_experts) {
    const Storage* const weights = p.o.template optional<Storage>(Role::weights);
    c.routes = p.backward ? made_routes(p) : routes(p);
    c.logits = logits(op.read);
    c.gates = gates(op.written, std::int64_t{p.rows} * experts_per_token_);
    c.router = router_;
    const model::ParameterId correction{Module::router, Part::correction};
    if (!p.backward) c.router.correction = p.block.in_fp32(weights, correction).data();
    if (!p.backward) return;
    c.d_logits = d_logits(op.read);
    c.d_gates = d_gates(op.written, c.routes.held_rows());
  }
  const std::optional<TensorId> of_rows =
      op.kind == OperatorKind::sigmoid ? std::optional(op.written) : op.gates;
  if (!of_rows) return;
  const std::int64_t count = op.routes ? c.routes.held_rows() : p.rows;
  c.gates = gates(*of_rows, count);
  if (!p.backward) return;
  c.d_gates = d_gates(*of_rows, count);
  // A backward begins with the last reader.
  const std::vector<Operator>& operators = p.list.segment.operators;
  const bool last = std::none_of(&op + 1, operators.data() + operators.size(),
                                 [&](const Operator& other) { return other.gates == op.gates; });
  c.write_d_gates = last ? Write::replace : Write::accumulate;
}

/// The choice of this rank's tokens: numbers of experts, then gates, both in the order of tokens.
template <class Storage>
void SegmentTasks<Storage>::choose_own(const Pass& p, const Operator& op, Call& c) const {
  const int tokens = p.own_rows();
  const std::int64_t copies = std::int64_t{tokens} * experts_per_token_,
                     before = p.list.rank * copies;
  c.logits = rows(statistic(p, op.read).data(), tokens, num_experts_);
  c.routes = routes(p);
  c.routes.rows = nullptr;
  c.router = router_;
  if (!p.backward) {
    float* const numbers = wide(p, p.list.choices) + 2 * before;
    c.routes.experts = reinterpret_cast<std::int32_t*>(numbers);
    c.gates = part(numbers + copies, copies);
    const Storage* const weights = p.o.template optional<Storage>(Role::weights);
    c.router.correction =
        p.block.in_fp32(weights, model::ParameterId{Module::router, Part::correction}).data();
    return;
  }
  c.routes.experts += before;
  c.d_logits = rows(wide_gradient(p, op.read), tokens, num_experts_);
  c.d_gates = part(wide_gradient(p, p.list.choices) + 2 * before + copies, copies);
}

/// The rows of copies of all ranks' tokens, or of a round's.
template <class Storage>
void SegmentTasks<Storage>::order(const Pass& p, const Operator& op, Call& c) const {
  const std::int64_t all = std::int64_t{p.all_rows} * experts_per_token_,
                     before = std::int64_t{p.first_row} * experts_per_token_,
                     copies = std::int64_t{p.rows} * experts_per_token_;
  c.token_rows = token_rows(p);
  c.first_token = p.first_row, c.num_tokens = p.rows;
  if (p.backward) {
    c.routes = made_routes(p);
    c.d_gates = part(wide_gradient(p, op.written) + before, c.routes.held_rows());
    c.d_choices = part(wide_gradient(p, op.read), 2 * all);
    return;
  }
  c.routes = routes(p);
  c.gates = part(statistic(p, op.written).data() + before, copies);
  c.of_tokens = part(statistic(p, p.list.routes).data() + 2 * all + before, copies);
  if (!p.knows_choices) c.choices = part(wide(p, op.read), 2 * all);
}

/// Adds a rank's part of its heads' sinks. Ranks that share a sequence have other heads, and sum
/// gradients.
template <class Storage>
void SegmentTasks<Storage>::set_sinks(const Pass& p, Call& c) const {
  const int heads = c.attention.heads, first = heads < attention_.heads ? cp_rank_ * heads : 0;
  const auto all = p.block.vector(p.o.template data<Storage>(Role::weights), {Module::sinks});
  c.sinks = {all.data() + first, std::size_t(heads)};
  if (!p.backward) return;
  const kernels::Vector grads = p.block.vector_grads(p.o.optional(Role::grads), {Module::sinks});
  if (grads.data() == nullptr) return;
  if (heads < attention_.heads && c.write == Write::replace) kernels::fill(0.0f, grads);
  c.d_sinks = part(grads.data() + first, heads);
}

/// Adds the biases of a product of experts, of which this rank may have some columns.
template <class Storage>
void SegmentTasks<Storage>::set_experts_bias(const Pass& p, Module module, Call& c) const {
  const model::ParameterId id{module, Part::bias};
  const model::Piece* const piece = p.block.find(id);
  if (piece == nullptr) return;
  const std::size_t columns = std::size_t(piece->elements) / std::size_t(num_held_);
  const auto as_rows = [&](const auto& vector) {
    return kernels::MatrixView(vector.data(), std::size_t(num_held_), columns);
  };
  if (module == Module::experts_out) c.first_biased = int(piece->offset.back());
  if (const Storage* const weights = p.o.template optional<Storage>(Role::weights))
    c.experts_bias = as_rows(p.block.vector(weights, id));
  if (const kernels::Vector grads = p.block.vector_grads(p.o.optional(Role::grads), id);
      grads.data() != nullptr)
    c.d_experts_bias = as_rows(grads);
}

template <class Storage>
void SegmentTasks<Storage>::count_loads(const Pass& p) const {
  if (p.o.task.operation != Operation::forward) return;
  ++loads_.forwards, ++loads_.rounds;
  if (p.list.rank != 0) return;
  const std::int32_t* const begins = made_routes(p).host_begins;
  const std::int64_t first = std::int64_t{p.block.block.layer - first_dense_layers_} * num_experts_;
  for (int e = 0; e < num_experts_; ++e)  // rank 0 holds the first experts, so rows begin with them
    loads_.copies[std::size_t(first + e)] += begins[e + 1] - begins[e];
}

template <class Storage>
ExpertLoads SegmentTasks<Storage>::take_loads() const {
  return std::exchange(loads_, {.copies = std::vector<std::int64_t>(loads_.copies.size())});
}

/// One of the ranks that divide experts adds these losses; the others have parts of the same
/// gradients. If each has its own tokens, it adds theirs.
template <class Storage>
kernels::RouterLoss SegmentTasks<Storage>::router_loss(const Pass& p,
                                                       const StepScalars& step) const {
  const bool own = p.list.arrival > 0;
  if ((p.list.rank != 0 && !own) || num_experts_ == 0) return {};
  const double of_token = step.sequence_scale / seq_len_;
  const double share = double(num_experts_) / (double(seq_len_) * experts_per_token_);
  const int first = own ? p.list.rank * p.own_rows() : p.first_row;
  const int length = seq_len_ / cp_, end = first + (own ? p.own_rows() : p.rows);
  return {.balance = float(balance_loss_ * share * of_token),
          .z = float(z_loss_ * of_token),
          .seq_len = length,
          .before = first % length,
          .after = int(ceil_div(end, length)) * length - end};
}

/// Calls `each` with the parameters of every module, and with its columns of shared tensors.
///
/// @param multiplies  whether products read weights, and not only their gradients
template <class Storage>
template <class Each>
void SegmentTasks<Storage>::for_modules(const Pass& p, const Operator& op, const Call& whole,
                                        Each each, bool multiplies) const {
  const Storage* weights = p.o.template optional<Storage>(Role::weights);
  float* const grads = p.o.optional(Role::grads);
  if (op.kind == OperatorKind::embedding) {
    Call c = whole;
    const model::ParameterId token{Module::token}, position{Module::position};
    if (weights != nullptr) c.weight = p.block.matrix(weights, token);
    if (weights != nullptr && tp_rank_ == 0) c.positions = p.block.matrix(weights, position);
    c.d_weight = p.block.matrix_grads(grads, token);
    c.d_positions = p.block.matrix_grads(grads, position);
    return each(c);
  }
  const auto reads_too = [&](const Operator& other) {
    return other.read == op.read && !other.in_place() && !model::is_epilogue(other.kind);
  };
  const std::vector<Operator>& operators = p.list.segment.operators;
  const bool first = std::none_of(operators.data(), &op, reads_too);
  Write write_d_read = first ? Write::replace : Write::accumulate;
  if (model::is_latent_product(op.kind)) {
    Call c = whole;
    c.weight = weight(p, {Module::kv_up});
    return each(c);
  }
  const bool logits = model::makes_logits(op.kind);
  const bool attends =
      op.kind == OperatorKind::attention || op.kind == OperatorKind::cached_attention;
  if (op.modules.empty() || logits || attends) {
    Call c = whole;
    c.write_d_read = write_d_read;
    if (logits) {
      const model::ParameterId bias{op.modules.front(), Part::bias};
      c.weight = weight(p, {op.modules.front()});
      c.d_weight = weight_grads(p, {op.modules.front()});
      c.bias = p.block.vector(weights, bias);
      c.d_bias = p.block.vector_grads(grads, bias);
    } else if (!op.modules.empty()) {
      set_sinks(p, c);
    }
    return each(c);
  }
  std::int64_t statistics = 0;
  for (const Module module : op.modules) {
    Call c = whole;
    const Columns& low = low_columns_[std::size_t(module)];
    const Columns& columns = op.part == Part::lora_a ? low : columns_[std::size_t(module)];
    cut(c.written, columns);
    cut(c.d_written, columns);
    if (op.kind == OperatorKind::experts) {
      if (op.part == Part::weight) set_experts_bias(p, module, c);
    } else if (op.part == Part::weight) {
      if (adds_to(p, op.written)) c.bias = p.block.vector(weights, {module, Part::bias});
      c.d_bias = p.block.vector_grads(grads, {module, Part::bias});
    }
    if (op.part == Part::lora_b) {
      cut(c.read, low);
      cut(c.d_read, low);
      c.residual = c.written;
      write_d_read = Write::replace;
    }
    if (model::is_product(op.kind)) {
      if (multiplies) set_weight(p, {module, op.part}, c);
      c.d_weight = weight_grads(p, {module, op.part});
      c.write_d_read = std::exchange(write_d_read, Write::accumulate);
      // A tied table's gradient was cleared: the embedding adds to it too.
      if (p.o.task.find(Role::weights, 1)) c.write = Write::accumulate;
    } else {
      cut(c.read, columns);
      cut(c.d_read, columns);
      c.gain = p.block.vector(weights, {module});
      c.d_gain = p.block.vector_grads(grads, {module});
      const auto count = std::int64_t(c.read.size() / c.gain.size());
      c.rstd = part(c.rstd.data() + std::exchange(statistics, statistics + count), count);
    }
    each(c);
  }
}

/// Scales the tensor between an adapter's factors, or its gradient: terms of one scale together.
template <class Storage>
void SegmentTasks<Storage>::scale_low(const Operator& op, Matrix low) const {
  for (auto first = op.modules.begin(); first != op.modules.end();) {
    const float scale = lora_scales_[std::size_t(*first)];
    const auto end = std::find_if(first, op.modules.end(), [&](Module module) {
      return lora_scales_[std::size_t(module)] != scale;
    });
    const Columns &begin = low_columns_[std::size_t(*first)],
                  &last = low_columns_[std::size_t(*std::prev(end))];
    kernels::scale<Storage>(
        scale, kernels::columns<Storage>(low, begin.first, last.first + last.count - begin.first));
    first = end;
  }
}

template <class Storage>
void SegmentTasks<Storage>::run_forward(const Pass& p, const Operator& op, const Call& whole,
                                        bool again) const {
  const bool of_heads = model::is_norm(op.kind) && op.modules.size() > 1;
  if (of_heads)
    kernels::copy<Storage>({whole.read.data(), whole.read.size()},
                           {whole.written.data(), whole.written.size()});
  for_modules(p, op, whole, [&](Call c) {
    if (of_heads) c.read = c.written;
    again && !of_heads ? c.again() : c.forward();
  });
  if (op.part == Part::lora_a) scale_low(op, whole.written);
}

// --- tasks --------------------------------------------------------------------------------------

/// A recompute whose output nobody reads makes only the tensors that a backward needs.
template <class Storage>
void SegmentTasks<Storage>::forward(const Operands& o, const StepScalars& step) const {
  const Pass p = pass(o, false);
  const bool wanted = wants_output(p);
  const SegmentKind kind = o.task.segment;
  const TensorId terms = p.list.segment.terms;
  const bool adds =
      kind != SegmentKind::embedding && kind != SegmentKind::head && terms == TensorId::output;
  ConstMatrix sum = adds ? ConstMatrix(stream(o, Role::input)) : ConstMatrix();
  const model::Run& run = p.list.forward_runs[o.task.run];
  if (p.list.arrival > 0 && run.first == p.list.arrival && needs_rounds(p))
    return forward_in_rounds(p, run.first - 1, run.end, {});
  for (int i = run.first; i < run.end; ++i) {
    const Operator& op = p.list.op(i);
    if (op.kind == OperatorKind::all_to_all)
      copy<Storage>(tensor(p, op.read), tensor(p, op.written));
    if (model::is_exchange(op.kind)) continue;  // alone
    if (model::is_epilogue(op.kind) || (!wanted && p.list.for_output[i])) continue;
    if (p.gelu_in_product && i == p.list.gelu) continue;
    Call c = call(p, op);
    if (op.kind == OperatorKind::cross_entropy) {
      c.tokens = tokens(o, Role::targets);
      c.cap = logits_cap_;
      if (tp_ == 1) {
        for_losses(o, step, [&](const LossPart& part) {
          Call one = c;
          one.written = kernels::rows<Storage>(c.written, part.first, part.count);
          one.tokens = {c.tokens.data() + part.first, std::size_t(part.count)};
          one.scale = part.scale;
          one.write = part.write;
          one.loss = part.loss;
          one.misses = part.loss + 1;
          one.forward();
        });
      } else {
        const std::int64_t mine = std::int64_t{kernels::num_statistics} * p.rows;
        float* const statistics = statistic(p, op.statistics.front()).data() + tp_rank_ * mine;
        kernels::cross_entropy_part<Storage>(c.written, c.tokens, vocabulary_,
                                             rows(statistics, p.rows, kernels::num_statistics),
                                             c.cap);
      }
      continue;
    }
    if (p.gelu_in_product && i == p.list.product_before) {
      const Matrix activated = tensor(p, p.list.op(p.list.gelu).written);
      for_modules(p, op, c, [&](const Call& product) { product.forward_with_gelu(activated); });
      continue;
    }
    if (op.written == terms && wanted) c.residual = sum;
    run_forward(p, op, c, false);
    if (op.kind == OperatorKind::order_copies) count_loads(p);
    if (op.kind == OperatorKind::choose_experts && p.list.arrival == 0) {
      count_loads(p);
      if (needs_rounds(p)) return forward_in_rounds(p, i, run.end, wanted ? sum : ConstMatrix());
    }
    if (op.written == terms) sum = c.written;
  }
}

// --- rounds -------------------------------------------------------------------------------------

/// Cuts the tokens so that each round's copies fit the room for held experts.
template <class Storage>
auto SegmentTasks<Storage>::rounds(const Pass& p) const -> std::vector<Round> {
  const kernels::Routes all = routes(p);
  std::vector<std::int32_t> experts(std::size_t(p.rows) * std::size_t(experts_per_token_));
  device::copy(experts.data(), all.experts, std::int64_t(experts.size() * sizeof(experts[0])));
  device::finish();
  std::vector<Round> found{{0, 0}};
  int held = 0;  // copies of the last round
  for (auto token = experts.begin(); token != experts.end(); token += experts_per_token_) {
    const int own = int(std::count_if(token, token + experts_per_token_, [&](std::int32_t expert) {
      return all.place(expert) < num_held_;
    }));
    if (held + own > p.list.room) {
      found.push_back({found.back().first + found.back().count, 0});
      held = 0;
    }
    ++found.back().count;
    held += own;
  }
  return found;
}

/// Calls `each` with the pass of every round, for whose tokens alone routes and gates are made;
/// afterwards routes and gates are made for all tokens again.
template <class Storage>
template <class Each>
void SegmentTasks<Storage>::for_rounds(const Pass& p, Each each) const {
  const OperatorKind orders =
      p.list.arrival > 0 ? OperatorKind::order_copies : OperatorKind::choose_experts;
  const auto choice = std::ranges::find(p.list.segment.operators, orders, &Operator::kind);
  const auto choose = [&](Pass pass) {
    pass.backward = false, pass.knows_choices = true;
    call(pass, *choice).forward();
  };
  for (const Round& round : rounds(p)) {
    Pass q = p;
    q.rows = round.count, q.first_row = round.first, q.begins.clear();
    q.adds = round.first > 0;
    choose(q);
    each(q);
  }
  choose(p);
}

/// Makes the tensors again that the operators up to index `last` write, for a round's tokens: all
/// but routes and tensors that are kept of all tokens. What ranks sent each other is there.
template <class Storage>
void SegmentTasks<Storage>::make_of_round(const Pass& q, int last) const {
  for (int i = q.list.arrival; i <= last; ++i) {
    const Operator& op = q.list.op(i);
    const bool routes = model::makes_logits(op.kind) || op.kind == OperatorKind::choose_experts;
    if (!routes && !model::is_epilogue(op.kind) && !model::is_exchange(op.kind) &&
        !lasts(q, op.written))
      run_forward(q, op, call(q, op), model::is_norm(op.kind));
  }
}

/// @param choice  index of the choice of experts, behind which nothing is made so far
/// @param end     of the run
/// @param sum     added to the output, of all tokens
template <class Storage>
void SegmentTasks<Storage>::forward_in_rounds(const Pass& p, int choice, int end,
                                              const ConstMatrix& sum) const {
  const bool wanted = wants_output(p);
  for_rounds(p, [&](const Pass& q) {
    loads_.rounds += q.first_row > 0 && p.o.task.operation == Operation::forward;
    make_of_round(q, choice);
    ConstMatrix before = sum.data() != nullptr ? q.of_round(sum) : ConstMatrix();
    for (int i = choice + 1; i < end; ++i) {
      const Operator& op = p.list.op(i);
      if (model::is_epilogue(op.kind) || (!wanted && p.list.for_output[i])) continue;
      Call c = call(q, op);
      if (op.written == p.list.segment.terms) c.residual = std::exchange(before, c.written);
      run_forward(q, op, c, false);
    }
  });
}

template <class Storage>
void SegmentTasks<Storage>::loss(const Operands& o, const StepScalars& step) const {
  const List& list = lists_.at(SegmentKind::head);
  const Operator& op = list.segment.operators.back();
  const kernels::ConstTokens targets = tokens(o, Role::targets);
  const int count = targets.extent_int(0);
  const auto saved = [&](TensorId id) { return list.tensors[std::size_t(id)].saved; };
  const Matrix logits =
      rows(o.data<Storage>(Role::saved, saved(op.written)), count, rows_of_table_);
  constexpr int each = kernels::num_statistics;
  const kernels::Matrix statistics =
      rows(o.data(Role::saved, saved(op.statistics.front())), tp_, each * count);
  for_losses(o, step, [&](const LossPart& part) {
    kernels::cross_entropy_combine<Storage>(
        kernels::rows<Storage>(logits, part.first, part.count),
        {targets.data() + part.first, std::size_t(part.count)}, vocabulary_,
        kernels::columns(statistics, each * part.first, each * part.count), tp_rank_, part.scale,
        part.write, part.loss, logits_cap_, part.loss + 1);
  });
}

/// One loss of all rows, or of pairs one for each sequence, which other tasks may have begun.
template <class Storage>
template <class Use>
void SegmentTasks<Storage>::for_losses(const Operands& o, const StepScalars& step, Use use) const {
  double* const loss = o.data<double>(Role::loss);
  const int count = int(o.elements(Role::targets)), own_tokens = seq_len_ / cp_;
  if (!pairs_) return use(LossPart{0, count, step.loss_scale, o.write(), loss});
  const auto first = int(o.task.at(Role::targets).first_byte / model::token_bytes);
  for (int row = 0, end = 0; row < count; row = end) {
    const int sequence = (first + row) / own_tokens;
    end = std::min(count, (sequence + 1) * own_tokens - first);
    const bool begins = (first + row) % own_tokens == 0;
    use(LossPart{row, end - row, step.factors.empty() ? 1.0f : step.factors[std::size_t(sequence)],
                 begins ? Write::replace : Write::accumulate, loss + 2 * (1 + sequence)});
  }
}

/// In two parts the first one leaves gradients of linear layers to the second, and what these need
/// in a buffer of its own: each kernel reads the same numbers as in one. The gradient of the stream
/// goes past the branches too, but for the head.
template <class Storage>
void SegmentTasks<Storage>::backward(const Operands& o, const StepScalars& step) const {
  Pass p = pass(o, true);
  const std::vector<model::BackwardCall>& calls = p.list.segment.backward;
  const model::Run run =
      makes_input(o) ? p.list.backward_runs[o.task.run] : model::Run{0, int(calls.size())};
  if (!makes_input(o) || o.task.run == p.list.experts_run) {
    if (needs_rounds(p)) return backward_in_rounds(p, run, step);
    if (p.list.may_take_rounds) begin_experts_gradients(p);
  }
  const bool begun =
      std::any_of(calls.begin(), calls.begin() + run.first, [&](const model::BackwardCall& call) {
        return !call.again && p.list.op(call.op).read == TensorId::input;
      });
  Backward shared{
      .step = step, .sum = {}, .made = std::vector<char>(p.list.segment.operators.size())};
  const bool cuts = p.list.cuts && makes_input(o) && o.task.find(Role::output);
  if (begun || cuts)
    shared.sum = gradient(p, TensorId::input);
  else if (!p.list.cuts && o.task.segment != SegmentKind::head && makes_input(o))
    shared.sum = stream(o, Role::gradient);
  for (int i = run.first; i < run.end; ++i) {
    const model::BackwardCall& called = calls[i];
    if (!(called.for_weights ? makes_weights(o) : makes_input(o))) continue;
    const Operator& op = p.list.op(called.op);
    if (called.again && (keeps(p, op.written) || shared.made[std::size_t(called.op)] != 0))
      continue;
    if (called.again && called.for_weights && !trains_reader(p, op.written)) continue;
    run_backward(p, called, shared);
  }
}

template <class Storage>
void SegmentTasks<Storage>::run_backward(const Pass& p, const model::BackwardCall& called,
                                         Backward& shared) const {
  const Operator& op = p.list.op(called.op);
  if (op.kind == OperatorKind::all_to_all)
    copy<Storage>(gradient(p, op.written), gradient(p, op.read));
  if (model::is_exchange(op.kind)) return;  // alone
  Call c = call(p, op);
  if (called.again) {
    run_forward(p, op, c, true);
    shared.made[std::size_t(called.op)] = 1;
    return;
  }
  c.d_written = gradient(p, op.written);
  if (called.for_weights)
    return for_modules(
        p, op, c, [](const Call& product) { product.backward_weights(); }, false);
  if (called.op == p.list.product_behind) return;  // goes with GELU
  if (op.kind != OperatorKind::embedding) c.d_read = gradient(p, op.queries.value_or(op.read));
  if (op.queries) c.d_keys = gradient(p, op.read);
  if (op.kind == OperatorKind::cut_keys) cut(c.d_read, columns_[std::size_t(Module::kv)]);
  if (called.op == p.list.gelu && p.list.product_behind >= 0) {
    const Operator& behind = p.list.op(p.list.product_behind);
    Call product = call(p, behind);
    product.d_written = gradient(p, behind.written);
    return for_modules(p, behind, product,
                       [&](const Call& one) { one.backward_input_through_gelu(c.read, c.d_read); });
  }
  if (op.kind == OperatorKind::rope) cut(c.d_read, Columns{0, c.written.extent_int(1)});
  if (op.read == TensorId::input) c.d_residual = shared.sum;
  if (op.kind == OperatorKind::choose_experts) c.router_loss = router_loss(p, shared.step);
  for_modules(p, op, c, [](const Call& one) { one.backward_input(); });
  if (op.part == Part::lora_b) scale_low(op, c.d_read);
  if (op.read == TensorId::input) shared.sum = c.d_read;
}

/// The first part of a split backward makes gradients of products' weights too if it takes rounds,
/// so maybe before the second part of the first microbatch. Therefore all parts add to zeros.
template <class Storage>
void SegmentTasks<Storage>::begin_experts_gradients(Pass& p) const {
  p.adds = p.o.task.operation == Operation::backward_weights;
  if (p.o.task.operation != Operation::backward_input || p.o.write() != Write::replace) return;
  for (const Operator& op : p.list.segment.operators)
    for (const Module module : op.modules)
      if (model::is_product(op.kind))
        for (const Part one : {op.part, Part::bias})
          if (const kernels::Matrix grads = weight_grads(p, {module, one}); grads.data())
            kernels::fill(0.0f, part(grads.data(), std::int64_t(grads.size())));
}

/// A round is a backward of its tokens alone. What the forward kept of the rows of experts is that
/// of its last round, so all of it is made again. The first part of a split backward makes the
/// gradients of weights too.
template <class Storage>
void SegmentTasks<Storage>::backward_in_rounds(const Pass& p, const model::Run& run,
                                               const StepScalars& step) const {
  if (!makes_input(p.o)) return;
  const std::vector<Operator>& operators = p.list.segment.operators;
  const auto products = std::ranges::find(operators, OperatorKind::experts, &Operator::kind);
  const auto behind = std::find_if(
      products, operators.end(), [&](const Operator& op) { return op.read == products->written; });
  for_rounds(p, [&](const Pass& q) {
    Backward round{
        .step = step, .sum = {}, .made = std::vector<char>(p.list.segment.operators.size())};
    if (!p.list.cuts) round.sum = q.of_round(stream(p.o, Role::gradient));
    make_of_round(q, int(behind - operators.begin()) - 1);
    for (auto op = behind; op != operators.end(); ++op)
      if (op->part == Part::lora_a && q.list.tensor(op->written).held)
        for (const Operator* const made : {&*behind, &*op})
          run_forward(q, *made, call(q, *made), false);
    for (int i = run.first; i < run.end; ++i) {
      const model::BackwardCall& called = p.list.segment.backward[std::size_t(i)];
      const TensorId written = p.list.op(called.op).written;
      if (!called.again || (!lasts(q, written) && round.made[std::size_t(called.op)] == 0))
        run_backward(q, called, round);
    }
  });
}

template class SegmentTasks<float>;
template class SegmentTasks<kernels::bfloat16>;
template class SegmentTasks<kernels::float16>;

}  // namespace brume::engine
