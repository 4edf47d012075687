#include "kernels/layer_norm.hpp"

#include <gtest/gtest.h>

#include "reference/layer_norm.hpp"

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
        bias{random_array(1, s.C, 3)},
        dy{random_array(s.N, s.C, 4, 1.0f, s.gap)},
        residual{random_array(s.N, s.C, 5, 1.0f, s.gap)},
        y(s.N, s.C, s.gap),
        mean(1, s.N),
        rstd(1, s.N),
        dx(s.N, s.C, s.gap),
        dgain(1, s.C),
        dbias(1, s.C) {
    layer_norm_forward(x.matrix(), gain.vector(), bias.vector(), eps, y.matrix(), mean.vector(),
                       rstd.vector());
  }
  void backward(ConstMatrix grad, ConstMatrix added, Matrix out, Write write) {
    layer_norm_backward(grad, x.matrix(), gain.vector(), mean.vector(), rstd.vector(), added, out,
                        write, dgain.vector(), dbias.vector());
  }
  reference::LayerNorm twin() const {
    return reference::layer_norm_forward(x.doubles(), gain.doubles(), bias.doubles(), eps);
  }
  reference::LayerNormGradient twin_gradient() const {
    return reference::layer_norm_backward(dy.doubles(), x.doubles(), gain.doubles(), twin());
  }

  Array x, gain, bias, dy, residual, y, mean, rstd, dx, dgain, dbias;
};

TEST(LayerNorm, ForwardEqualsItsTwin) {
  for (const Shape& shape : shapes) {
    Case c(shape);
    const reference::LayerNorm expected = c.twin();
    EXPECT_LT(reference::relative_error(c.y.values(), expected.y), 1e-6);
    // Terms of both signs: the sum is far smaller than what it was rounded at.
    EXPECT_LT(reference::relative_error(c.mean.values(), expected.mean), 3e-6);
    EXPECT_LT(reference::relative_error(c.rstd.values(), expected.rstd), 1e-6);
    EXPECT_TRUE(c.y.gaps_untouched());
    Array again(shape.N, shape.C, shape.gap);
    layer_norm_apply(c.x.matrix(), c.gain.vector(), c.bias.vector(), c.mean.vector(),
                     c.rstd.vector(), again.matrix());
    EXPECT_TRUE(reference::same_bits(again.values(), c.y.values())) << "apply is forward again";
  }
}

TEST(LayerNorm, BackwardEqualsItsTwin) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.N << " x " << shape.C);
    Case c(shape);
    const reference::LayerNormGradient expected = c.twin_gradient();
    c.backward(c.dy.matrix(), {}, c.dx.matrix(), Write::replace);
    EXPECT_LT(reference::relative_error(c.dx.values(), expected.dx), 2e-6);
    EXPECT_LT(reference::relative_error(c.dgain.values(), expected.dgain), 2e-6);
    EXPECT_LT(reference::relative_error(c.dbias.values(), expected.dbias), 2e-6);
    EXPECT_TRUE(c.dx.gaps_untouched());

    c.backward(c.dy.matrix(), c.residual.matrix(), c.dx.matrix(), Write::accumulate);
    EXPECT_LT(
        reference::relative_error(c.dx.values(), reference::sum(c.residual.doubles(), expected.dx)),
        2e-6);
    EXPECT_LT(
        reference::relative_error(c.dgain.values(), reference::sum(expected.dgain, expected.dgain)),
        2e-6);
    EXPECT_LT(
        reference::relative_error(c.dbias.values(), reference::sum(expected.dbias, expected.dbias)),
        2e-6);
  }
}

TEST(LayerNorm, BackwardMayOverwriteItsInputs) {
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

TEST(LayerNorm, GradientsAreTheSlopesOfTheTwin) {
  Case c({3, 6, 0});
  c.backward(c.dy.matrix(), {}, c.dx.matrix(), Write::replace);
  const auto loss = [&](const reference::Doubles& x, const reference::Doubles& gain,
                        const reference::Doubles& bias) {
    return reference::dot(c.dy.doubles(), reference::layer_norm_forward(x, gain, bias, eps).y);
  };
  const reference::Doubles x = c.x.doubles(), gain = c.gain.doubles(), bias = c.bias.doubles();
  const auto slope_x = reference::slope_of([&](auto& at) { return loss(at, gain, bias); }, x);
  const auto slope_gain = reference::slope_of([&](auto& at) { return loss(x, at, bias); }, gain);
  const auto slope_bias = reference::slope_of([&](auto& at) { return loss(x, gain, at); }, bias);
  EXPECT_LT(reference::relative_error(c.dx.values(), slope_x), 5e-6);
  EXPECT_LT(reference::relative_error(c.dgain.values(), slope_gain), 5e-6);
  EXPECT_LT(reference::relative_error(c.dbias.values(), slope_bias), 5e-6);
}

// The variance of 1000 +- 1 is lost in fp32 unless the mean is taken off first.
TEST(LayerNorm, FarFromZeroKeepsItsDigits) {
  Array x(1, 64), gain(1, 64), bias(1, 64), y(1, 64), mean(1, 1), rstd(1, 1);
  for (int c = 0; c < 64; ++c)
    x(0, c) = 1000.0f + (c % 2 ? 1.0f : -1.0f), gain(0, c) = 1, bias(0, c) = 0;
  layer_norm_forward(x.matrix(), gain.vector(), bias.vector(), 0.0f, y.matrix(), mean.vector(),
                     rstd.vector());
  for (int c = 0; c < 64; ++c) EXPECT_FLOAT_EQ(y(0, c), c % 2 ? 1.0f : -1.0f);
}

TEST(LayerNorm, RepeatsBitwiseAlsoAmongThreads) {
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
