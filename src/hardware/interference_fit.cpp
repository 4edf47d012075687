#include "hardware/interference_fit.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"

namespace brume::hardware {
namespace {

/// A task that seems to stand still beside another is noise beyond this.
constexpr double most_added = 20.0;

constexpr int num_coefficients = num_resources * num_resources;
using Vector = std::array<double, num_coefficients>;  // a, row by row
using Matrix = std::array<Vector, num_coefficients>;
using Errors = std::array<double, num_resources + 1>;

double& coefficient(Interference& model, int k) {
  return model.added[k / num_resources][k % num_resources];
}

/// Whether both resources of coefficient k are there.
bool concerns(const CoRun& co_run, int k) {
  const int q = k / num_resources, j = k % num_resources;
  return q != j && co_run.alone_s[q] > 0.0 && co_run.alone_s[j] > 0.0;
}

void check(const CoRun& co_run) {
  int present = 0;
  for (int q = 0; q < num_resources; ++q) {
    present += co_run.alone_s[q] > 0.0;
    require(co_run.alone_s[q] >= 0.0 && co_run.done_s[q] >= 0.0, Failure::bug,
            "resource {} of a co-run has a negative time", q);
  }
  require(present >= 2, Failure::bug, "a co-run needs two resources, found {}", present);
  require(co_run.together_s > 0.0, Failure::bug, "a co-run has no time until all were done");
}

/// Relative errors: of the time until all are done, then of each resource's; 0 where not known.
Errors errors(const Interference& model, const CoRun& co_run) {
  const auto done_s = model.done_s(co_run.alone_s);
  Errors errors{std::ranges::max(done_s) / co_run.together_s - 1.0};
  for (int q = 0; q < num_resources; ++q)
    if (co_run.alone_s[q] > 0.0 && co_run.done_s[q] > 0.0)
      errors[std::size_t(q) + 1] = done_s[q] / co_run.done_s[q] - 1.0;
  return errors;
}

double loss(const Interference& model, std::span<const CoRun> co_runs) {
  double sum = 0.0;
  for (const CoRun& co_run : co_runs)
    for (double error : errors(model, co_run)) sum += error * error;
  return sum;
}

/// The loss near a model, with J = d errors / d a: gradient J^T e and curvature J^T J.
struct Slope {
  Vector gradient{};
  Matrix curvature{};
};

/// Adds one co-run, by forward differences.
void add(Slope& slope, Interference& model, const CoRun& co_run) {
  constexpr double step = 1e-6;
  const Errors here = errors(model, co_run);
  std::array<Errors, num_coefficients> rows{};
  for (int k = 0; k < num_coefficients; ++k) {
    if (!concerns(co_run, k)) continue;
    const double before = std::exchange(coefficient(model, k), coefficient(model, k) + step);
    const Errors there = errors(model, co_run);
    coefficient(model, k) = before;
    for (std::size_t e = 0; e < here.size(); ++e) {
      rows[k][e] = (there[e] - here[e]) / step;
      slope.gradient[k] += rows[k][e] * here[e];
    }
    for (int l = 0; l <= k; ++l)
      for (std::size_t e = 0; e < here.size(); ++e)
        slope.curvature[k][l] += rows[k][e] * rows[l][e];
  }
}

/// Coefficients at a bound that the gradient pushes further out stay there.
void hold_at_bounds(Slope& slope, Interference model) {
  for (int k = 0; k < num_coefficients; ++k) {
    const double a = coefficient(model, k);
    const bool held =
        (a <= 0.0 && slope.gradient[k] >= 0.0) || (a >= most_added && slope.gradient[k] <= 0.0);
    if (!held) continue;
    slope.gradient[k] = 0.0;
    for (int l = 0; l < num_coefficients; ++l)
      slope.curvature[std::max(k, l)][std::min(k, l)] = 0.0;
  }
}

/// Solves (J^T J + damping (diagonal + small)) x = -J^T e by Cholesky factors, lower triangle only.
Vector solve(const Slope& slope, double damping) {
  Matrix l = slope.curvature;
  Vector x{};
  for (int i = 0; i < num_coefficients; ++i) {
    l[i][i] += damping * l[i][i] + 1e-12;  // a coefficient without any effect stays where it is
    for (int j = 0; j <= i; ++j) {
      for (int k = 0; k < j; ++k) l[i][j] -= l[i][k] * l[j][k];
      l[i][j] = i == j ? std::sqrt(std::max(l[i][i], 1e-15)) : l[i][j] / l[j][j];
    }
    x[i] = -slope.gradient[i];
    for (int k = 0; k < i; ++k) x[i] -= l[i][k] * x[k];
    x[i] /= l[i][i];
  }
  for (int i = num_coefficients - 1; i >= 0; --i) {
    for (int k = i + 1; k < num_coefficients; ++k) x[i] -= l[k][i] * x[k];
    x[i] /= l[i][i];
  }
  return x;
}

Interference moved(Interference model, const Vector& by) {
  for (int k = 0; k < num_coefficients; ++k)
    coefficient(model, k) = std::clamp(coefficient(model, k) + by[k], 0.0, most_added);
  return model;
}

/// Goes downhill until no step helps.
Interference descend(Interference model, std::span<const CoRun> co_runs) {
  constexpr int most_slopes = 100;
  double least = loss(model, co_runs);
  double damping = 1e-3;
  for (int i = 0; i < most_slopes; ++i) {
    Slope slope;
    for (const CoRun& co_run : co_runs) add(slope, model, co_run);
    hold_at_bounds(slope, model);
    const double before = least;
    for (; damping < 1e8; damping *= 4.0) {
      const Interference next = moved(model, solve(slope, damping));
      const double now = loss(next, co_runs);
      if (!(now < least)) continue;
      model = next;
      least = now;
      damping = std::max(1e-12, damping * 0.1);
      break;
    }
    if (!(least < before * (1.0 - 1e-9))) break;
  }
  return model;
}

}  // namespace

Interference fit_interference(std::span<const CoRun> co_runs) {
  std::ranges::for_each(co_runs, check);
  Interference model;
  // Taking turns is the start: at 0, if one of a pair does not slow down, the other has no slope.
  for (int k = 0; k < num_coefficients; ++k)
    if (std::ranges::any_of(co_runs, [k](const CoRun& c) { return concerns(c, k); }))
      coefficient(model, k) = 1.0;
  return descend(model, co_runs);
}

}  // namespace brume::hardware
