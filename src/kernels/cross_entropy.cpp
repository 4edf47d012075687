#include "kernels/cross_entropy.hpp"

#include <cmath>
#include <type_traits>

#include "kernels/host.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {
namespace {

/// sum_v exp(row[v] - top); `write(v, e)` sees each exponential. fp32 within pieces, double across
/// them.
template <class Storage, class See>
double sum_exponentials(const Storage* row, int vocab, float top, See see) {
  constexpr int piece = 4096;
  double sum = 0.0;
  for (int first = 0; first < vocab; first += piece)
    sum += sum_terms(std::min(piece, vocab - first), [=](int i) {
      const float e = vector_exp(row[first + i] - top);
      see(first + i, e);
      return e;
    });
  return sum;
}

/// Loss of one token; the row becomes its gradient when asked.
template <class Storage>
double token_loss(Storage* row, int vocab, int target, float scale, bool with_gradient) {
  if (target < 0) {
    if (with_gradient) std::fill_n(row, vocab, Storage(0.0f));
    return 0.0;
  }
  const float top = largest(row, vocab);
  const double margin = double(row[target]) - double(top);
  if (!with_gradient)
    return std::log(sum_exponentials(row, vocab, top, [](int, float) {})) - margin;

  // In fp32 the exponentials wait in the row for their sum, so each is computed once; a narrower
  // format would round them twice.
  constexpr bool waits = std::is_same_v<Storage, float>;
  const double sum = sum_exponentials(row, vocab, top, [=](int v, float e) {
    if constexpr (waits) row[v] = e;
  });
  const float factor = float(scale / sum);
  const float at_target =
      factor * (waits ? float(row[target]) : vector_exp(row[target] - top)) - scale;
#pragma omp simd
  for (int v = 0; v < vocab; ++v)
    row[v] = factor * (waits ? float(row[v]) : vector_exp(row[v] - top));
  row[target] = at_target;
  return std::log(sum) - margin;
}

}  // namespace

template <class Storage>
double cross_entropy(MatrixOf<Storage> logits, ConstTokens targets, float scale,
                     bool with_gradient) {
  promise(targets.extent(0) == logits.extent(0), "cross_entropy",
          "logits [N, V] and targets [N] must fit");
  const int vocab = logits.extent_int(1);
  for (std::size_t n = 0; n < targets.extent(0); ++n)
    require(targets(n) < vocab, Failure::bug,
            "cross_entropy: target {} at {} lies outside {} logits", targets(n), n, vocab);
  const double sum = ordered_sum("cross_entropy", logits.extent(0), [=](std::int64_t n) {
    return token_loss(&logits(n, 0), vocab, targets(n), scale, with_gradient);
  });
  return scale * sum;
}

template double cross_entropy<float>(MatrixOf<float>, ConstTokens, float, bool);
template double cross_entropy<bfloat16>(MatrixOf<bfloat16>, ConstTokens, float, bool);

}  // namespace brume::kernels
