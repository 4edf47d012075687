#include "kernels/types.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "attention_documents.hpp"
#include "attention_zigzag.hpp"
#include "base/error.hpp"
#include "kernels/attention.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"
#include "reference/arrays.hpp"
#include "reference/formats.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

// --- the formats ---------------------------------------------------------------------------------

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

/// What IEEE 754 says that the bits of a binary16 mean.
double meaning_of(int bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

/// The nearest multiple of the last place, by the processor's own rounding.
double nearest_float16(float value) {
  if (value == 0.0f || !std::isfinite(value)) return value;
  const double last_place = std::ldexp(1.0, std::max(std::ilogb(value), -14) - 10);
  const double rounded = std::nearbyint(double(value) / last_place) * last_place;
  return std::abs(rounded) < 65536.0 ? rounded : std::copysign(INFINITY, rounded);
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

TEST(Float16, HasTheValuesOfBinary16AndKeepsThem) {
  for (int bits = 0; bits < 65536; ++bits) {
    float16 value;
    value.bits = std::uint16_t(bits);
    ASSERT_TRUE(same(value, meaning_of(bits))) << bits;
    ASSERT_TRUE(same(float16(float(value)), value)) << bits;
  }
}

// Each value, halfway to the next one, and the floats on both sides of these.
TEST(Float16, RoundsToNearestTiesToEven) {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const double next = bits == 0x7bff ? 65536.0 : meaning_of(bits + 1);
    for (const float middle : {float(meaning_of(bits)), float((meaning_of(bits) + next) / 2)})
      for (const float value :
           {std::nextafter(middle, -INFINITY), middle, std::nextafter(middle, INFINITY)})
        for (const float either : {value, -value})
          ASSERT_TRUE(same(float16(either), nearest_float16(either))) << either;
  }
}

TEST(Float16, RoundsAnyFloatAsTheProcessorWould) {
  std::mt19937 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = std::bit_cast<float>(std::uint32_t(random()));
    ASSERT_TRUE(same(float16(value), nearest_float16(value))) << value;
  }
}

TEST(Float16, IsKnownToTheCompiler) {
  static_assert(float16(1.0f).bits == 0x3c00 && float16(0x1p-24f).bits == 1);
  static_assert(float16(65519.0f).bits == 0x7bff && float16(65520.0f).bits == 0x7c00);
  static_assert(float(float16(-0.1f)) == -0x1.998p-4f);
}

// --- kernels -------------------------------------------------------------------------------------

/// The largest relative error of a rounding, and the largest absolute one near zero.
template <class Storage>
constexpr float half_a_place = 0x1p-8f;
template <>
constexpr float half_a_place<float16> = 0x1p-11f;
template <class Storage>
constexpr float half_a_place_at_zero = 0.0f;
template <>
constexpr float half_a_place_at_zero<float16> = 0x1p-25f;

/// Narrow values beside the same values in fp32. The fp32 kernels are held against their twins
/// elsewhere; here each narrow kernel is held against its fp32 form on the very same values.
template <class Storage>
struct PairOf {
  explicit PairOf(Array values) : wide{std::move(values)} {
    for (const float value : wide.values()) narrow.emplace_back(value);
    for (int r = 0; r < wide.matrix().extent_int(0); ++r)
      for (int c = 0; c < columns(); ++c) wide(r, c) = narrow[std::size_t(r * columns() + c)];
  }
  PairOf(int rows, int cols, unsigned seed) : PairOf(random_array(rows, cols, seed)) {}

  int columns() { return wide.matrix().extent_int(1); }
  MatrixOf<Storage> matrix() {
    return MatrixOf<Storage>(narrow.data(), wide.matrix().extent(0), wide.matrix().extent(1));
  }
  VectorOf<Storage> vector() { return VectorOf<Storage>(narrow.data(), narrow.size()); }

  Array wide;
  std::vector<Storage> narrow;
};

/// One rounding, and sums in fp32 in another order.
template <class Storage>
void expect_rounded(PairOf<Storage>& pair) {
  const std::vector<float> expected = pair.wide.values();
  float largest = 0.0f;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(float(pair.narrow[i]), expected[i],
                std::abs(expected[i]) * half_a_place<Storage> + half_a_place_at_zero<Storage> +
                    1e-5f * largest)
        << i;
}

void expect_close(Array& found, Array& expected) {
  EXPECT_LT(reference::relative_error(found.values(), expected.doubles()), 1e-5);
}

template <class Storage>
class NarrowKernels : public ::testing::Test {
 protected:
  using Pair = PairOf<Storage>;
};

using Formats = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(NarrowKernels, Formats, reference::StorageName);

TYPED_TEST(NarrowKernels, Products) {
  using Pair = PairOf<TypeParam>;
  for (const Write write : {Write::replace, Write::accumulate}) {
    Pair x(70, 48, 1), w(33, 48, 2), y(70, 33, 3), dx(70, 48, 4);
    linear_forward<TypeParam>(x.matrix(), w.matrix(), write, y.matrix());
    linear_forward(x.wide.matrix(), w.wide.matrix(), write, y.wide.matrix());
    expect_rounded(y);

    Pair dy(70, 33, 5);
    linear_backward_input<TypeParam>(dy.matrix(), w.matrix(), write, dx.matrix());
    linear_backward_input(dy.wide.matrix(), w.wide.matrix(), write, dx.wide.matrix());
    expect_rounded(dx);

    Array dw = random_array(33, 48, 6), expected = dw;
    linear_backward_weight<TypeParam>(dy.matrix(), x.matrix(), write, dw.matrix());
    linear_backward_weight(dy.wide.matrix(), x.wide.matrix(), write, expected.matrix());
    expect_close(dw, expected);
  }
}

// Sizes that are no multiple of the pieces in which a product may be made.
TYPED_TEST(NarrowKernels, LargeProducts) {
  using Pair = PairOf<TypeParam>;
  Pair x(1030, 2060, 1), w(1041, 2060, 2), y(1030, 1041, 3), dx(1030, 2060, 4);
  linear_forward<TypeParam>(x.matrix(), w.matrix(), Write::accumulate, y.matrix());
  linear_forward(x.wide.matrix(), w.wide.matrix(), Write::accumulate, y.wide.matrix());
  expect_rounded(y);

  Pair dy(1030, 1041, 5);
  linear_backward_input<TypeParam>(dy.matrix(), w.matrix(), Write::replace, dx.matrix());
  linear_backward_input(dy.wide.matrix(), w.wide.matrix(), Write::replace, dx.wide.matrix());
  expect_rounded(dx);

  Array dw = random_array(1041, 2060, 6), expected = dw;
  linear_backward_weight<TypeParam>(dy.matrix(), x.matrix(), Write::accumulate, dw.matrix());
  linear_backward_weight(dy.wide.matrix(), x.wide.matrix(), Write::accumulate, expected.matrix());
  expect_close(dw, expected);
}

TYPED_TEST(NarrowKernels, ProductsOfNothing) {
  using Pair = PairOf<TypeParam>;
  Pair y(3, 4, 1);
  std::vector<TypeParam> none;
  linear_forward<TypeParam>(MatrixOf<TypeParam>(none.data(), 3, 0),
                            MatrixOf<TypeParam>(none.data(), 4, 0), Write::replace, y.matrix());
  for (const TypeParam value : y.narrow) EXPECT_EQ(float(value), 0.0f);
}

TYPED_TEST(NarrowKernels, Pointwise) {
  using Pair = PairOf<TypeParam>;
  Pair x(9, 37, 1), bias(1, 37, 2), y(9, 37, 3), da(9, 37, 4);
  add_bias<TypeParam>(x.matrix(), bias.vector(), y.matrix());
  add_bias(x.wide.matrix(), bias.wide.vector(), y.wide.matrix());
  expect_rounded(y);
  gelu_forward<TypeParam>(x.matrix(), bias.vector(), y.matrix());
  gelu_forward(x.wide.matrix(), bias.wide.vector(), y.wide.matrix());
  expect_rounded(y);
  gelu_backward<TypeParam>(x.matrix(), bias.vector(), da.matrix(), y.matrix());
  gelu_backward(x.wide.matrix(), bias.wide.vector(), da.wide.matrix(), y.wide.matrix());
  expect_rounded(y);

  Array sums(1, 37), expected(1, 37);
  bias_backward<TypeParam>(x.matrix(), Write::replace, sums.vector());
  bias_backward(x.wide.matrix(), Write::replace, expected.vector());
  expect_close(sums, expected);
}

TYPED_TEST(NarrowKernels, LayerNorm) {
  using Pair = PairOf<TypeParam>;
  Pair x(50, 40, 1), gain(1, 40, 2), bias(1, 40, 3), y(50, 40, 4), dy(50, 40, 5), dx(50, 40, 6),
      residual(50, 40, 7);
  Array mean(1, 50), rstd(1, 50), dgain(1, 40), dbias(1, 40), dgain_wide(1, 40), dbias_wide(1, 40);
  layer_norm_forward<TypeParam>(x.matrix(), gain.vector(), bias.vector(), 1e-5f, y.matrix(),
                                mean.vector(), rstd.vector());
  layer_norm_forward(x.wide.matrix(), gain.wide.vector(), bias.wide.vector(), 1e-5f,
                     y.wide.matrix(), mean.vector(), rstd.vector());
  expect_rounded(y);
  layer_norm_apply<TypeParam>(x.matrix(), gain.vector(), bias.vector(), mean.vector(),
                              rstd.vector(), y.matrix());
  expect_rounded(y);
  layer_norm_backward<TypeParam>(dy.matrix(), x.matrix(), gain.vector(), mean.vector(),
                                 rstd.vector(), residual.matrix(), dx.matrix(), Write::replace,
                                 dgain.vector(), dbias.vector());
  layer_norm_backward(dy.wide.matrix(), x.wide.matrix(), gain.wide.vector(), mean.vector(),
                      rstd.vector(), residual.wide.matrix(), dx.wide.matrix(), Write::replace,
                      dgain_wide.vector(), dbias_wide.vector());
  expect_rounded(dx);
  expect_close(dgain, dgain_wide);
  expect_close(dbias, dbias_wide);
}

TYPED_TEST(NarrowKernels, RmsNorm) {
  using Pair = PairOf<TypeParam>;
  Pair x(50, 40, 1), gain(1, 40, 2), y(50, 40, 4), dy(50, 40, 5), dx(50, 40, 6),
      residual(50, 40, 7);
  Array rstd(1, 50), dgain(1, 40), dgain_wide(1, 40);
  rms_norm_forward<TypeParam>(x.matrix(), gain.vector(), 1e-5f, y.matrix(), rstd.vector());
  rms_norm_forward(x.wide.matrix(), gain.wide.vector(), 1e-5f, y.wide.matrix(), rstd.vector());
  expect_rounded(y);
  rms_norm_apply<TypeParam>(x.matrix(), gain.vector(), rstd.vector(), y.matrix());
  expect_rounded(y);
  rms_norm_backward<TypeParam>(dy.matrix(), x.matrix(), gain.vector(), rstd.vector(),
                               residual.matrix(), dx.matrix(), Write::replace, dgain.vector());
  rms_norm_backward(dy.wide.matrix(), x.wide.matrix(), gain.wide.vector(), rstd.vector(),
                    residual.wide.matrix(), dx.wide.matrix(), Write::replace, dgain_wide.vector());
  expect_rounded(dx);
  expect_close(dgain, dgain_wide);
}

TYPED_TEST(NarrowKernels, Rope) {
  using Pair = PairOf<TypeParam>;
  std::vector<float> angles = rope_table({1.0, 0.3, 0.1, 0.01}, 5);
  const ConstMatrix table(angles.data(), 5, 8);
  Pair x(10, 24, 1), dx(10, 24, 2);
  rope_forward<TypeParam>(table, 8, x.matrix());
  rope_forward(table, 8, x.wide.matrix());
  expect_rounded(x);
  rope_backward<TypeParam>(table, 8, dx.matrix());
  rope_backward(table, 8, dx.wide.matrix());
  expect_rounded(dx);
}

TYPED_TEST(NarrowKernels, SwigluAndGeluErf) {
  using Pair = PairOf<TypeParam>;
  Pair u(9, 74, 1), a(9, 37, 2), da(9, 37, 3), du(9, 74, 4), bias(1, 37, 5), narrow(9, 37, 6);
  swiglu_forward<TypeParam>(u.matrix(), a.matrix());
  swiglu_forward(u.wide.matrix(), a.wide.matrix());
  expect_rounded(a);
  swiglu_backward<TypeParam>(u.matrix(), da.matrix(), du.matrix());
  swiglu_backward(u.wide.matrix(), da.wide.matrix(), du.wide.matrix());
  expect_rounded(du);
  Array gates = random_array(1, 9, 7), d_gates(1, 9), d_gates_wide(1, 9);
  clamped_swiglu_forward<TypeParam>(u.matrix(), a.matrix(), gates.vector());
  clamped_swiglu_forward(u.wide.matrix(), a.wide.matrix(), gates.vector());
  expect_rounded(a);
  swiglu_forward<TypeParam>(u.matrix(), a.matrix(), gates.vector());
  swiglu_forward(u.wide.matrix(), a.wide.matrix(), gates.vector());
  expect_rounded(a);
  swiglu_backward<TypeParam>(u.matrix(), da.matrix(), du.matrix(), gates.vector(),
                             d_gates.vector());
  swiglu_backward(u.wide.matrix(), da.wide.matrix(), du.wide.matrix(), gates.vector(),
                  d_gates_wide.vector());
  expect_rounded(du);
  expect_close(d_gates, d_gates_wide);

  gelu_erf_forward<TypeParam>(narrow.matrix(), bias.vector(), a.matrix());
  gelu_erf_forward(narrow.wide.matrix(), bias.wide.vector(), a.wide.matrix());
  expect_rounded(a);
  gelu_erf_backward<TypeParam>(narrow.matrix(), {}, da.matrix(), a.matrix());
  gelu_erf_backward(narrow.wide.matrix(), {}, da.wide.matrix(), a.wide.matrix());
  expect_rounded(a);
}

/// Weights are rounded too, each once, which adds half a place of the largest value at most.
template <class Storage>
void expect_weighed(PairOf<Storage>& pair) {
  const std::vector<float> expected = pair.wide.values();
  float largest = 0.0f;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(float(pair.narrow[i]), expected[i],
                (std::abs(expected[i]) + largest) * half_a_place<Storage>)
        << i;
}

template <class Storage>
struct NarrowAttention {
  explicit NarrowAttention(const AttentionShape& of, float spread = 1.0f)
      : shape(of),
        tokens(of.batch * of.seq_len),
        width(of.heads * of.head_dim),
        qkv(random_array(tokens, of.width(), 1, spread)),
        o(tokens, width, 2),
        d_o(tokens, width, 3),
        dqkv(tokens, of.width(), 4),
        lse(1, tokens * of.heads),
        lse_wide(lse),
        sinks(1, of.heads, 5) {}

  ConstVectorOf<Storage> given() { return has_sinks ? sinks.vector() : ConstVectorOf<Storage>(); }
  ConstVector given_wide() { return has_sinks ? ConstVector(sinks.wide.vector()) : ConstVector(); }
  void forward() {
    attention_forward<Storage>(shape, qkv.matrix(), o.matrix(), lse.vector(), given());
  }
  void backward() {
    attention_backward<Storage>(shape, qkv.matrix(), o.matrix(), lse.vector(), d_o.matrix(),
                                dqkv.matrix());
  }
  void expect_wide() {
    forward();
    attention_forward(shape, qkv.wide.matrix(), o.wide.matrix(), lse_wide.vector(), given_wide());
    expect_weighed(o);
    expect_close(lse, lse_wide);
    for (int n = 0; n < tokens; ++n)  // backward sees the rounded output
      for (int c = 0; c < width; ++c) o.wide(n, c) = o.narrow[std::size_t(n * width + c)];
    backward();
    attention_backward(shape, qkv.wide.matrix(), o.wide.matrix(), lse.vector(), d_o.wide.matrix(),
                       dqkv.wide.matrix());
    expect_weighed(dqkv);
    if (!has_sinks) return;
    Array d_sinks(1, shape.heads), expected(1, shape.heads);
    attention_backward_sinks<Storage>(shape, given(), o.matrix(), lse.vector(), d_o.matrix(),
                                      Write::replace, d_sinks.vector());
    attention_backward_sinks(shape, given_wide(), o.wide.matrix(), lse.vector(), d_o.wide.matrix(),
                             Write::replace, expected.vector());
    expect_close(d_sinks, expected);
  }

  AttentionShape shape;
  int tokens, width;
  PairOf<Storage> qkv, o, d_o, dqkv;
  Array lse, lse_wide;
  PairOf<Storage> sinks;
  bool has_sinks = false;
};

// Less than a tile, whole blocks and spans, one more, odd sizes; shared key heads, also of another
// rank's part.
TYPED_TEST(NarrowKernels, Attention) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, 1, 1}, AttentionShape{2, 7, 3, 5}, AttentionShape{1, 64, 2, 32},
        AttentionShape{2, 130, 4, 24, 2, 2}, AttentionShape{1, 257, 1, 64},
        AttentionShape{1, 333, 2, 80, 1, 2}, AttentionShape{2, 33, 2, 8, 2, 2, 2},
        AttentionShape{1, 128, 1, 128}}) {
    SCOPED_TRACE(testing::Message() << shape.seq_len << " x " << shape.head_dim);
    for (const bool has_sinks : {false, true}) {
      if (has_sinks && shape.seq_len > 150) continue;  // an emulated device takes long for these
      NarrowAttention<TypeParam> c(shape);
      c.has_sinks = has_sinks;
      c.expect_wide();
    }
  }
}

// A rank's gradients of keys are rounded before they are summed.
TYPED_TEST(NarrowKernels, AttentionOfRanksThatShareASequence) {
  for (const auto& [ranks, T] : {std::pair{2, 12}, std::pair{3, 150}, std::pair{2, 640}})
    for (const int window : {0, 40}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, window " << window);
      NarrowAttention<TypeParam> c({1, T, 2, 24, 1, 2, 0, window});
      c.has_sinks = window > 0;
      const std::vector<std::int32_t> begins = random_begins(c.shape, 90);
      if (window > 0) c.shape.documents = {begins.data()};
      c.expect_wide();
      const SharedAttention all =
          attend_shared<TypeParam>(c.shape, c.qkv.matrix(), c.d_o.matrix(), c.given(), ranks);
      const float bound = 8.0f * half_a_place<TypeParam>;
      EXPECT_LT(reference::relative_error(all.o, c.o.wide.doubles()), bound);
      EXPECT_LT(reference::relative_error(all.lse, c.lse_wide.doubles()), bound);
      EXPECT_LT(reference::relative_error(all.dqkv, c.dqkv.wide.doubles()), bound);
    }
}

TYPED_TEST(NarrowKernels, AttentionWithinWindowsAndDocuments) {
  for (const int window : {0, 1, 31, 33, 100, 300})
    for (const int longest : {0, 1, 50, 200}) {
      SCOPED_TRACE(testing::Message() << "window " << window << ", documents " << longest);
      NarrowAttention<TypeParam> c({2, 300, 2, 24, 1, 2, 0, window});
      const std::vector<std::int32_t> begins =
          longest > 0 ? random_begins(c.shape, longest) : std::vector<std::int32_t>();
      if (longest > 0) c.shape.documents = {begins.data()};
      c.expect_wide();
    }
}

// Scores of some units, of which a cap of 2 leaves little; scales below and above one.
TYPED_TEST(NarrowKernels, AttentionWithCapsAndScales) {
  for (const float cap : {0.0f, 2.0f, 50.0f})
    for (const float scale : {0.3f, 1.25f}) {
      SCOPED_TRACE(testing::Message() << "cap " << cap << ", scale " << scale);
      NarrowAttention<TypeParam>({1, 200, 2, 24, 1, 2, 0, 90, scale, cap}).expect_wide();
    }
}

// Values that are not finite stay in their document.
TYPED_TEST(NarrowKernels, AttentionThatIsNotFiniteSpoilsNoOtherDocument) {
  NarrowAttention<TypeParam> c({1, 333, 2, 12});
  const std::vector<std::int32_t> begins = random_begins(c.shape, 60);
  c.shape.documents = {begins.data()};
  const auto width = std::size_t(c.shape.width());
  for (std::size_t i = 0; i < width; ++i) c.qkv.narrow[100 * width + i] = NAN;
  c.forward(), c.backward();
  for (std::size_t n = 0; n < 333; ++n)
    for (std::size_t i = 0; i < width; ++i) {
      const bool finite = std::isfinite(float(c.o.narrow[n * 24 + i % 24])) &&
                          std::isfinite(float(c.dqkv.narrow[n * width + i]));
      if (begins[n] != begins[100]) {
        ASSERT_TRUE(finite) << n;
      } else if (n == 100) {
        ASSERT_FALSE(finite);
      }
    }
}

TYPED_TEST(NarrowKernels, AttentionHasTheSameBitsForAnyNumberOfThreads) {
  std::vector<std::vector<TypeParam>> found;
  for (const int threads : {1, 3}) {
    use_threads(threads);
    NarrowAttention<TypeParam> c({2, 150, 6, 40, 2, 3});
    c.forward(), c.backward();
    found.push_back(c.o.narrow), found.push_back(c.dqkv.narrow);
  }
  use_threads(1);
  const auto same_bits = [](const TypeParam& a, const TypeParam& b) { return a.bits == b.bits; };
  for (const std::size_t i : {0, 1})
    EXPECT_TRUE(std::equal(found[i].begin(), found[i].end(), found[i + 2].begin(), same_bits));
}

TYPED_TEST(NarrowKernels, CrossEntropy) {
  using Pair = PairOf<TypeParam>;
  Pair logits(6, 5000, 1);
  const std::vector<std::int32_t> targets{0, 4999, -1, 7, 2500, 7};
  for (const bool with_gradient : {false, true}) {
    const auto loss = std::make_unique<double>(), expected = std::make_unique<double>();
    cross_entropy<TypeParam>(logits.matrix(), reference::view(targets), 0.2f, with_gradient,
                             Write::replace, loss.get());
    cross_entropy(logits.wide.matrix(), reference::view(targets), 0.2f, with_gradient,
                  Write::replace, expected.get());
    EXPECT_NEAR(*loss, *expected, 1e-6 * *expected);
  }
  expect_rounded(logits);
}

TYPED_TEST(NarrowKernels, Embedding) {
  using Pair = PairOf<TypeParam>;
  Pair table(11, 20, 1), positions(4, 20, 2), x(8, 20, 3);
  const std::vector<std::int32_t> tokens{3, 3, 0, 10, 5, 3, 1, 0};
  embedding_forward<TypeParam>(reference::view(tokens), table.matrix(), positions.matrix(),
                               x.matrix());
  embedding_forward(reference::view(tokens), table.wide.matrix(), positions.wide.matrix(),
                    x.wide.matrix());
  expect_rounded(x);

  Pair dx(8, 20, 4);
  Array found = random_array(11, 20, 5), expected = found, d_positions = random_array(4, 20, 6),
        d_positions_wide = d_positions;
  embedding_backward<TypeParam>(reference::view(tokens), dx.matrix(), found.matrix(),
                                d_positions.matrix());
  embedding_backward(reference::view(tokens), dx.wide.matrix(), expected.matrix(),
                     d_positions_wide.matrix());
  expect_close(found, expected);
  expect_close(d_positions, d_positions_wide);
}

// Steps too small for the format still add up in the master weight.
TYPED_TEST(NarrowKernels, MasterWeightsKeepWhatRoundingLoses) {
  constexpr float place = half_a_place<TypeParam>;  // the whole one below 1
  Array grad(1, 3), master(1, 3), m(1, 3), v(1, 3);
  for (int i = 0; i < 3; ++i) grad(0, i) = 1.0f, master(0, i) = 1.0f, m(0, i) = v(0, i) = 0.0f;
  std::vector<TypeParam> weight(3, TypeParam(1.0f));
  // Without memory (both betas 0) every step is lr.
  const Update update{
      .lr = place / 4, .beta1 = 0.0, .beta2 = 0.0, .eps = 0.0f, .weight_decay = 0.0f};
  const UpdatedElements elements{.count = 3,
                                 .grad = grad.vector().data(),
                                 .weight = master.vector().data(),
                                 .state = {m.vector().data(), v.vector().data()},
                                 .rounded = weight.data()};
  for (int i = 0; i < 8; ++i) update_kernels("adamw").here(update, nullptr, elements);
  EXPECT_EQ(master(0, 0), 1.0f - 2 * place);
  EXPECT_EQ(float(weight[0]), 1.0f - 2 * place);
}

}  // namespace
}  // namespace brume::kernels
