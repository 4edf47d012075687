#include "kernels/bfloat16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

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
#include "reference/arrays.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

/// bf16 values beside the same values in fp32. The fp32 kernels are held against their twins
/// elsewhere; here each bf16 kernel is held against its fp32 form on the very same values.
struct Pair {
  explicit Pair(Array values) : wide{std::move(values)} {
    for (const float value : wide.values()) narrow.emplace_back(value);
    for (int r = 0; r < wide.matrix().extent_int(0); ++r)
      for (int c = 0; c < columns(); ++c) wide(r, c) = narrow[std::size_t(r * columns() + c)];
  }
  Pair(int rows, int cols, unsigned seed) : Pair(random_array(rows, cols, seed)) {}

  int columns() { return wide.matrix().extent_int(1); }
  MatrixOf<bfloat16> matrix() {
    return MatrixOf<bfloat16>(narrow.data(), wide.matrix().extent(0), wide.matrix().extent(1));
  }
  VectorOf<bfloat16> vector() { return VectorOf<bfloat16>(narrow.data(), narrow.size()); }

  Array wide;
  std::vector<bfloat16> narrow;
};

/// One rounding, and sums in fp32 in another order.
void expect_rounded(Pair& pair) {
  const std::vector<float> expected = pair.wide.values();
  float largest = 0.0f;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(float(pair.narrow[i]), expected[i],
                std::abs(expected[i]) / 256.0f + 1e-5f * largest)
        << i;
}

void expect_close(Array& found, Array& expected) {
  EXPECT_LT(reference::relative_error(found.values(), expected.doubles()), 1e-5);
}

TEST(Bfloat16, KeepsEveryValueItHas) {
  for (int bits = 0; bits < 65536; ++bits) {
    bfloat16 value;
    value.bits = std::uint16_t(bits);
    const float wide = value;
    if (std::isnan(wide))
      EXPECT_TRUE(std::isnan(float(bfloat16(wide))));
    else
      EXPECT_EQ(bfloat16(wide).bits, bits);
  }
}

// Between 1 and 1 + 2^-7 lies 1 + 2^-8: a tie goes to the even one, a hair more goes up.
TEST(Bfloat16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(float(bfloat16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(float(bfloat16(1.0f + 0x1p-8f + 0x1p-20f)), 1.0f + 0x1p-7f);
  EXPECT_EQ(float(bfloat16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isinf(float(bfloat16(std::numeric_limits<float>::max()))));
}

TEST(Bfloat16, Products) {
  if (!has_bfloat16_products()) GTEST_SKIP() << "this processor has no bf16 products";
  for (const Write write : {Write::replace, Write::accumulate}) {
    Pair x(70, 48, 1), w(33, 48, 2), y(70, 33, 3), dx(70, 48, 4);
    linear_forward<bfloat16>(x.matrix(), w.matrix(), write, y.matrix());
    linear_forward(x.wide.matrix(), w.wide.matrix(), write, y.wide.matrix());
    expect_rounded(y);

    Pair dy(70, 33, 5);
    linear_backward_input<bfloat16>(dy.matrix(), w.matrix(), write, dx.matrix());
    linear_backward_input(dy.wide.matrix(), w.wide.matrix(), write, dx.wide.matrix());
    expect_rounded(dx);

    Array dw = random_array(33, 48, 6), expected = dw;
    linear_backward_weight<bfloat16>(dy.matrix(), x.matrix(), write, dw.matrix());
    linear_backward_weight(dy.wide.matrix(), x.wide.matrix(), write, expected.matrix());
    expect_close(dw, expected);
  }
}

TEST(Bfloat16, ProductsOfNothing) {
  Pair y(3, 4, 1);
  std::vector<bfloat16> none;
  linear_forward<bfloat16>(MatrixOf<bfloat16>(none.data(), 3, 0),
                           MatrixOf<bfloat16>(none.data(), 4, 0), Write::replace, y.matrix());
  for (const bfloat16 value : y.narrow) EXPECT_EQ(float(value), 0.0f);
}

TEST(Bfloat16, Pointwise) {
  Pair x(9, 37, 1), bias(1, 37, 2), y(9, 37, 3), da(9, 37, 4);
  add_bias<bfloat16>(x.matrix(), bias.vector(), y.matrix());
  add_bias(x.wide.matrix(), bias.wide.vector(), y.wide.matrix());
  expect_rounded(y);
  gelu_forward<bfloat16>(x.matrix(), bias.vector(), y.matrix());
  gelu_forward(x.wide.matrix(), bias.wide.vector(), y.wide.matrix());
  expect_rounded(y);
  gelu_backward<bfloat16>(x.matrix(), bias.vector(), da.matrix(), y.matrix());
  gelu_backward(x.wide.matrix(), bias.wide.vector(), da.wide.matrix(), y.wide.matrix());
  expect_rounded(y);

  Array sums(1, 37), expected(1, 37);
  bias_backward<bfloat16>(x.matrix(), Write::replace, sums.vector());
  bias_backward(x.wide.matrix(), Write::replace, expected.vector());
  expect_close(sums, expected);
}

TEST(Bfloat16, LayerNorm) {
  Pair x(50, 40, 1), gain(1, 40, 2), bias(1, 40, 3), y(50, 40, 4), dy(50, 40, 5), dx(50, 40, 6),
      residual(50, 40, 7);
  Array mean(1, 50), rstd(1, 50), dgain(1, 40), dbias(1, 40), dgain_wide(1, 40), dbias_wide(1, 40);
  layer_norm_forward<bfloat16>(x.matrix(), gain.vector(), bias.vector(), 1e-5f, y.matrix(),
                               mean.vector(), rstd.vector());
  layer_norm_forward(x.wide.matrix(), gain.wide.vector(), bias.wide.vector(), 1e-5f,
                     y.wide.matrix(), mean.vector(), rstd.vector());
  expect_rounded(y);
  layer_norm_apply<bfloat16>(x.matrix(), gain.vector(), bias.vector(), mean.vector(), rstd.vector(),
                             y.matrix());
  expect_rounded(y);
  layer_norm_backward<bfloat16>(dy.matrix(), x.matrix(), gain.vector(), mean.vector(),
                                rstd.vector(), residual.matrix(), dx.matrix(), Write::replace,
                                dgain.vector(), dbias.vector());
  layer_norm_backward(dy.wide.matrix(), x.wide.matrix(), gain.wide.vector(), mean.vector(),
                      rstd.vector(), residual.wide.matrix(), dx.wide.matrix(), Write::replace,
                      dgain_wide.vector(), dbias_wide.vector());
  expect_rounded(dx);
  expect_close(dgain, dgain_wide);
  expect_close(dbias, dbias_wide);
}

TEST(Bfloat16, RmsNorm) {
  Pair x(50, 40, 1), gain(1, 40, 2), y(50, 40, 4), dy(50, 40, 5), dx(50, 40, 6),
      residual(50, 40, 7);
  Array rstd(1, 50), dgain(1, 40), dgain_wide(1, 40);
  rms_norm_forward<bfloat16>(x.matrix(), gain.vector(), 1e-5f, y.matrix(), rstd.vector());
  rms_norm_forward(x.wide.matrix(), gain.wide.vector(), 1e-5f, y.wide.matrix(), rstd.vector());
  expect_rounded(y);
  rms_norm_apply<bfloat16>(x.matrix(), gain.vector(), rstd.vector(), y.matrix());
  expect_rounded(y);
  rms_norm_backward<bfloat16>(dy.matrix(), x.matrix(), gain.vector(), rstd.vector(),
                              residual.matrix(), dx.matrix(), Write::replace, dgain.vector());
  rms_norm_backward(dy.wide.matrix(), x.wide.matrix(), gain.wide.vector(), rstd.vector(),
                    residual.wide.matrix(), dx.wide.matrix(), Write::replace, dgain_wide.vector());
  expect_rounded(dx);
  expect_close(dgain, dgain_wide);
}

TEST(Bfloat16, Rope) {
  std::vector<float> angles = rope_table({1.0, 0.3, 0.1, 0.01}, 5);
  const ConstMatrix table(angles.data(), 5, 8);
  Pair x(10, 24, 1), dx(10, 24, 2);
  rope_forward<bfloat16>(table, x.matrix());
  rope_forward(table, x.wide.matrix());
  expect_rounded(x);
  rope_backward<bfloat16>(table, dx.matrix());
  rope_backward(table, dx.wide.matrix());
  expect_rounded(dx);
}

TEST(Bfloat16, SwigluAndGeluErf) {
  Pair u(9, 74, 1), a(9, 37, 2), da(9, 37, 3), du(9, 74, 4), bias(1, 37, 5), narrow(9, 37, 6);
  swiglu_forward<bfloat16>(u.matrix(), a.matrix());
  swiglu_forward(u.wide.matrix(), a.wide.matrix());
  expect_rounded(a);
  swiglu_backward<bfloat16>(u.matrix(), da.matrix(), du.matrix());
  swiglu_backward(u.wide.matrix(), da.wide.matrix(), du.wide.matrix());
  expect_rounded(du);

  gelu_erf_forward<bfloat16>(narrow.matrix(), bias.vector(), a.matrix());
  gelu_erf_forward(narrow.wide.matrix(), bias.wide.vector(), a.wide.matrix());
  expect_rounded(a);
  gelu_erf_backward<bfloat16>(narrow.matrix(), {}, da.matrix(), a.matrix());
  gelu_erf_backward(narrow.wide.matrix(), {}, da.wide.matrix(), a.wide.matrix());
  expect_rounded(a);
}

TEST(Bfloat16, Attention) {
  AttentionShape shape{2, 130, 4, 24};
  shape.kv_heads = 2;
  shape.group = 2;
  const int tokens = 2 * 130;
  Pair qkv(tokens, shape.width(), 1), o(tokens, 96, 2), d_o(tokens, 96, 3),
      dqkv(tokens, shape.width(), 4);
  Array lse(1, tokens * 4), lse_wide(1, tokens * 4);
  attention_forward<bfloat16>(shape, qkv.matrix(), o.matrix(), lse.vector());
  attention_forward(shape, qkv.wide.matrix(), o.wide.matrix(), lse_wide.vector());
  expect_rounded(o);
  expect_close(lse, lse_wide);

  Pair seen(o.wide);  // backward sees the rounded output
  seen.narrow = o.narrow;
  for (int n = 0; n < tokens; ++n)
    for (int c = 0; c < 96; ++c) seen.wide(n, c) = o.narrow[std::size_t(n * 96 + c)];
  attention_backward<bfloat16>(shape, qkv.matrix(), seen.matrix(), lse.vector(), d_o.matrix(),
                               dqkv.matrix());
  attention_backward(shape, qkv.wide.matrix(), seen.wide.matrix(), lse.vector(), d_o.wide.matrix(),
                     dqkv.wide.matrix());
  expect_rounded(dqkv);
}

TEST(Bfloat16, CrossEntropy) {
  Pair logits(6, 5000, 1);
  const std::vector<std::int32_t> targets{0, 4999, -1, 7, 2500, 7};
  for (const bool with_gradient : {false, true}) {
    const auto loss = std::make_unique<double>(), expected = std::make_unique<double>();
    cross_entropy<bfloat16>(logits.matrix(), reference::view(targets), 0.2f, with_gradient,
                            Write::replace, loss.get());
    cross_entropy(logits.wide.matrix(), reference::view(targets), 0.2f, with_gradient,
                  Write::replace, expected.get());
    EXPECT_NEAR(*loss, *expected, 1e-6 * *expected);
  }
  expect_rounded(logits);
}

TEST(Bfloat16, Embedding) {
  Pair table(11, 20, 1), positions(4, 20, 2), x(8, 20, 3);
  const std::vector<std::int32_t> tokens{3, 3, 0, 10, 5, 3, 1, 0};
  embedding_forward<bfloat16>(reference::view(tokens), table.matrix(), positions.matrix(),
                              x.matrix());
  embedding_forward(reference::view(tokens), table.wide.matrix(), positions.wide.matrix(),
                    x.wide.matrix());
  expect_rounded(x);

  Pair dx(8, 20, 4);
  Array found = random_array(11, 20, 5), expected = found, d_positions = random_array(4, 20, 6),
        d_positions_wide = d_positions;
  embedding_backward<bfloat16>(reference::view(tokens), dx.matrix(), found.matrix(),
                               d_positions.matrix());
  embedding_backward(reference::view(tokens), dx.wide.matrix(), expected.matrix(),
                     d_positions_wide.matrix());
  expect_close(found, expected);
  expect_close(d_positions, d_positions_wide);
}

// Steps too small for bf16 still add up in the master weight.
TEST(Bfloat16, MasterWeightsKeepWhatRoundingLoses) {
  Array grad(1, 3), master(1, 3), m(1, 3), v(1, 3);
  for (int i = 0; i < 3; ++i) grad(0, i) = 1.0f, master(0, i) = 1.0f, m(0, i) = v(0, i) = 0.0f;
  std::vector<bfloat16> weight(3, bfloat16(1.0f));
  // Without memory (both betas 0) every step is lr: 2^-10 is a quarter of bf16's step below 1.
  const AdamW step{.lr = 0x1p-10f,
                   .beta1 = 0.0f,
                   .beta2 = 0.0f,
                   .eps = 0.0f,
                   .weight_decay = 0.0f,
                   .bias_correction1 = 1.0f,
                   .bias_correction2 = 1.0f,
                   .clip_norm = 0.0};
  for (int i = 0; i < 8; ++i)
    adamw_step(step, nullptr, grad.vector(), master.vector(), m.vector(), v.vector(),
               VectorOf<bfloat16>(weight.data(), 3));
  EXPECT_EQ(master(0, 0), 1.0f - 0x1p-7f);
  EXPECT_EQ(float(weight[0]), 1.0f - 0x1p-7f);
}

}  // namespace
}  // namespace brume::kernels
