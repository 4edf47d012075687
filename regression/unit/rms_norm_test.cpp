#include "kernels/rms_norm.hpp"

#include <gtest/gtest.h>

#include "reference/rms_norm.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

constexpr float eps = 1e-5f;

struct Shape {
  int N, C, gap;
};
// 400 rows of 100 are more than one block of backward.
const Shape shapes[] = {{1, 3, 0},     {3, 7, 2},    {5, 64, 0},
                        {400, 100, 1}, {33, 191, 0}, {9, 2500, 5}};

/// Everything one backward call needs, from a forward call.
struct Case {
  explicit Case(const Shape& s)
      : x{random_array(s.N, s.C, 1, 2.0f, s.gap)},
        gain{random_array(1, s.C, 2)},
        dy{random_array(s.N, s.C, 4, 1.0f, s.gap)},
        residual{random_array(s.N, s.C, 5, 1.0f, s.gap)},
        y(s.N, s.C, s.gap),
        rstd(1, s.N),
        dx(s.N, s.C, s.gap),
        dgain(1, s.C) {
    rms_norm_forward(x.matrix(), gain.vector(), eps, y.matrix(), rstd.vector());
  }
  void backward(ConstMatrix grad, ConstMatrix added, Matrix out, Write write) {
    rms_norm_backward(grad, x.matrix(), gain.vector(), rstd.vector(), added, out, write,
                      dgain.vector());
  }
  reference::RmsNorm twin() const {
    return reference::rms_norm_forward(x.doubles(), gain.doubles(), eps);
  }
  reference::RmsNormGradient twin_gradient() const {
    return reference::rms_norm_backward(dy.doubles(), x.doubles(), gain.doubles(), twin());
  }

  Array x, gain, dy, residual, y, rstd, dx, dgain;
};

TEST(RmsNorm, ForwardEqualsItsTwin) {
  for (const Shape& shape : shapes) {
    Case c(shape);
    EXPECT_LT(reference::relative_error(c.y.values(), c.twin().y), 1e-6);
    EXPECT_LT(reference::relative_error(c.rstd.values(), c.twin().rstd), 2e-6);
    EXPECT_TRUE(c.y.gaps_untouched());
    Array again(shape.N, shape.C, shape.gap);
    rms_norm_apply(c.x.matrix(), c.gain.vector(), c.rstd.vector(), again.matrix());
    EXPECT_TRUE(reference::same_bits(again.values(), c.y.values())) << "apply is forward again";
  }
}

TEST(RmsNorm, BackwardEqualsItsTwin) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.N << " x " << shape.C);
    Case c(shape);
    const reference::RmsNormGradient expected = c.twin_gradient();
    c.backward(c.dy.matrix(), {}, c.dx.matrix(), Write::replace);
    EXPECT_LT(reference::relative_error(c.dx.values(), expected.dx), 2e-6);
    EXPECT_LT(reference::relative_error(c.dgain.values(), expected.dgain), 2e-6);
    EXPECT_TRUE(c.dx.gaps_untouched());

    c.backward(c.dy.matrix(), c.residual.matrix(), c.dx.matrix(), Write::accumulate);
    const auto with_residual = reference::sum(c.residual.doubles(), expected.dx);
    const auto twice = reference::sum(expected.dgain, expected.dgain);
    EXPECT_LT(reference::relative_error(c.dx.values(), with_residual), 2e-6);
    EXPECT_LT(reference::relative_error(c.dgain.values(), twice), 2e-6);
  }
}

TEST(RmsNorm, BackwardMayOverwriteItsInputs) {
  for (const Shape& shape : shapes) {
    Case c(shape);
    c.backward(c.dy.matrix(), c.residual.matrix(), c.dx.matrix(), Write::replace);
    const std::vector<float> dgain = c.dgain.values();
    Array dy = c.dy;
    c.backward(dy.matrix(), c.residual.matrix(), dy.matrix(), Write::replace);
    EXPECT_TRUE(reference::same_bits(dy.values(), c.dx.values())) << "dx is dy";
    EXPECT_TRUE(reference::same_bits(c.dgain.values(), dgain));
    c.backward(c.dy.matrix(), c.residual.matrix(), c.residual.matrix(), Write::replace);
    EXPECT_TRUE(reference::same_bits(c.residual.values(), c.dx.values())) << "dx is residual";
  }
}

TEST(RmsNorm, GradientsAreTheSlopesOfTheTwin) {
  Case c({3, 6, 0});
  c.backward(c.dy.matrix(), {}, c.dx.matrix(), Write::replace);
  const auto loss = [&](const reference::Doubles& x, const reference::Doubles& gain) {
    return reference::dot(c.dy.doubles(), reference::rms_norm_forward(x, gain, eps).y);
  };
  const reference::Doubles x = c.x.doubles(), gain = c.gain.doubles();
  const auto slope_x = reference::slope_of([&](auto& at) { return loss(at, gain); }, x);
  const auto slope_gain = reference::slope_of([&](auto& at) { return loss(x, at); }, gain);
  EXPECT_LT(reference::relative_error(c.dx.values(), slope_x), 5e-6);
  EXPECT_LT(reference::relative_error(c.dgain.values(), slope_gain), 5e-6);
}

// The heads of a row are rows of their own: three of them in each of some rows that lie apart.
TEST(RmsNorm, PartsOfARowAreNormalisedAlone) {
  for (const float base : {0.0f, 1.0f}) {
    const int N = 140, parts = 3, C = 10;
    Array x = random_array(N, parts * C, 1, 2.0f, 7), dy = random_array(N, parts * C, 2, 1.0f, 5);
    Array gain = random_array(1, C, 3), y(N, parts * C, 7), rstd(1, N * parts);
    Array dx(N, parts * C, 5), dgain(1, C);
    reference::Doubles whole = gain.doubles();
    for (double& value : whole) value += base;
    const auto expected = reference::rms_norm_forward(x.doubles(), whole, eps);
    rms_norm_forward(x.matrix(), gain.vector(), eps, y.matrix(), rstd.vector(), base);
    EXPECT_LT(reference::relative_error(y.values(), expected.y), 1e-6);
    EXPECT_TRUE(y.gaps_untouched());
    const auto gradient = reference::rms_norm_backward(dy.doubles(), x.doubles(), whole, expected);
    rms_norm_backward(dy.matrix(), x.matrix(), gain.vector(), rstd.vector(), {}, dx.matrix(),
                      Write::replace, dgain.vector(), base);
    EXPECT_LT(reference::relative_error(dx.values(), gradient.dx), 2e-6);
    EXPECT_LT(reference::relative_error(dgain.values(), gradient.dgain), 2e-6);
    EXPECT_TRUE(dx.gaps_untouched());
    Array again(N, parts * C);
    rms_norm_apply(x.matrix(), gain.vector(), rstd.vector(), again.matrix(), base);
    EXPECT_TRUE(reference::same_bits(again.values(), y.values()));
    rms_norm_forward(x.matrix(), gain.vector(), eps, again.matrix(), rstd.vector(), base,
                     dy.matrix());
    EXPECT_LT(reference::relative_error(again.values(), reference::sum(dy.doubles(), expected.y)),
              1e-6);
    rms_norm_forward(x.matrix(), gain.vector(), eps, x.matrix(), rstd.vector(), base);
    EXPECT_TRUE(reference::same_bits(x.values(), y.values())) << "y is x";
  }
}

TEST(RmsNorm, RepeatsBitwiseAlsoAmongThreads) {
  reference::expect_same_bits([] {
    Case c({130, 301, 0});
    c.backward(c.y.matrix(), c.residual.matrix(), c.dx.matrix(), Write::replace);
    std::vector<float> out = c.dx.values();
    for (const float value : c.dgain.values()) out.push_back(value);
    return out;
  });
}

}  // namespace
}  // namespace brume::kernels
