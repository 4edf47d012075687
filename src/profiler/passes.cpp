#include "passes.hpp"

#include <span>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "kernels/attention.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"
#include "model/storage.hpp"

namespace brume::profiler {
namespace {

using kernels::ConstTokens;
using kernels::Vector;
using kernels::Write;
using model::OperatorKind;

/// New operands of one operator. Loops must leave them finite and away from zero, or later calls
/// would be timed on unusual numbers: so no gradient is written over what it is made from.
template <class Storage>
class Maker {
 public:
  explicit Maker(Operands& operands) : operands_(operands) { operands.restart(); }

  // Activations and weights:
  kernels::VectorOf<Storage> vector(std::int64_t elements) {
    return kernels::VectorOf<Storage>(operands_.values<Storage>(elements).data(),
                                      std::size_t(elements));
  }
  kernels::MatrixOf<Storage> matrix(std::int64_t rows, std::int64_t columns) {
    return kernels::MatrixOf<Storage>(operands_.values<Storage>(rows * columns).data(),
                                      std::size_t(rows), std::size_t(columns));
  }
  // Gradients of parameters, statistics and optimizer state:
  Vector wide_vector(std::int64_t elements) {
    return Vector(operands_.values<float>(elements).data(), std::size_t(elements));
  }
  kernels::Matrix wide_matrix(std::int64_t rows, std::int64_t columns) {
    return kernels::Matrix(operands_.values<float>(rows * columns).data(), std::size_t(rows),
                           std::size_t(columns));
  }
  kernels::Matrix wide_copy(std::span<const float> values, std::int64_t rows,
                            std::int64_t columns) {
    return kernels::Matrix(operands_.copy_of(values).data(), std::size_t(rows),
                           std::size_t(columns));
  }
  Vector zeros(std::int64_t elements) {
    return Vector(operands_.zeros(elements).data(), std::size_t(elements));
  }
  /// One number in double precision, 0.
  double* sum() { return reinterpret_cast<double*>(operands_.zeros(2).data()); }
  ConstTokens tokens(std::int64_t count, std::int64_t below) {
    return ConstTokens(operands_.tokens(count, below).data(), std::size_t(count));
  }

 private:
  Operands& operands_;
};

/// Backward is both gradients; weights' gradients add up over microbatches.
template <class Storage>
Passes matmul(Maker<Storage> make, std::int64_t m, std::int64_t n, std::int64_t k,
              kernels::Factors factors) {
  const auto x = make.matrix(m, k), w = make.matrix(n, k), y = make.matrix(m, n);
  const auto dx = make.matrix(m, k);
  const auto dw = make.wide_matrix(n, k);
  return {[=] { kernels::linear_forward<Storage>(x, w, Write::replace, y, factors); },
          [=] {
            kernels::linear_backward_input<Storage>(y, w, Write::replace, dx, factors);
            kernels::linear_backward_weight<Storage>(y, x, Write::accumulate, dw, factors);
          }};
}

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

template <class Storage>
Passes attention(Maker<Storage> make, const kernels::AttentionShape& shape) {
  const std::int64_t rows = std::int64_t(shape.batch) * shape.seq_len;
  const std::int64_t columns = std::int64_t(shape.heads) * shape.head_dim;
  const auto qkv = make.matrix(rows, shape.width()), o = make.matrix(rows, columns);
  const auto d_o = make.matrix(rows, columns), dqkv = make.matrix(rows, shape.width());
  const Vector lse = make.wide_vector(rows * shape.heads);
  return {[=] { kernels::attention_forward<Storage>(shape, qkv, o, lse); },
          [=] { kernels::attention_backward<Storage>(shape, qkv, o, lse, d_o, dqkv); }};
}

/// Backward makes the normed input again, as a segment's backward does.
template <class Storage>
Passes layer_norm(Maker<Storage> make, std::int64_t rows, std::int64_t columns, float eps) {
  const auto x = make.matrix(rows, columns), y = make.matrix(rows, columns);
  const auto dx = make.matrix(rows, columns);
  const auto gain = make.vector(columns), bias = make.vector(columns);
  const Vector mean = make.wide_vector(rows), rstd = make.wide_vector(rows);
  const Vector dgain = make.zeros(columns), dbias = make.zeros(columns);
  return {[=] { kernels::layer_norm_forward<Storage>(x, gain, bias, eps, y, mean, rstd); },
          [=] {
            kernels::layer_norm_apply<Storage>(x, gain, bias, mean, rstd, y);
            kernels::layer_norm_backward<Storage>(y, x, gain, mean, rstd, dx, dx, Write::accumulate,
                                                  dgain, dbias);
          }};
}

template <class Storage>
Passes rms_norm(Maker<Storage> make, std::int64_t rows, std::int64_t columns, float eps) {
  const auto x = make.matrix(rows, columns), y = make.matrix(rows, columns);
  const auto dx = make.matrix(rows, columns);
  const auto gain = make.vector(columns);
  const Vector rstd = make.wide_vector(rows), dgain = make.zeros(columns);
  return {[=] { kernels::rms_norm_forward<Storage>(x, gain, eps, y, rstd); },
          [=] {
            kernels::rms_norm_apply<Storage>(x, gain, rstd, y);
            kernels::rms_norm_backward<Storage>(y, x, gain, rstd, dx, dx, Write::accumulate, dgain);
          }};
}

template <class Storage>
Passes rope(Maker<Storage> make, std::int64_t rows, std::int64_t heads,
            const model::Config& model) {
  const std::vector<float> angles =
      kernels::rope_table(model::rope_frequencies(model), model.seq_len);
  const int head_dim = model.head_dim();
  const auto table = make.wide_copy(angles, model.seq_len, model.rotary_dim());
  const auto x = make.matrix(rows, heads * head_dim);
  return {[=] { kernels::rope_forward<Storage>(table, head_dim, x); },
          [=] { kernels::rope_backward<Storage>(table, head_dim, x); }};
}

/// Backward makes the output again, as a segment's backward does; here and in gelu.
template <class Storage>
Passes gated(Maker<Storage> make, std::int64_t rows, std::int64_t columns, bool gelu) {
  const auto forward = gelu ? kernels::geglu_forward<Storage> : kernels::swiglu_forward<Storage>;
  const auto backward = gelu ? kernels::geglu_backward<Storage> : kernels::swiglu_backward<Storage>;
  const auto u = make.matrix(rows, 2 * columns), a = make.matrix(rows, columns);
  const auto da = make.matrix(rows, columns), du = make.matrix(rows, 2 * columns);
  return {[=] { forward(u, a); },
          [=] {
            forward(u, a);
            backward(u, da, du);
          }};
}

/// What is left of a bias or a residual where products take them: next to nothing.
template <class Storage>
Work with_product(Maker<Storage>& make) {
  const Vector one = make.zeros(1);
  return [=] { kernels::fill(0.0f, one); };
}

/// Backward makes gelu's bias's gradient too: no other operator counts it. Of what products do
/// beside themselves nothing is left.
template <class Storage>
Passes gelu(Maker<Storage> make, std::int64_t rows, std::int64_t columns, bool exact) {
  const auto forward = exact ? kernels::gelu_erf_forward<Storage> : kernels::gelu_forward<Storage>;
  const auto backward =
      exact ? kernels::gelu_erf_backward<Storage> : kernels::gelu_backward<Storage>;
  const auto u = make.matrix(rows, columns), a = make.matrix(rows, columns);
  const auto da = make.matrix(rows, columns), du = make.matrix(rows, columns);
  const Vector db = make.zeros(columns);
  if (kernels::products_have_epilogues() && !exact)
    return {with_product(make), [=] { forward(u, {}, a); }};
  return {[=] { forward(u, {}, a); },
          [=] {
            forward(u, {}, a);
            backward(u, {}, da, du);
            if (!kernels::products_have_epilogues())
              kernels::bias_backward<Storage>(du, Write::accumulate, db);
          }};
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
Passes embedding(Maker<Storage> make, std::int64_t rows, std::int64_t columns, std::int64_t vocab,
                 const model::Config& model) {
  const ConstTokens tokens = make.tokens(rows, vocab);
  const auto table = make.matrix(vocab, columns);
  const auto d_table = make.wide_matrix(vocab, columns);
  const auto x = make.matrix(rows, columns);
  kernels::MatrixOf<Storage> positions;
  kernels::Matrix d_positions;
  if (!model.rotary()) {
    positions = make.matrix(model.seq_len, columns);
    d_positions = make.wide_matrix(model.seq_len, columns);
  }
  return {[=] { kernels::embedding_forward<Storage>(tokens, table, positions, x); },
          [=] { kernels::embedding_backward<Storage>(tokens, x, d_table, d_positions); }};
}

template <class Storage>
Passes cross_entropy(Maker<Storage> make, std::int64_t rows, std::int64_t vocab) {
  const auto logits = make.matrix(rows, vocab);
  const ConstTokens targets = make.tokens(rows, vocab);
  double* const loss = make.sum();
  return {[=] {
            kernels::cross_entropy<Storage>(logits, targets, 1.0f / float(rows), true,
                                            Write::replace, loss);
          },
          {}};
}

template <class Storage>
Work update(Maker<Storage> make, std::int64_t elements, const model::Config& model, bool on_host) {
  const Vector grad = make.wide_vector(elements), weight = make.wide_vector(elements);
  kernels::UpdatedElements all{.count = elements, .grad = grad.data(), .weight = weight.data()};
  for (std::size_t i = 0; i < model.optimizer->fields.size(); ++i) {
    const std::int64_t bytes = elements * model.optimizer->fields[i].bytes();
    all.state[i] = make.zeros(ceil_div(bytes, sizeof(float))).data();
  }
  const double* const squares = make.sum();
  if constexpr (!std::is_same_v<Storage, float>) all.rounded = make.vector(elements).data();
  const kernels::UpdateKernels kernels = kernels::update_kernels(model.optimizer->name);
  const kernels::Update step{.lr = 1e-3f,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8f,
                             .weight_decay = 0.1f,
                             .clip_norm = 1.0};
  return [=, kernel = on_host ? kernels.on_host : kernels.here] { kernel(step, squares, all); };
}

template <class Storage>
Passes passes_of(const Item& item, const model::Config& model, Operands& operands) {
  const Maker<Storage> make(operands);
  const std::vector<std::int64_t>& d = item.dims;
  switch (item.kind) {
    case OperatorKind::matmul: return matmul(make, d[0], d[1], d[2], kernels::Factors::stored);
    case OperatorKind::matmul_fp8: return matmul(make, d[0], d[1], d[2], kernels::Factors::fp8);
    case OperatorKind::attention: return attention(make, attention_shape(d, model));
    case OperatorKind::layer_norm: return layer_norm(make, d[0], d[1], float(model.norm_eps));
    case OperatorKind::rms_norm: return rms_norm(make, d[0], d[1], float(model.norm_eps));
    case OperatorKind::rope: return rope(make, d[0], d[1], model);
    case OperatorKind::gelu:
    case OperatorKind::gelu_erf: return gelu(make, d[0], d[1], item.kind == OperatorKind::gelu_erf);
    case OperatorKind::swiglu:
    case OperatorKind::geglu: return gated(make, d[0], d[1], item.kind == OperatorKind::geglu);
    case OperatorKind::pointwise: return pointwise(make, item.tokens, d[0] / item.tokens);
    case OperatorKind::embedding: return embedding(make, d[0], d[1], d[2], model);
    case OperatorKind::cross_entropy: return cross_entropy(make, d[0], d[1]);
    case OperatorKind::update: return {update(make, d[0], model, false), {}};
  }
  throw Error(Failure::bug, "operator kind {} cannot be measured", int(item.kind));
}

}  // namespace

Passes make_passes(const Item& item, const model::Config& model, Operands& operands) {
  return model::with_storage(
      model.precision, [&]<class Storage>() { return passes_of<Storage>(item, model, operands); });
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
