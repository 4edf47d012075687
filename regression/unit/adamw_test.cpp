#include "kernels/optimizers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "reference/adamw.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

/// Of a gradient of norm 2, which is cut to 1.4: to 0.7 of itself.
const auto squares = std::make_unique<double>(4.0);

Update step_number(int t, double beta2 = 0.95) {
  return {.lr = 1e-2f,
          .beta1 = 0.9,
          .beta2 = beta2,
          .eps = 1e-8f,
          .weight_decay = 0.1f,
          .t = double(t),
          .clip_norm = 1.4};
}

const UpdateKernels adamw = update_kernels("adamw");

/// Weights and zero moments.
struct Case {
  explicit Case(int count) : weight{random_array(1, count, 1)}, m(1, count), v(1, count) {
    for (int i = 0; i < count; ++i) m(0, i) = v(0, i) = 0.0f;
  }
  UpdatedElements elements(Array& grad) {
    return {.count = std::int64_t(grad.vector().size()),
            .grad = grad.vector().data(),
            .weight = weight.vector().data(),
            .state = {m.vector().data(), v.vector().data()}};
  }
  void step(int t, Array& grad, double beta2 = 0.95) {
    adamw.here(step_number(t, beta2), squares.get(), elements(grad));
  }

  Array weight, m, v;
};

// The twin calculates in double precision. With a beta2 near 1 nearly all bits of 1 - beta2 are
// lost where it is made from the rounded beta2.
TEST(AdamW, EqualsItsTwinOverFiveSteps) {
  for (const double beta2 : {0.95, 0.999, 0.9999})
    for (const int count : {1, 15, 100, 4097, 10000}) {
      Case c(count);
      reference::Doubles weight = c.weight.doubles(), m = c.m.doubles(), v = c.v.doubles();
      for (int t = 1; t <= 5; ++t) {
        Array grad = random_array(1, count, 10 + t);
        reference::adamw_step(step_number(t, beta2), 1.4 / (2.0 + 1e-6), grad.doubles(), weight, m,
                              v);
        c.step(t, grad, beta2);
      }
      EXPECT_LT(reference::relative_error(c.weight.values(), weight), 1e-6) << beta2;
      EXPECT_LT(reference::relative_error(c.m.values(), m), 1e-6) << beta2;
      EXPECT_LT(reference::relative_error(c.v.values(), v), 1e-6) << beta2;
    }
}

// At t = 1 the corrected moments are g and g^2, so w moves by lr in the direction of -g, and
// decays.
TEST(AdamW, FirstStepMovesByTheLearningRate) {
  Case c(2);
  c.weight(0, 0) = 1.0f, c.weight(0, 1) = -2.0f;
  Array grad(1, 2);
  grad(0, 0) = 0.5f, grad(0, 1) = -3.0f;
  c.step(1, grad);
  EXPECT_NEAR(c.weight(0, 0), 1.0 * (1 - 1e-3) - 1e-2, 1e-6);
  EXPECT_NEAR(c.weight(0, 1), -2.0 * (1 - 1e-3) + 1e-2, 1e-6);
}

TEST(AdamW, WithoutGradientOnlyDecayActs) {
  Case c(1);
  c.weight(0, 0) = 1.0f;
  Array grad(1, 1);
  grad(0, 0) = 0.0f;
  c.step(1, grad);
  EXPECT_FLOAT_EQ(c.weight(0, 0), 0.999f);
}

// Gradients no longer than the norm to cut to stay as they are, and so do all when nothing is cut.
TEST(AdamW, CutsOnlyWhatIsTooLong) {
  Update step = step_number(1);
  const auto just_fits = std::make_unique<double>(1.9);
  const auto m_after = [&](double clip_norm, const double* squares) {
    Case c(1);
    Array grad(1, 1);
    grad(0, 0) = 1.0f;
    step.clip_norm = clip_norm;
    adamw.here(step, squares, c.elements(grad));
    return c.m(0, 0) / float(1.0 - step.beta1);
  };
  EXPECT_NEAR(m_after(1.4, squares.get()), 0.7, 1e-6);
  EXPECT_FLOAT_EQ(m_after(1.4, just_fits.get()), 1.0f);
  EXPECT_FLOAT_EQ(m_after(0.0, nullptr), 1.0f);
}

// A power of two times the gradient, whose norm is cut or is not: the same bits.
TEST(AdamW, TakesTheLossScaleOutOfTheGradient) {
  for (const double norm : {2.0, 1.0}) {
    const auto weights_for = [&](float scale) {
      Case c(100);
      const auto squares = std::make_unique<double>(norm * norm * scale * scale);
      for (int t = 1; t <= 3; ++t) {
        Array grad = random_array(1, 100, 10 + t);
        for (int i = 0; i < 100; ++i) grad(0, i) *= scale;
        Update step = step_number(t);
        step.loss_scale = scale;
        adamw.here(step, squares.get(), c.elements(grad));
      }
      return c.weight.values();
    };
    EXPECT_EQ(weights_for(65536.0f), weights_for(1.0f));
  }
}

// By a device's kernels too, as `portable.adamw` shows: which one steps a parameter changes no bit.
TEST(UpdateKernels, TheHostStepsToTheSameBits) {
  for (const auto& [name, count] : {std::pair("adamw", 1),
                                    {"adamw", 100},
                                    {"adamw", 4097},
                                    {"adamw", 20000},
                                    {"lion", 4097},
                                    {"sgd", 4097}}) {
    const UpdateKernels kernels = update_kernels(name);
    Case here(count), host(count);
    std::vector<bfloat16> rounded_here(std::size_t(count), 0.0f), rounded_host = rounded_here;
    for (int t = 1; t <= 4; ++t) {
      Array grad = random_array(1, count, 10 + t);
      UpdatedElements all_here = here.elements(grad), all_host = host.elements(grad);
      if (t % 2 == 1)
        all_here.rounded = rounded_here.data(), all_host.rounded = rounded_host.data();
      kernels.here(step_number(t), squares.get(), all_here);
      kernels.on_host(step_number(t), squares.get(), all_host);
    }
    EXPECT_EQ(here.weight.values(), host.weight.values());
    EXPECT_EQ(here.m.values(), host.m.values());
    EXPECT_EQ(here.v.values(), host.v.values());
    for (int i = 0; i < count; ++i)
      EXPECT_EQ(float(rounded_here[std::size_t(i)]), float(rounded_host[std::size_t(i)]));
  }
}

// --- moments in 16 bits -------------------------------------------------------------------------

/// Weights, and moments in bf16 that begin at zero.
struct Narrow16 {
  explicit Narrow16(std::size_t count)
      : weight(count, 0.0f), m(count, bfloat16(0.0f)), v(count, bfloat16(0.0f)) {}
  UpdatedElements elements(const float* grad, std::size_t first, std::size_t count) {
    return {.count = std::int64_t(count),
            .grad = grad + first,
            .weight = weight.data() + first,
            .state = {m.data() + first, v.data() + first}};
  }
  std::vector<float> weight;
  std::vector<bfloat16> m, v;
};

// Each step changes v by less than half a rounding, so that v would stop at a third of what it
// should be if it were rounded to the nearest.
TEST(MomentsOf16Bits, StayRightOnAverage) {
  constexpr std::size_t count = 2000;
  const UpdateKernels kernels = update_kernels("adamw", Moments::bf16);
  const std::vector<float> grad(count, 1.0f);
  for (const UpdateKernel kernel : {kernels.here, kernels.on_host}) {
    Narrow16 c(count);
    Update update = step_number(1, 0.999);
    update.clip_norm = 0.0;
    for (int t = 1; t <= 3000; ++t) {
      update.t = t;
      UpdatedElements all = c.elements(grad.data(), 0, count);
      all.numbers = {.before = 5};
      kernel(update, nullptr, all);
    }
    double sum_m = 0.0, sum_v = 0.0;
    for (std::size_t i = 0; i < count; ++i) sum_m += float(c.m[i]), sum_v += float(c.v[i]);
    EXPECT_NEAR(sum_m / count, 1.0, 1e-3);
    EXPECT_NEAR(sum_v / count, 1.0 - std::pow(0.999, 3000), 2e-3);
  }
}

// The whole [6, 10] at once; two parts of rows; two parts of columns, whose elements have their
// numbers in the whole.
TEST(MomentsOf16Bits, DependOnTheElementsNotOnTheParts) {
  constexpr std::size_t rows = 6, columns = 10, count = rows * columns;
  const std::vector<float> grad = random_array(1, int(count), 3).values();
  for (const char* name : {"adamw", "lion", "sgd"}) {
    const UpdateKernels kernels = update_kernels(name, Moments::bf16);
    for (const UpdateKernel kernel : {kernels.here, kernels.on_host}) {
      Narrow16 whole(count), cut(count);
      std::vector<float> part_grad(count);
      for (int t = 1; t <= 5; ++t) {
        UpdatedElements all = whole.elements(grad.data(), 0, count);
        all.numbers.before = 1000;
        kernel(step_number(t), squares.get(), all);
        for (const std::size_t first : {std::size_t{0}, std::size_t{4}}) {
          const std::size_t width = first == 0 ? 4 : 6, size = rows * width;
          Narrow16 part(size);
          const auto at = [&](std::size_t i) { return i / width * columns + first + i % width; };
          for (std::size_t i = 0; i < size; ++i) {
            part.weight[i] = cut.weight[at(i)], part.m[i] = cut.m[at(i)], part.v[i] = cut.v[at(i)];
            part_grad[i] = grad[at(i)];
          }
          // In two pieces, as of two shards.
          for (const auto& [begin, end] : {std::pair(std::size_t{0}, std::size_t{7}), {7, size}}) {
            UpdatedElements piece = part.elements(part_grad.data(), begin, end - begin);
            piece.numbers = {.first = std::int64_t(begin),
                             .before = std::int64_t(1000 + first),
                             .run = std::int64_t(width),
                             .stride = columns};
            kernel(step_number(t), squares.get(), piece);
          }
          for (std::size_t i = 0; i < size; ++i)
            cut.weight[at(i)] = part.weight[i], cut.m[at(i)] = part.m[i], cut.v[at(i)] = part.v[i];
        }
      }
      EXPECT_EQ(whole.weight, cut.weight) << name;
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(whole.m[i].bits, cut.m[i].bits) << name;
        EXPECT_EQ(whole.v[i].bits, cut.v[i].bits) << name;
      }
    }
  }
}

TEST(MomentsOf16Bits, KeepWhatIsNotFinite) {
  Narrow16 c(2);
  const std::vector<float> grad{INFINITY, std::nanf("")};
  Update update = step_number(1);
  update.clip_norm = 0.0;
  update_kernels("adamw", Moments::bf16).here(update, nullptr, c.elements(grad.data(), 0, 2));
  EXPECT_TRUE(std::isinf(float(c.m[0])) && std::isinf(float(c.v[0])));
  EXPECT_TRUE(std::isnan(float(c.m[1])) && std::isnan(float(c.v[1])));
}

TEST(AdamW, RepeatsBitwiseAlsoAmongThreads) {
  reference::expect_same_bits([] {
    Case c(9001);
    Array grad = random_array(1, 9001, 2);
    for (int t = 1; t <= 3; ++t) c.step(t, grad);
    return c.weight.values();
  });
}

// --- moments in 8 bits --------------------------------------------------------------------------

/// Weights, and moments in blocks that begin at zero.
struct Blocked {
  explicit Blocked(std::size_t count, std::size_t fields = 2) : weight(count, 0.0f) {
    for (std::size_t f = 0; f < fields; ++f)
      blocks.emplace_back(count / quantized_block * block_bytes(Quantization::float8),
                          std::byte{0});
  }
  UpdatedElements elements(const float* grad, std::size_t first, std::size_t count) {
    UpdatedElements all{.count = std::int64_t(count),
                        .grad = grad + first,
                        .weight = weight.data() + first,
                        .formats = {Quantization::float8, Quantization::ufloat8}};
    for (std::size_t f = 0; f < blocks.size(); ++f)
      all.state[f] = blocks[f].data() + first / quantized_block * block_bytes(Quantization::float8);
    return all;
  }
  float value(std::size_t f, std::size_t i) const {
    const Quantization formats[] = {Quantization::float8, Quantization::ufloat8};
    std::array<float, quantized_block> values;
    dequantize_block(formats[f],
                     blocks[f].data() + i / quantized_block * block_bytes(Quantization::float8),
                     values);
    return values[i % quantized_block];
  }
  std::vector<float> weight;
  std::vector<std::vector<std::byte>> blocks;
};

/// The mixer of kernels::drawn, written once more.
std::uint32_t mixed(std::uint64_t number, std::uint32_t key) {
  std::uint32_t x = std::uint32_t(number) ^ key;
  x += std::uint32_t(number >> 32) * 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

/// A table of a format's values from 0 to 1.
std::vector<float> table(int fraction_bits) {
  std::vector<float> values;
  const int steps = 1 << fraction_bits;
  for (int k = 0; k < steps; ++k) values.push_back(std::ldexp(float(k), -14 - fraction_bits));
  for (int exponent = -14; exponent < 0; ++exponent)
    for (int k = 0; k < steps; ++k)
      values.push_back(std::ldexp(float(steps + k), exponent - fraction_bits));
  values.push_back(1.0f);
  return values;
}

/// One step of AdamW by the formula, on moments that are kept as a table's numbers.
struct Twin {
  std::vector<float> weight, m, v;

  void round(std::vector<float>& values, int fraction_bits, std::uint64_t turn,
             std::uint64_t before) const {
    const std::vector<float> codes = table(fraction_bits);
    for (std::size_t first = 0; first < values.size(); first += quantized_block) {
      float scale = 0.0f;
      for (int i = 0; i < quantized_block; ++i)
        scale = std::max(scale, std::abs(values[first + std::size_t(i)]));
      for (std::size_t i = first; i < first + quantized_block; ++i) {
        const float x = scale > 0.0f ? std::abs(values[i]) / scale : 0.0f;
        std::size_t code = std::size_t(std::ranges::upper_bound(codes, x) - codes.begin()) - 1;
        // The place between both neighbours, in as many bits as an octave's step has.
        const std::uint32_t chance = mixed(before + i, mixed(turn, 0));
        if (code + 1 < codes.size()) {
          const double place = (double(x) - codes[code]) / (double(codes[code + 1]) - codes[code]);
          const int drawn_bits = x < 0x1p-14f ? 19 : 23 - fraction_bits;
          code += place + std::ldexp(double(chance >> (32 - drawn_bits)), -drawn_bits) >= 1.0;
        }
        if (fraction_bits == 4 && code == 0 && x > 0.0f) code = 1;
        values[i] = std::copysign(scale * codes[code], values[i]);
      }
    }
  }

  void step(const Update& update, float grad_scale, const float* grad, std::uint64_t before) {
    const auto turn = std::uint64_t(update.t) * 4;
    const float kept = 1.0f - update.lr * update.weight_decay;
    const float length = update.lr / float(1.0 - std::pow(update.beta1, update.t));
    const float spread = 1.0f / float(1.0 - std::pow(update.beta2, update.t));
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const float g = grad_scale * grad[i];
      m[i] = float(update.beta1) * m[i] + float(1.0 - update.beta1) * g;
      v[i] = float(update.beta2) * v[i] + float(1.0 - update.beta2) * g * g;
      weight[i] = kept * weight[i] - length * m[i] / (std::sqrt(spread * v[i]) + update.eps);
    }
    round(m, 3, turn, before), round(v, 4, turn + 1, before);
  }
};

// Bit by bit, of gradients whose sizes lie far apart, some of them 0.
TEST(MomentsOf8Bits, EqualTheirTwin) {
  constexpr std::size_t count = 5 * 4096 + 128;
  constexpr std::uint64_t before = (std::uint64_t{3} << 32) + 11;
  const UpdateKernels kernels = update_kernels("adamw", Moments::fp8);
  for (const UpdateKernel kernel : {kernels.here, kernels.on_host}) {
    Blocked c(count);
    Twin twin{c.weight, std::vector<float>(count, 0.0f), std::vector<float>(count, 0.0f)};
    for (int t = 1; t <= 6; ++t) {
      std::vector<float> grad = random_array(1, int(count), 20 + t).values();
      for (std::size_t i = 0; i < count; ++i)
        grad[i] = i % 7 == 0 ? 0.0f : std::ldexp(grad[i], -int(i * 31 % 17));
      UpdatedElements all = c.elements(grad.data(), 0, count);
      all.numbers.before = std::int64_t(before);
      kernel(step_number(t), squares.get(), all);
      twin.step(step_number(t), float(1.4 / (2.0 + 1e-6)), grad.data(), before);
      std::size_t different = 0;
      for (std::size_t i = 0; i < count; ++i)
        different += c.weight[i] != twin.weight[i] || c.value(0, i) != twin.m[i] ||
                     c.value(1, i) != twin.v[i];
      EXPECT_EQ(different, 0u) << "at step " << t;
    }
  }
}

// Two fields of a constant gradient, of which each step changes the second by less than a rounding.
TEST(MomentsOf8Bits, StayRightOnAverage) {
  constexpr std::size_t count = 64 * 64;
  const UpdateKernels kernels = update_kernels("adamw", Moments::fp8);
  std::vector<float> grad(count, 0.3f);
  for (std::size_t i = 0; i < count; i += quantized_block) grad[i] = 1.0f;
  for (const UpdateKernel kernel : {kernels.here, kernels.on_host}) {
    Blocked c(count);
    Update update = step_number(1, 0.999);
    update.clip_norm = 0.0;
    for (int t = 1; t <= 2000; ++t) {
      update.t = t;
      kernel(update, nullptr, c.elements(grad.data(), 0, count));
    }
    double sum_m = 0.0, sum_v = 0.0;
    for (std::size_t i = 0; i < count; ++i)
      if (i % quantized_block != 0) sum_m += c.value(0, i), sum_v += c.value(1, i);
    const double others = count - count / quantized_block;
    EXPECT_NEAR(sum_m / others, 0.3, 2e-3);
    EXPECT_NEAR(sum_v / others, 0.09 * (1.0 - std::pow(0.999, 2000)), 1e-3);
    EXPECT_NEAR(c.value(1, 0), 1.0 - std::pow(0.999, 2000), 1e-4);  // the scale is exact
  }
}

// The whole [6, 128] at once; two parts of columns, each in two shards.
TEST(MomentsOf8Bits, DependOnTheElementsNotOnTheParts) {
  constexpr std::size_t rows = 6, columns = 128, count = rows * columns, width = 64;
  const std::vector<float> grad = random_array(1, int(count), 3).values();
  for (const auto& [name, fields] : {std::pair("adamw", 2), {"lion", 1}, {"sgd", 1}}) {
    const UpdateKernels kernels = update_kernels(name, Moments::fp8);
    for (const UpdateKernel kernel : {kernels.here, kernels.on_host}) {
      Blocked whole(count, std::size_t(fields));
      std::vector<Blocked> parts(2, Blocked(rows * width, std::size_t(fields)));
      for (int t = 1; t <= 5; ++t) {
        UpdatedElements all = whole.elements(grad.data(), 0, count);
        all.numbers.before = 1000;
        kernel(step_number(t), squares.get(), all);
        for (std::size_t p = 0; p < 2; ++p) {
          std::vector<float> part_grad;
          for (std::size_t i = 0; i < rows * width; ++i)
            part_grad.push_back(grad[i / width * columns + p * width + i % width]);
          for (const auto& [begin, end] :
               {std::pair(std::size_t{0}, 2 * width), {2 * width, rows * width}}) {
            UpdatedElements piece = parts[p].elements(part_grad.data(), begin, end - begin);
            piece.numbers = {.first = std::int64_t(begin),
                             .before = std::int64_t(1000 + p * width),
                             .run = std::int64_t(width),
                             .stride = columns};
            kernel(step_number(t), squares.get(), piece);
          }
        }
      }
      for (std::size_t i = 0; i < count; ++i) {
        const Blocked& part = parts[i % columns / width];
        const std::size_t at = i / columns * width + i % width;
        EXPECT_EQ(whole.weight[i], part.weight[at]) << name;
        for (std::size_t f = 0; f < std::size_t(fields); ++f)
          EXPECT_EQ(whole.value(f, i), part.value(f, at)) << name;
      }
    }
  }
}

}  // namespace
}  // namespace brume::kernels
