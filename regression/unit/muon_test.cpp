/// @file Steps of whole matrices, against plain loops in double precision.
#include "kernels/muon.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "reference/arrays.hpp"
#include "reference/formats.hpp"

namespace brume::kernels {
namespace {

template <class Storage>
class Muon : public ::testing::Test {};

using Formats = ::testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(Muon, Formats, reference::StorageName);

std::vector<float> draw(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// A matrix of doubles, by rows.
struct Plain {
  std::size_t rows, columns;
  std::vector<double> values = std::vector<double>(rows * columns, 0.0);

  double& operator()(std::size_t i, std::size_t j) { return values[i * columns + j]; }
  double operator()(std::size_t i, std::size_t j) const { return values[i * columns + j]; }
};

Plain product(const Plain& a, const Plain& b) {
  Plain c{a.rows, b.columns};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.columns; ++k)
      for (std::size_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

Plain transposed(const Plain& a) {
  Plain b{a.columns, a.rows};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.columns; ++j) b(j, i) = a(i, j);
  return b;
}

/// The iteration as Jordan published it.
Plain orthogonal(const std::vector<float>& d, std::size_t rows, std::size_t columns) {
  Plain x{rows, columns, {d.begin(), d.end()}};
  const bool turned = rows > columns;
  if (turned) x = transposed(x);
  double squares = 0.0;
  for (const double value : x.values) squares += value * value;
  for (double& value : x.values) value /= std::sqrt(squares) + 1e-7;
  for (int i = 0; i < 5; ++i) {
    const Plain a = product(x, transposed(x)), aa = product(a, a);
    Plain b = a;
    for (std::size_t k = 0; k < b.values.size(); ++k)
      b.values[k] = -4.7750 * a.values[k] + 2.0315 * aa.values[k];
    const Plain bx = product(b, x);
    for (std::size_t k = 0; k < x.values.size(); ++k)
      x.values[k] = 3.4445 * x.values[k] + bx.values[k];
  }
  return turned ? transposed(x) : x;
}

/// How two ranks cut a matrix.
enum class Cut { none, rows, columns };

/// The same by the kernels: the step of `lr` 1 without decay from weights of 0, from directions in
/// parts.
template <class Storage>
std::vector<float> stepped(const std::vector<float>& d, int rows, int columns, Cut cut) {
  const bool turned = rows > columns;
  const std::size_t m = std::size_t(std::min(rows, columns)),
                    n = std::size_t(std::max(rows, columns));
  std::vector<Storage> x(m * n), spare(m * n), gram(m * m), squared(m * m);
  const MatrixOf<Storage> of_x(x.data(), m, n);
  struct Held {
    MatrixPart place;
    int rows, columns;
    std::vector<float> values = {};
  };
  std::vector<Held> parts{{{}, rows, columns}};
  if (cut == Cut::rows) {
    const int first = (rows + 1) / 2;
    parts = {{{}, first, columns}, {{first, 0}, rows - first, columns}};
  } else if (cut == Cut::columns) {
    const int first = (columns + 1) / 2;
    parts = {{{}, rows, first}, {{0, first}, rows, columns - first}};
  }
  const auto squares = std::make_unique<double>(0.0);  // a device reads it
  for (const float value : d) *squares += double(value) * value;
  for (Held& part : parts) {
    for (int i = 0; i < part.rows; ++i)
      for (int j = 0; j < part.columns; ++j)
        part.values.push_back(
            d[std::size_t((part.place.first_row + i) * columns + part.place.first_column + j)]);
    normalize<Storage>(
        ConstMatrix(part.values.data(), std::size_t(part.rows), std::size_t(part.columns)),
        part.place, squares.get(), turned, of_x);
  }
  const MatrixOf<Storage> found = orthogonalize<Storage>(
      of_x, MatrixOf<Storage>(spare.data(), m, n), MatrixOf<Storage>(gram.data(), m, m),
      MatrixOf<Storage>(squared.data(), m, m), 5);
  std::vector<float> all(d.size(), 0.0f);
  for (const Held& part : parts) {
    // In two runs of elements, as of two shards.
    std::vector<float> weight(part.values.size(), 0.0f);
    const std::int64_t middle = std::ssize(weight) / 3;
    for (const auto& [first, end] :
         {std::pair(std::int64_t{0}, middle), {middle, std::ssize(weight)}})
      step_along<Storage>(1.0f, -1.0f, found, turned, part.place, part.columns, first,
                          {.count = end - first, .weight = weight.data() + first});
    for (int i = 0; i < part.rows; ++i)
      for (int j = 0; j < part.columns; ++j)
        all[std::size_t((part.place.first_row + i) * columns + part.place.first_column + j)] =
            weight[std::size_t(i * part.columns + j)];
  }
  return all;
}

template <class Storage>
constexpr double bound = std::is_same_v<Storage, float>      ? 2e-5
                         : std::is_same_v<Storage, bfloat16> ? 0.08
                                                             : 0.01;

TYPED_TEST(Muon, StepsAreOrthogonalAsPublished) {
  for (const auto& [rows, columns] :
       {std::pair(24, 24), {16, 40}, {40, 16}, {1, 8}, {7, 3}, {64, 33}})
    for (const Cut cut : {Cut::none, Cut::rows, Cut::columns}) {
      const std::vector<float> d = draw(std::size_t(rows * columns), unsigned(rows + columns));
      const Plain expected = orthogonal(d, std::size_t(rows), std::size_t(columns));
      const std::vector<float> found = stepped<TypeParam>(d, rows, columns, cut);
      double most = 0.0;
      for (std::size_t i = 0; i < found.size(); ++i)
        most = std::max(most, std::abs(expected.values[i] - found[i]));
      EXPECT_LT(most, bound<TypeParam>) << rows << " x " << columns << ", cut " << int(cut);
    }
}

TYPED_TEST(Muon, NoDirectionIsNoStep) {
  for (const float value : stepped<TypeParam>(std::vector<float>(48, 0.0f), 6, 8, Cut::none))
    EXPECT_EQ(value, 0.0f);
}

TYPED_TEST(Muon, WeightsDecayAndAreRounded) {
  const std::vector<TypeParam> x(12, TypeParam(0.5f));
  std::vector<float> weight = draw(12, 5);
  const std::vector<float> before = weight;
  std::vector<TypeParam> rounded(12);
  UpdatedElements elements{.count = 12, .weight = weight.data()};
  if constexpr (Narrow<TypeParam>) elements.rounded = rounded.data();
  step_along<TypeParam>(0.9f, 0.25f, ConstMatrixOf<TypeParam>(x.data(), 3, 4), false, {}, 4, 0,
                        elements);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_FLOAT_EQ(weight[i], 0.9f * before[i] - 0.125f);
    if constexpr (Narrow<TypeParam>) {
      EXPECT_EQ(float(rounded[i]), float(TypeParam(weight[i])));
    }
  }
}

TEST(Momentum, MakesTheDirectionOfAStep) {
  const std::vector<float> grad = draw(5000, 1), old = draw(5000, 2);
  const auto squares = std::make_unique<double>(64.0);
  for (const bool nesterov : {true, false}) {
    std::vector<float> m = old, d = grad;  // in the gradient's place
    Update update{};
    update.clip_norm = update.loss_scale = 2.0;
    update.momentum = 0.9;
    update.nesterov = nesterov;
    momentum_direction(update, squares.get(),
                       {.count = std::ssize(d), .grad = d.data(), .state = {m.data()}},
                       Moments::fp32, d.data());
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const double g = grad[i] * 2.0 / (8.0 / 2.0 + 1e-6) / 2.0, moment = 0.9 * old[i] + 0.1 * g;
      ASSERT_NEAR(m[i], moment, 1e-6);
      ASSERT_NEAR(d[i], nesterov ? 0.9 * moment + 0.1 * g : moment, 1e-6);
    }
  }
}

}  // namespace
}  // namespace brume::kernels
