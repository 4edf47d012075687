#include "kernels/optimizers.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace brume::kernels
