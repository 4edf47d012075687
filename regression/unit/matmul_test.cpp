#include "kernels/matmul.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "kernels/pointwise.hpp"
#include "reference/matmul.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

struct Shape {
  int N, I, O, gap;
};

// Odd sizes, one row, one column, rows further apart than they are long, and a layer's usual sizes.
const Shape shapes[] = {{1, 1, 1, 0},    {3, 5, 7, 0},     {17, 33, 65, 3},   {64, 192, 192, 0},
                        {100, 48, 1, 1}, {1, 300, 257, 0}, {129, 64, 191, 16}};
constexpr double tolerance = 2e-6;

/// Calls the kernel with both modes and compares with the twin's product.
template <class Kernel>
void expect_product(const reference::Doubles& expected, int rows, int cols, int gap,
                    Kernel kernel) {
  Array replaced(rows, cols, gap);  // NaN everywhere: replacing must not read
  kernel(Write::replace, replaced.matrix());
  EXPECT_LT(reference::relative_error(replaced.values(), expected), tolerance);
  EXPECT_TRUE(replaced.gaps_untouched());

  Array added = random_array(rows, cols, 9, 1.0f, gap);
  const reference::Doubles before = added.doubles();
  kernel(Write::accumulate, added.matrix());
  EXPECT_LT(reference::relative_error(added.values(), reference::sum(before, expected)), tolerance);
  EXPECT_TRUE(added.gaps_untouched());
}

TEST(Matmul, EqualsItsTwin) {
  for (const auto& [N, I, O, gap] : shapes) {
    SCOPED_TRACE(testing::Message() << N << " x " << I << " x " << O);
    Array x = random_array(N, I, 1, 1.0f, gap), w = random_array(O, I, 2, 1.0f, gap),
          dy = random_array(N, O, 3, 1.0f, gap);
    expect_product(
        reference::linear_forward(x.doubles(), w.doubles(), N, I, O), N, O, gap,
        [&](Write write, Matrix y) { linear_forward(x.matrix(), w.matrix(), write, y); });
    expect_product(
        reference::linear_backward_input(dy.doubles(), w.doubles(), N, I, O), N, I, gap,
        [&](Write write, Matrix dx) { linear_backward_input(dy.matrix(), w.matrix(), write, dx); });
    expect_product(reference::linear_backward_weight(dy.doubles(), x.doubles(), N, I, O), O, I, gap,
                   [&](Write write, Matrix dw) {
                     linear_backward_weight(dy.matrix(), x.matrix(), write, dw);
                   });
  }
}

TEST(Matmul, GradientsAreTheSlopesOfTheTwin) {
  constexpr int N = 4, I = 5, O = 3;
  Array x = random_array(N, I, 1), w = random_array(O, I, 2), dy = random_array(N, O, 3);
  Array dx(N, I), dw(O, I);
  linear_backward_input(dy.matrix(), w.matrix(), Write::replace, dx.matrix());
  linear_backward_weight(dy.matrix(), x.matrix(), Write::replace, dw.matrix());
  const auto loss = [&](const reference::Doubles& at_x, const reference::Doubles& at_w) {
    return reference::dot(dy.doubles(), reference::linear_forward(at_x, at_w, N, I, O));
  };
  const auto slope_x =
      reference::slope_of([&](auto& at) { return loss(at, w.doubles()); }, x.doubles());
  const auto slope_w =
      reference::slope_of([&](auto& at) { return loss(x.doubles(), at); }, w.doubles());
  EXPECT_LT(reference::relative_error(dx.values(), slope_x), 1e-6);
  EXPECT_LT(reference::relative_error(dw.values(), slope_w), 1e-6);
}

// Numbers of rows as experts have them: more than a thread keeps primitives for.
TEST(Matmul, EqualsItsTwinForAnyNumberOfRows) {
  constexpr int most = 1100, I = 3, O = 2;
  Array x = random_array(most, I, 1), w = random_array(O, I, 2);
  const auto all = reference::linear_forward(x.doubles(), w.doubles(), most, I, O);
  for (int rows = 1; rows <= most; ++rows) {
    Array y(rows, O);
    linear_forward(Matrix(x.matrix().data(), std::size_t(rows), I), w.matrix(), Write::replace,
                   y.matrix());
    ASSERT_LT(reference::relative_error(y.values(), {all.begin(), all.begin() + rows * O}),
              tolerance)
        << rows;
  }
}

/// With and without a bias and a residual, which may be the result itself.
TEST(Matmul, AffineLayersEqualTheirTwin) {
  for (const auto& [N, I, O, gap] : shapes) {
    SCOPED_TRACE(testing::Message() << N << " x " << I << " x " << O);
    Array x = random_array(N, I, 1, 1.0f, gap), w = random_array(O, I, 2, 1.0f, gap),
          bias = random_array(1, O, 3), residual = random_array(N, O, 4, 1.0f, gap);
    const reference::Doubles product = reference::linear_forward(x.doubles(), w.doubles(), N, I, O);
    for (const bool has_bias : {false, true})
      for (const bool has_residual : {false, true}) {
        reference::Doubles expected = product;
        for (int n = 0; n < N; ++n)
          for (int o = 0; o < O; ++o)
            expected[std::size_t(n * O + o)] +=
                (has_bias ? bias(0, o) : 0.0) + (has_residual ? residual(n, o) : 0.0);
        Array y(N, O, gap), in_place = residual;
        affine_forward(x.matrix(), w.matrix(), has_bias ? bias.vector() : Vector(),
                       has_residual ? residual.matrix() : Matrix(), y.matrix());
        EXPECT_LT(reference::relative_error(y.values(), expected), tolerance);
        EXPECT_TRUE(y.gaps_untouched());
        if (!has_residual) continue;
        affine_forward(x.matrix(), w.matrix(), has_bias ? bias.vector() : Vector(),
                       in_place.matrix(), in_place.matrix());
        EXPECT_TRUE(reference::same_bits(in_place.values(), y.values()));
      }
  }
}

TEST(Matmul, AffineGradientsEqualTheirTwin) {
  for (const auto& [N, I, O, gap] : shapes) {
    SCOPED_TRACE(testing::Message() << N << " x " << I << " x " << O);
    Array x = random_array(N, I, 1, 1.0f, gap), dy = random_array(N, O, 3, 1.0f, gap);
    reference::Doubles bias(std::size_t(O), 0.0);
    for (int n = 0; n < N; ++n)
      for (int o = 0; o < O; ++o) bias[std::size_t(o)] += dy(n, o);
    Array db(1, O);
    expect_product(reference::linear_backward_weight(dy.doubles(), x.doubles(), N, I, O), O, I, gap,
                   [&](Write write, Matrix dw) {
                     const bool adds = write == Write::accumulate;
                     const reference::Doubles before = db.doubles();
                     affine_backward_parameters(dy.matrix(), x.matrix(), write, dw, db.vector());
                     EXPECT_LT(reference::relative_error(
                                   db.values(), adds ? reference::sum(before, bias) : bias),
                               tolerance * 10);
                   });
  }
}

/// gelu between two layers is what it is alone, in both directions.
TEST(Matmul, GeluGoesWithProducts) {
  for (const auto& [N, I, F, gap] : shapes) {
    SCOPED_TRACE(testing::Message() << N << " x " << I << " x " << F);
    constexpr int O = 5;
    Array x = random_array(N, I, 1, 0.3f, gap), w = random_array(F, I, 2, 1.0f, gap),
          bias = random_array(1, F, 3), dy = random_array(N, O, 4, 1.0f, gap),
          behind = random_array(O, F, 5, 1.0f, gap);
    Array u(N, F, gap), a(N, F, gap), du(N, F, gap), plain_u(N, F), plain_a(N, F), plain_du(N, F);
    gelu_affine_forward(x.matrix(), w.matrix(), bias.vector(), u.matrix(), a.matrix());
    gelu_affine_backward(dy.matrix(), behind.matrix(), u.matrix(), du.matrix());
    linear_forward(x.matrix(), w.matrix(), Write::replace, plain_u.matrix());
    add_bias(plain_u.matrix(), bias.vector(), plain_u.matrix());
    gelu_forward(plain_u.matrix(), {}, plain_a.matrix());
    linear_backward_input(dy.matrix(), behind.matrix(), Write::replace, plain_du.matrix());
    gelu_backward(plain_u.matrix(), {}, plain_du.matrix(), plain_du.matrix());
    EXPECT_LT(reference::relative_error(u.values(), plain_u.doubles()), tolerance);
    EXPECT_LT(reference::relative_error(a.values(), plain_a.doubles()), tolerance);
    EXPECT_LT(reference::relative_error(du.values(), plain_du.doubles()), 10 * tolerance);
    EXPECT_TRUE(u.gaps_untouched() && a.gaps_untouched() && du.gaps_untouched());
  }
}

TEST(Matmul, EmptyProductsLeaveNothing) {
  Array x(0, 4), w = random_array(3, 4, 1), y(0, 3), dw = random_array(3, 4, 2);
  linear_forward(x.matrix(), w.matrix(), Write::replace, y.matrix());
  const auto before = dw.values();
  linear_backward_weight(y.matrix(), x.matrix(), Write::accumulate, dw.matrix());
  EXPECT_TRUE(reference::same_bits(dw.values(), before));
  linear_backward_weight(y.matrix(), x.matrix(), Write::replace, dw.matrix());
  EXPECT_EQ(dw.values(), std::vector<float>(12, 0.0f));
}

TEST(Matmul, RepeatsBitwiseAlsoAmongThreads) {
  reference::expect_same_bits(
      [] {
        Array x = random_array(130, 192, 1), w = random_array(257, 192, 2), y(130, 257);
        linear_forward(x.matrix(), w.matrix(), Write::replace, y.matrix());
        linear_backward_weight(y.matrix(), x.matrix(), Write::accumulate, w.matrix());
        linear_backward_input(y.matrix(), w.matrix(), Write::accumulate, x.matrix());
        return x.values();
      },
      {1});
}

TEST(Matmul, ShapesThatDoNotFitBreakAPromise) {
  Array x = random_array(4, 5, 1), w = random_array(3, 6, 2), y(4, 3), fits(3, 5), bias(1, 4);
  EXPECT_THROW(affine_forward(x.matrix(), fits.matrix(), bias.vector(), {}, y.matrix()), Error);
  EXPECT_THROW(linear_forward(x.matrix(), w.matrix(), Write::replace, y.matrix()), Error);
}

TEST(Runtime, NeedsAThread) {
  EXPECT_THROW(use_threads(0), Error);
  EXPECT_NO_THROW(Runtime{1});
}

}  // namespace
}  // namespace brume::kernels
