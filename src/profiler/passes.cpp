#include "passes.hpp"

#include <memory>
#include <vector>

#include "base/error.hpp"
#include "kernels/adamw.hpp"
#include "kernels/attention.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"

namespace brume::profiler {
namespace {

using kernels::ConstTokens;
using kernels::Matrix;
using kernels::Vector;
using kernels::Write;
using model::OperatorKind;

Vector view(std::span<float> values) { return Vector(values.data(), values.size()); }

/// New operands of one operator. Loops must leave them finite and away from zero, or later calls
/// would be timed on unusual numbers: so no gradient is written over what it is made from.
class Maker {
 public:
  explicit Maker(Operands& operands) : operands_(operands) { operands.restart(); }

  Vector vector(std::int64_t elements) { return view(operands_.floats(elements)); }
  Vector zeros(std::int64_t elements) { return view(operands_.zeros(elements)); }
  Matrix matrix(std::int64_t rows, std::int64_t columns) {
    return Matrix(operands_.floats(rows * columns).data(), std::size_t(rows), std::size_t(columns));
  }
  ConstTokens tokens(std::int64_t count, std::int64_t below) {
    return ConstTokens(operands_.tokens(count, below).data(), std::size_t(count));
  }

 private:
  Operands& operands_;
};

/// Backward is both gradients; weights' gradients add up over microbatches.
Passes matmul(Maker make, std::int64_t m, std::int64_t n, std::int64_t k) {
  const Matrix x = make.matrix(m, k), w = make.matrix(n, k), y = make.matrix(m, n);
  const Matrix dx = make.matrix(m, k), dw = make.matrix(n, k);
  return {[=] { kernels::linear_forward(x, w, Write::replace, y); },
          [=] {
            kernels::linear_backward_input(y, w, Write::replace, dx);
            kernels::linear_backward_weight(y, x, Write::accumulate, dw);
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

Passes attention(Maker make, const kernels::AttentionShape& shape) {
  const std::int64_t rows = std::int64_t(shape.batch) * shape.seq_len;
  const std::int64_t columns = std::int64_t(shape.heads) * shape.head_dim;
  const Matrix qkv = make.matrix(rows, shape.width()), o = make.matrix(rows, columns);
  const Matrix d_o = make.matrix(rows, columns), dqkv = make.matrix(rows, shape.width());
  const Vector lse = make.vector(rows * shape.heads);
  return {[=] { kernels::attention_forward(shape, qkv, o, lse); },
          [=] { kernels::attention_backward(shape, qkv, o, lse, d_o, dqkv); }};
}

/// Backward makes the normed input again, as a segment's backward does.
Passes layer_norm(Maker make, std::int64_t rows, std::int64_t columns, float eps) {
  const Matrix x = make.matrix(rows, columns), y = make.matrix(rows, columns);
  const Matrix dx = make.matrix(rows, columns);
  const Vector gain = make.vector(columns), bias = make.vector(columns);
  const Vector mean = make.vector(rows), rstd = make.vector(rows);
  const Vector dgain = make.zeros(columns), dbias = make.zeros(columns);
  return {[=] { kernels::layer_norm_forward(x, gain, bias, eps, y, mean, rstd); },
          [=] {
            kernels::layer_norm_apply(x, gain, bias, mean, rstd, y);
            kernels::layer_norm_backward(y, x, gain, mean, rstd, dx, dx, Write::accumulate, dgain,
                                         dbias);
          }};
}

Passes rms_norm(Maker make, std::int64_t rows, std::int64_t columns, float eps) {
  const Matrix x = make.matrix(rows, columns), y = make.matrix(rows, columns);
  const Matrix dx = make.matrix(rows, columns);
  const Vector gain = make.vector(columns), rstd = make.vector(rows), dgain = make.zeros(columns);
  return {[=] { kernels::rms_norm_forward(x, gain, eps, y, rstd); },
          [=] {
            kernels::rms_norm_apply(x, gain, rstd, y);
            kernels::rms_norm_backward(y, x, gain, rstd, dx, dx, Write::accumulate, dgain);
          }};
}

Passes rope(Maker make, std::int64_t rows, std::int64_t heads, const model::Config& model) {
  const auto table = std::make_shared<std::vector<float>>(
      kernels::rope_table(model::rope_frequencies(model), model.seq_len));
  const Matrix x = make.matrix(rows, heads * model.head_dim());
  const auto angles = [table, columns = std::size_t(model.head_dim())] {
    return kernels::ConstMatrix(table->data(), table->size() / columns, columns);
  };
  return {[=] { kernels::rope_forward(angles(), x); },
          [=] { kernels::rope_backward(angles(), x); }};
}

/// Backward makes the output again, as a segment's backward does; here and in gelu.
Passes swiglu(Maker make, std::int64_t rows, std::int64_t columns) {
  const Matrix u = make.matrix(rows, 2 * columns), a = make.matrix(rows, columns);
  const Matrix da = make.matrix(rows, columns), du = make.matrix(rows, 2 * columns);
  return {[=] { kernels::swiglu_forward(u, a); },
          [=] {
            kernels::swiglu_forward(u, a);
            kernels::swiglu_backward(u, da, du);
          }};
}

/// Backward makes gelu's bias's gradient too: no other operator counts it.
Passes gelu(Maker make, std::int64_t rows, std::int64_t columns, bool exact) {
  const auto forward = exact ? kernels::gelu_erf_forward<float> : kernels::gelu_forward<float>;
  const auto backward = exact ? kernels::gelu_erf_backward<float> : kernels::gelu_backward<float>;
  const Matrix u = make.matrix(rows, columns), a = make.matrix(rows, columns);
  const Matrix da = make.matrix(rows, columns), du = make.matrix(rows, columns);
  const Vector bias = make.vector(columns), db = make.zeros(columns);
  return {[=] { forward(u, bias, a); },
          [=] {
            forward(u, bias, a);
            backward(u, bias, da, du);
            kernels::bias_backward(du, Write::accumulate, db);
          }};
}

Passes pointwise(Maker make, std::int64_t rows, std::int64_t columns) {
  const Matrix x = make.matrix(rows, columns), y = make.matrix(rows, columns);
  const Vector bias = make.vector(columns), db = make.zeros(columns);
  return {[=] { kernels::add_bias(x, bias, y); },
          [=] { kernels::bias_backward(y, Write::accumulate, db); }};
}

Passes embedding(Maker make, std::int64_t rows, std::int64_t columns, std::int64_t vocab,
                 const model::Config& model) {
  const ConstTokens tokens = make.tokens(rows, vocab);
  const Matrix table = make.matrix(vocab, columns), d_table = make.matrix(vocab, columns);
  const Matrix x = make.matrix(rows, columns);
  Matrix positions, d_positions;
  if (!model.rotary()) {
    positions = make.matrix(model.seq_len, columns);
    d_positions = make.matrix(model.seq_len, columns);
  }
  return {[=] { kernels::embedding_forward(tokens, table, positions, x); },
          [=] { kernels::embedding_backward(tokens, x, d_table, d_positions); }};
}

Passes cross_entropy(Maker make, std::int64_t rows, std::int64_t vocab) {
  const Matrix logits = make.matrix(rows, vocab);
  const ConstTokens targets = make.tokens(rows, vocab);
  return {[=] { kernels::cross_entropy(logits, targets, 1.0f / float(rows), true); }, {}};
}

Passes adamw(Maker make, std::int64_t elements) {
  const Vector grad = make.vector(elements), weight = make.vector(elements);
  const Vector m = make.zeros(elements), v = make.zeros(elements);
  const kernels::AdamW step{1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 0.5f};
  return {[=] { kernels::adamw_step(step, grad, weight, m, v); }, {}};
}

}  // namespace

Passes make_passes(const Item& item, const model::Config& model, Operands& operands) {
  const Maker make(operands);
  const std::vector<std::int64_t>& d = item.dims;
  switch (item.kind) {
    case OperatorKind::matmul: return matmul(make, d[0], d[1], d[2]);
    case OperatorKind::attention: return attention(make, attention_shape(d, model));
    case OperatorKind::layer_norm: return layer_norm(make, d[0], d[1], float(model.norm_eps));
    case OperatorKind::rms_norm: return rms_norm(make, d[0], d[1], float(model.norm_eps));
    case OperatorKind::rope: return rope(make, d[0], d[1], model);
    case OperatorKind::gelu:
    case OperatorKind::gelu_erf: return gelu(make, d[0], d[1], item.kind == OperatorKind::gelu_erf);
    case OperatorKind::swiglu: return swiglu(make, d[0], d[1]);
    case OperatorKind::pointwise: return pointwise(make, item.tokens, d[0] / item.tokens);
    case OperatorKind::embedding: return embedding(make, d[0], d[1], d[2], model);
    case OperatorKind::cross_entropy: return cross_entropy(make, d[0], d[1]);
    case OperatorKind::adamw: return adamw(make, d[0]);
  }
  throw Error(Failure::bug, "operator kind {} cannot be measured", int(item.kind));
}

Work make_sum(std::int64_t elements, Operands& operands) {
  Maker make(operands);
  const Vector x = make.zeros(elements), y = make.zeros(elements);
  return [=] { kernels::add(x, y); };
}

}  // namespace brume::profiler
