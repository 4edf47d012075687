#include "kernels/cross_entropy.hpp"

#include <cmath>

#include "kernels/portable/launch.hpp"
#include "kernels/soft_cap.hpp"

namespace brume::kernels {
namespace {

// The terms of the sums stand in the workspace while they are made: of tokens' losses and behind
// these of their misses.

/// A token's numbers over all parts.
struct Combined {
  double top, sum, target;
};

KOKKOS_INLINE_FUNCTION Combined combine(const ConstMatrix& statistics, std::int64_t n) {
  const auto of = [&](int part, int k) { return double(statistics(part, num_statistics * n + k)); };
  const int parts = statistics.extent_int(0);
  Combined all{of(0, 0), 0.0, 0.0};
  for (int p = 1; p < parts; ++p) all.top = of(p, 0) > all.top ? of(p, 0) : all.top;
  for (int p = 0; p < parts; ++p) {
    all.sum += of(p, 1) * std::exp(of(p, 0) - all.top);
    all.target += of(p, 2);
  }
  return all;
}

/// sum_v exp(logits[n,v] - top), of capped logits
template <class Storage>
KOKKOS_INLINE_FUNCTION double sum_exponentials(const Team& team, const MatrixOf<Storage>& logits,
                                               float top, float cap) {
  const int n = team.league_rank();
  return sum_along<double>(team, logits.extent_int(1), [&](int v) {
    return double(vector_exp(soft_cap(logits(n, v), cap) - top));
  });
}

/// logits[n,v] = factor exp(logits[n,v] - top) - [v = target] scale
template <class Storage>
KOKKOS_INLINE_FUNCTION void row_gradient(const Team& team, const MatrixOf<Storage>& logits,
                                         int target, float top, float factor, float scale,
                                         float cap) {
  const int n = team.league_rank();
  along(
      team, logits.extent_int(1), [&](int v) { return soft_cap(logits(n, v), cap); },
      [&](int v, float logit) {
        const float grad = factor * vector_exp(logit - top) - (v == target ? scale : 0.0f);
        logits(n, v) = cap > 0.0f ? grad * soft_cap_slope(logit, cap) : grad;
      });
}

template <class Storage>
KOKKOS_INLINE_FUNCTION void clear_row(const Team& team, const MatrixOf<Storage>& logits) {
  const int n = team.league_rank();
  along(team, logits.extent_int(1), [&](int v) { logits(n, v) = 0.0f; });
}

template <class Storage>
KOKKOS_INLINE_FUNCTION float largest_logit(const Team& team, const MatrixOf<Storage>& logits,
                                           float cap) {
  const int n = team.league_rank();
  return largest_along(team, logits.extent_int(1),
                       [&](int v) { return soft_cap(logits(n, v), cap); });
}

/// @param margin  of the target's logit over the largest one
KOKKOS_INLINE_FUNCTION void write_terms(const Team& team, double* losses, double* misses,
                                        double log_sum, double margin) {
  Kokkos::single(Kokkos::PerTeam(team), [&]() {
    losses[team.league_rank()] = log_sum - margin;
    misses[team.league_rank()] = margin < 0.0 ? 1.0 : 0.0;
  });
}

void store_sums(const char* name, const double* terms, std::int64_t count, float scale, Write write,
                double* loss, double* misses) {
  store_sum(name, terms, count, scale, write, loss);
  if (misses) store_sum(name, terms + count, count, 1.0, write, misses);
}

}  // namespace

template <class Storage>
void cross_entropy(MatrixOf<Storage> logits, ConstTokens targets, float scale, bool with_gradient,
                   Write write, double* loss, float cap, double* misses) {
  promise(is_column_of(targets, logits), "cross_entropy", "logits [N, V] and targets [N] must fit");
  const auto count = std::int64_t(logits.extent(0));
  double* const terms = workspace_of<double>(2 * count);
  for_each_row(
      "cross_entropy", logits.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), vocab = logits.extent_int(1), target = targets(n);
        if (target < 0) {
          if (with_gradient) clear_row<Storage>(team, logits);
          return write_terms(team, terms, terms + count, 0.0, 0.0);
        }
        const float top = largest_logit<Storage>(team, logits, cap);
        const double margin =
            target < vocab ? double(soft_cap(logits(n, target), cap)) - double(top) : NAN;
        // All have read before it is known: then the row may change.
        const double sum = sum_exponentials<Storage>(team, logits, top, cap);
        write_terms(team, terms, terms + count, std::log(sum), margin);
        if (with_gradient)
          row_gradient<Storage>(team, logits, target, top, float(scale / sum), scale, cap);
      });
  store_sums("cross_entropy", terms, count, scale, write, loss, misses);
}

template <class Storage>
void cross_entropy_part(MatrixOf<Storage> logits, ConstTokens targets, VocabularyPart part,
                        Matrix statistics, float cap) {
  promise_part("cross_entropy_part", logits, targets, statistics);
  for_each_row(
      "cross_entropy_part", logits.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), target = targets(n) - part.first;
        const bool here = target >= 0 && target < logits.extent_int(1);
        const float top = largest_logit<Storage>(team, logits, cap);
        const float sum = float(sum_exponentials<Storage>(team, logits, top, cap));
        Kokkos::single(Kokkos::PerTeam(team), [&]() {
          statistics(n, 0) = top;
          statistics(n, 1) = sum;
          statistics(n, 2) = here ? soft_cap(logits(n, target), cap) : 0.0f;
        });
      });
}

template <class Storage>
void cross_entropy_combine(MatrixOf<Storage> logits, ConstTokens targets, VocabularyPart part,
                           ConstMatrix statistics, int index, float scale, Write write,
                           double* loss, float cap, double* misses) {
  promise_combine("cross_entropy_combine", logits, targets, statistics, index);
  const auto count = std::int64_t(logits.extent(0));
  double* const terms = workspace_of<double>(2 * count);
  for_each_row(
      "cross_entropy_combine", logits.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), target = targets(n);
        if (target < 0) {
          clear_row<Storage>(team, logits);
          return write_terms(team, terms, terms + count, 0.0, 0.0);
        }
        const Combined all = combine(statistics, n);
        write_terms(team, terms, terms + count, std::log(all.sum),
                    target < part.vocab ? all.target - all.top : NAN);
        const float top = statistics(index, num_statistics * n);
        const float factor = float(scale * std::exp(double(top) - all.top) / all.sum);
        row_gradient<Storage>(team, logits, target - part.first, top, factor, scale, cap);
      });
  store_sums("cross_entropy_combine", terms, count, scale, write, loss, misses);
}

}  // namespace brume::kernels

#include "kernels/instances/cross_entropy.hpp"
