/// @file Calls of operators as a profile measures them.
#include "passes.hpp"

#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "engine/kernel_calls.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rope.hpp"
#include "model/storage.hpp"
#include "operand_maker.hpp"

namespace brume::profiler {
namespace {

using kernels::Vector;
using kernels::Write;
using model::OperatorKind;

/// The model's key heads, as many as this rank's query heads share.
kernels::AttentionShape attention_shape(const std::vector<std::int64_t>& dims,
                                        const model::Config& model) {
  const int heads = int(dims[2]), group = model.num_heads / model.kv_heads();
  return {.batch = int(dims[0]),
          .seq_len = int(dims[1]),
          .heads = heads,
          .head_dim = int(dims[3]),
          .kv_heads = (heads + group - 1) / group,
          .group = group};
}

kernels::LatentShape latent_shape(const model::Config& model, std::int64_t heads) {
  return {.heads = int(heads),
          .head_dim = model.head_dim(),
          .turned = model.rotary_dim(),
          .value_dim = model.v_head_dim(),
          .rank = model.kv_lora_rank};
}

/// An operator's call with new operands; gradients of parameters add up over microbatches.
template <class Storage>
engine::KernelCall<Storage> call_of(Maker<Storage> make, const Item& item,
                                    const model::Config& model) {
  const std::vector<std::int64_t>& d = item.dims;
  engine::KernelCall<Storage> c{
      .kind = item.kind, .write = Write::accumulate, .eps = float(model.norm_eps)};
  const auto activation = [&](std::int64_t rows, std::int64_t read, std::int64_t written) {
    c.read = make.matrix(rows, read), c.written = make.matrix(rows, written);
    c.d_written = make.matrix(rows, written), c.d_read = make.matrix(rows, read);
  };
  switch (item.kind) {
    case OperatorKind::matmul:
    case OperatorKind::matmul_fp8:
      c.read = make.matrix(d[0], d[2]), c.weight = make.matrix(d[1], d[2]);
      c.written = c.d_written = make.matrix(d[0], d[1]), c.d_read = make.matrix(d[0], d[2]);
      c.d_weight = make.wide_matrix(d[1], d[2]);
      break;
    case OperatorKind::experts:
      c.routes = make.routes(d[0], d[3], 1);
      activation(d[0], d[2], d[1]);
      c.weight = make.matrix(d[3] * d[1], d[2]), c.d_weight = make.wide_matrix(d[3] * d[1], d[2]);
      break;
    case OperatorKind::router:
      activation(d[0], d[2], 0);
      c.weight = make.matrix(d[1], d[2]), c.d_weight = make.wide_matrix(d[1], d[2]);
      c.logits = c.d_logits = make.wide_matrix(d[0], d[1]);
      break;
    case OperatorKind::choose_experts:
      c.routes = make.routes(d[0] * d[2], d[1], d[2]);
      c.logits = make.wide_matrix(d[0], d[1]), c.d_logits = make.wide_matrix(d[0], d[1]);
      c.gates = c.d_gates = make.wide_vector(d[0] * d[2]);
      c.router = engine::router(model);
      if (c.router.sigmoid) c.router.correction = make.wide_vector(d[1]).data();
      break;
    case OperatorKind::sigmoid:
      activation(d[0], 1, 0);
      c.gates = c.d_gates = make.wide_vector(d[0]);
      break;
    case OperatorKind::dispatch:
    case OperatorKind::combine: {
      const int copies = model.experts_per_token;
      const std::int64_t tokens = ceil_div(d[0], copies), copied = tokens * copies;
      const bool spreads = item.kind == OperatorKind::dispatch;
      c.routes = make.routes(copied, model.num_experts, copies);
      c.read = c.d_read = make.matrix(spreads ? tokens : copied, d[1]);
      c.written = c.d_written = make.matrix(spreads ? copied : tokens, d[1]);
      break;
    }
    case OperatorKind::cached_attention: {
      const bool prompt = model::is_prompt(d);
      const std::int64_t places = prompt ? d[0] : d[1], sequences = prompt ? 1 : d[0];
      c.attention = {.batch = 1,
                     .seq_len = int(places),
                     .heads = int(d[2]),
                     .head_dim = int(d[3]),
                     .kv_heads = item.key_heads,
                     .group = int(ceil_div(d[2], std::int64_t{item.key_heads}))};
      std::vector<std::int32_t> begins, of_sequence;
      for (std::int64_t n = 0; n < d[0]; ++n) {
        const std::int64_t place = prompt ? n : d[1] - 1;
        begins.push_back(std::int32_t(n % places - place));
        of_sequence.push_back(prompt ? 0 : std::int32_t(n));
      }
      c.attention.documents.begins = make.numbers(begins);
      c.cache = make.cache(c.attention, sequences, places, model.generation.block_tokens);
      c.cache.sequences = make.numbers(of_sequence);
      activation(d[0], c.attention.width(), d[2] * d[3]);
      break;
    }
    case OperatorKind::absorb_queries:
    case OperatorKind::expand_values: {
      c.latent = latent_shape(model, d[3]);
      const bool absorbs = item.kind == OperatorKind::absorb_queries;
      const int attended = c.latent.heads * c.latent.kept();
      activation(d[0] / d[3], absorbs ? c.latent.latent_parts() : attended,
                 absorbs ? c.latent.latent_columns() : c.latent.heads * c.latent.value_dim);
      c.weight = make.matrix(c.latent.heads * c.latent.pair(), c.latent.rank);
      break;
    }
    case OperatorKind::logits:
      activation(d[0], d[2], 0);
      c.weight = make.matrix(d[1], d[2]), c.logits = make.wide_matrix(d[0], d[1]);
      break;
    case OperatorKind::attention:
      c.attention = attention_shape(d, model);
      activation(d[0] * d[1], c.attention.width(), d[2] * d[3]);
      c.lse = make.wide_vector(d[0] * d[1] * d[2]);
      break;
    case OperatorKind::layer_norm:
    case OperatorKind::rms_norm:
      c.read = make.matrix(d[0], d[1]), c.written = c.d_written = make.matrix(d[0], d[1]);
      c.d_residual = c.d_read = make.matrix(d[0], d[1]);
      c.gain = make.vector(d[1]), c.rstd = make.wide_vector(d[0]), c.d_gain = make.zeros(d[1]);
      if (item.kind == OperatorKind::rms_norm) break;
      c.bias = make.vector(d[1]), c.mean = make.wide_vector(d[0]), c.d_bias = make.zeros(d[1]);
      break;
    case OperatorKind::rope:
      c.head_dim = int(d[2]);
      c.angles =
          make.wide_copy(kernels::rope_table(model::rope_frequencies(model), model.padded_len()),
                         model.padded_len(), model.rotary_dim());
      c.written = c.d_read = make.matrix(d[0], d[1] * c.head_dim);
      break;
    case OperatorKind::swiglu:
    case OperatorKind::geglu:
    case OperatorKind::clamped_swiglu:
      activation(d[0], 2 * d[1], d[1]);
      if (model.num_experts > 0) c.gates = c.d_gates = make.wide_vector(d[0]);
      break;
    case OperatorKind::cut_heads:
    case OperatorKind::cut_keys:
    case OperatorKind::join_heads:
      activation(d[0], d[1], d[1]);
      c.heads = {{kernels::HeadBlocks::Block{int(d[1])}}};
      break;
    case OperatorKind::expand_keys:
      c.latent = latent_shape(model, d[1]);
      if (const bool queries = d[2] > 2 * model.head_dim(); queries) {
        activation(d[0], c.latent.parts(), c.latent.columns());
        break;
      }
      activation(d[0], c.latent.turned, 2 * c.latent.queries());
      c.keys = c.d_keys = make.matrix(d[0], d[1] * c.latent.pair());
      break;
    case OperatorKind::narrow_values:
      c.latent = latent_shape(model, d[1] / model.v_head_dim());
      activation(d[0], c.latent.queries(), d[1]);
      break;
    case OperatorKind::embedding:
      c.tokens = make.tokens(d[0], d[2]);
      c.weight = make.matrix(d[2], d[1]), c.d_weight = make.wide_matrix(d[2], d[1]);
      c.written = c.d_written = make.matrix(d[0], d[1]);
      if (model.rotary()) break;
      c.positions = make.matrix(model.padded_len(), d[1]);
      c.d_positions = make.wide_matrix(model.padded_len(), d[1]);
      break;
    case OperatorKind::cross_entropy:
      c.written = make.matrix(d[0], d[1]), c.tokens = make.tokens(d[0], d[1]);
      c.scale = 1.0f / float(d[0]), c.write = Write::replace, c.loss = make.sum();
      break;
    default:  // [N, C] to [N, C]; GELU's backward is timed with that of a bias
      activation(d[0], d[1], d[1]);
      c.d_bias = make.zeros(d[1]);
  }
  return c;
}

/// The rest of a bias or a residual where products take them: next to nothing.
template <class Storage>
Work with_product(Maker<Storage>& make) {
  const Vector one = make.zeros(1);
  return [=] { kernels::fill(0.0f, one); };
}

template <class Storage>
Passes pointwise(Maker<Storage> make, std::int64_t rows, std::int64_t columns) {
  if (kernels::products_have_epilogues()) return {with_product(make), with_product(make)};
  const auto x = make.matrix(rows, columns), y = make.matrix(rows, columns);
  const auto bias = make.vector(columns);
  const Vector db = make.zeros(columns);
  return {[=] { kernels::add_bias<Storage>(x, bias, y); },
          [=] { kernels::bias_backward<Storage>(y, Write::accumulate, db); }};
}

template <class Storage>
Work update(Maker<Storage> make, std::int64_t elements, const model::Config& model, bool on_host) {
  const Vector grad = make.wide_vector(elements), weight = make.wide_vector(elements);
  kernels::UpdatedElements all{.count = elements, .grad = grad.data(), .weight = weight.data()};
  const model::OptimizerRow& row = model.optimizer->elementwise();
  for (std::size_t i = 0; i < row.fields.size(); ++i) {
    const model::StateField field = row.fields[i].in(model.moments);
    const std::int64_t bytes = field.bytes(elements);
    all.formats[i] = field.quantization;
    all.state[i] = make.zeros(ceil_div(bytes, sizeof(float))).data();
  }
  const double* const squares = make.sum();
  if constexpr (!std::is_same_v<Storage, float>) all.rounded = make.vector(elements).data();
  const kernels::UpdateKernels kernels = kernels::update_kernels(row.name, model.moments);
  const kernels::Update step{.lr = 1e-3f,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8f,
                             .weight_decay = 0.1f,
                             .clip_norm = 1.0};
  return [=, kernel = on_host ? kernels.on_host : kernels.here] { kernel(step, squares, all); };
}

template <class Storage>
Work dequantize(Maker<Storage> make, std::int64_t elements, Quantization format) {
  const std::int64_t bytes = elements / quantized_block * block_bytes(format);
  const float* const blocks = make.zeros(bytes / std::int64_t(sizeof(float))).data();
  const auto values = make.vector(elements);
  return [=] {
    kernels::dequantize<Storage>(format, reinterpret_cast<const std::byte*>(blocks), values);
  };
}

/// Calls an operator's kernels as a segment does: a backward makes cheap outputs again. GELU's
/// backward makes the gradient of a bias, too, because no other operator counts it; products take
/// its tanh form as an epilogue if they can.
template <class Storage>
Passes passes_of(const Item& item, const model::Config& model, Operands& operands) {
  Maker<Storage> make(operands);
  if (item.kind == OperatorKind::update) return {update(make, item.dims[0], model, false), {}};
  if (item.kind == OperatorKind::dequantize)
    return {dequantize(make, item.dims[0], model.quantization), {}};
  if (item.kind == OperatorKind::pointwise)
    return pointwise(make, item.tokens, item.dims[0] / item.tokens);
  const engine::KernelCall<Storage> call = call_of(make, item, model);
  const Work forward = [=] { call.forward(); };
  if (item.kind == OperatorKind::cross_entropy || item.kind == OperatorKind::residual)
    return {forward, {}};
  const bool epilogues = kernels::products_have_epilogues();
  if (item.kind == OperatorKind::gelu && epilogues) return {with_product(make), forward};
  const bool cheap = model::rule(item.kind).cheap, product = model::is_product(item.kind);
  const bool adds_bias =
      !epilogues && (item.kind == OperatorKind::gelu || item.kind == OperatorKind::gelu_erf);
  return {forward, [=] {
            if (cheap) call.again();
            call.backward_input();
            if (product) call.backward_weights();
            if (adds_bias) kernels::bias_backward<Storage>(call.d_read, call.write, call.d_bias);
          }};
}

}  // namespace

Passes make_passes(const Item& item, const model::Config& model, Operands& operands) {
  Passes passes = model::with_storage(
      model.precision, [&]<class Storage>() { return passes_of<Storage>(item, model, operands); });
  if (item.forward_only) passes.backward = {};
  return passes;
}

std::int64_t operand_bytes(const Item& item, const model::Config& model) {
  Operands operands = Operands::counted();
  make_passes(item, model, operands);
  return operands.bytes();
}

Work make_host_update(std::int64_t elements, const model::Config& model, Operands& operands) {
  return model::with_storage(model.precision, [&]<class Storage>() {
    return update(Maker<Storage>(operands), elements, model, true);
  });
}

Work make_sum(std::int64_t elements, Operands& operands) {
  Maker<float> make(operands);
  const Vector x = make.zeros(elements), y = make.zeros(elements);
  return [=] { kernels::add(x, y); };
}

}  // namespace brume::profiler
