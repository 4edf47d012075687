#include "kernels/cross_entropy.hpp"

#include <cmath>

#include "kernels/host.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {
namespace {

/// sum_v exp(row[v] - top); `write(v, e)` sees each exponential. fp32 within pieces, double across
/// them.
template <class See>
double sum_exponentials(const float* row, int vocab, float top, See see) {
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
double token_loss(float* row, int vocab, int target, float scale, bool with_gradient) {
  if (target < 0) {
    if (with_gradient) std::fill_n(row, vocab, 0.0f);
    return 0.0;
  }
  const float top = largest(row, vocab);
  const double margin = double(row[target]) - double(top);
  if (!with_gradient)
    return std::log(sum_exponentials(row, vocab, top, [](int, float) {})) - margin;

  // The exponentials wait in the row for their sum, so each is computed once.
  const double sum = sum_exponentials(row, vocab, top, [=](int v, float e) { row[v] = e; });
  const float factor = float(scale / sum);
#pragma omp simd
  for (int v = 0; v < vocab; ++v) row[v] *= factor;
  row[target] -= scale;
  return std::log(sum) - margin;
}

}  // namespace

double cross_entropy(Matrix logits, ConstTokens targets, float scale, bool with_gradient) {
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

}  // namespace brume::kernels
