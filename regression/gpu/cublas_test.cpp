/// @file Linear layers on a device against the plain sums, in each number format.
#include "kernels/cublas.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gpu.hpp"

namespace brume::kernels {
namespace {

constexpr std::int64_t tokens = 96, in = 80, out = 112;

std::vector<float> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(std::size_t(count), 0.0f);
  for (float& value : values) value = uniform(random);
  return values;
}

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

class Cublas : public testing::Test {
 protected:
  void SetUp() override { BRUME_NEEDS_GPU(); }
};

class Products : public Cublas, public testing::WithParamInterface<ElementType> {};
INSTANTIATE_TEST_SUITE_P(Cublas, Products, testing::Values(ElementType::fp32, ElementType::tf32));

TEST_P(Products, OfALinearLayerMatchPlainSums) {
  const test::BoundStream stream;
  device::Memory workspace(32 << 20);
  CublasLinear linear(workspace.data(), workspace.bytes());
  const auto x = random_values(tokens * in, 1), w = random_values(out * in, 2),
             dy = random_values(tokens * out, 3), old = random_values(out * in, 4);
  const test::OnDevice dx_x(x), dx_w(w), dx_dy(dy), y(std::vector<float>(tokens * out)),
      dx(std::vector<float>(tokens * in)), dw(old);
  const auto matrix = [](const test::OnDevice& m, std::int64_t rows, std::int64_t columns) {
    return DeviceMatrix{m.data(), rows, columns, GetParam()};
  };
  linear.forward(matrix(dx_x, tokens, in), matrix(dx_w, out, in), nullptr, {},
                 matrix(y, tokens, out), device::cuda_stream());
  linear.backward_input(matrix(dx_dy, tokens, out), matrix(dx_w, out, in), Write::replace,
                        matrix(dx, tokens, in), device::cuda_stream());
  linear.backward_weight(matrix(dx_dy, tokens, out), matrix(dx_x, tokens, in), Write::accumulate,
                         matrix(dw, out, in), nullptr, device::cuda_stream());

  std::vector<double> y_sum(tokens * out), dx_sum(tokens * in), dw_sum(old.begin(), old.end());
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) {
        const auto no = std::size_t(n * out + o), ni = std::size_t(n * in + i),
                   oi = std::size_t(o * in + i);
        y_sum[no] += double(x[ni]) * w[oi];
        dx_sum[ni] += double(dy[no]) * w[oi];
        dw_sum[oi] += double(dy[no]) * x[ni];
      }
  // TF32 keeps 10 bits of each factor, of which about 100 products are summed.
  const bool rounds = GetParam() == ElementType::tf32;
  const double most = rounds ? 2e-2 : 1e-4;
  EXPECT_LT(largest_difference(y.values(), y_sum), most);
  EXPECT_LT(largest_difference(dx.values(), dx_sum), most);
  EXPECT_LT(largest_difference(dw.values(), dw_sum), most);
  EXPECT_EQ(largest_difference(y.values(), y_sum) > 1e-4, rounds);
}

TEST_F(Cublas, BiasesAndResidualsGoWithTheProduct) {
  const test::BoundStream stream;
  device::Memory workspace(32 << 20);
  CublasLinear linear(workspace.data(), workspace.bytes());
  const auto x = random_values(tokens * in, 5), w = random_values(out * in, 6),
             bias = random_values(out, 7), residual = random_values(tokens * out, 8),
             dy = random_values(tokens * out, 9);
  const test::OnDevice on_x(x), on_w(w), on_bias(bias), on_residual(residual), on_dy(dy),
      y(std::vector<float>(tokens * out)), dw(std::vector<float>(out * in)),
      db(std::vector<float>(out, 1.0f));
  EXPECT_TRUE(linear.forward({on_x.data(), tokens, in}, {on_w.data(), out, in}, on_bias.data(),
                             {on_residual.data(), tokens, out}, {y.data(), tokens, out},
                             device::cuda_stream()));
  EXPECT_TRUE(linear.backward_weight({on_dy.data(), tokens, out}, {on_x.data(), tokens, in},
                                     Write::replace, {dw.data(), out, in}, db.data(),
                                     device::cuda_stream()));
  std::vector<double> y_sum(residual.begin(), residual.end()), dw_sum(out * in), db_sum(out);
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t o = 0; o < out; ++o) {
      const auto no = std::size_t(n * out + o);
      y_sum[no] += bias[std::size_t(o)];
      db_sum[std::size_t(o)] += dy[no];
      for (std::int64_t i = 0; i < in; ++i) {
        y_sum[no] += double(x[std::size_t(n * in + i)]) * w[std::size_t(o * in + i)];
        dw_sum[std::size_t(o * in + i)] += double(dy[no]) * x[std::size_t(n * in + i)];
      }
    }
  EXPECT_LT(largest_difference(y.values(), y_sum), 1e-4);
  EXPECT_LT(largest_difference(dw.values(), dw_sum), 1e-4);
  EXPECT_LT(largest_difference(db.values(), db_sum), 1e-4);
}

TEST_F(Cublas, GeluGoesWithProducts) {
  const test::BoundStream stream;
  device::Memory workspace(32 << 20);
  CublasLinear linear(workspace.data(), workspace.bytes());
  const auto x = random_values(tokens * in, 5), w = random_values(out * in, 6),
             bias = random_values(out, 7), dy = random_values(tokens * in, 8);
  const test::OnDevice on_x(x), on_w(w), on_bias(bias), on_dy(dy),
      behind(random_values(in * out, 9)), u(std::vector<float>(tokens * out)),
      a(std::vector<float>(tokens * out)), du(std::vector<float>(tokens * out)),
      plain(std::vector<float>(tokens * out));
  // An algorithm may be missing for fp32, which then is done in passes.
  if (!linear.gelu_forward({on_x.data(), tokens, in}, {on_w.data(), out, in}, on_bias.data(),
                           {u.data(), tokens, out}, {a.data(), tokens, out},
                           device::cuda_stream()) ||
      !linear.gelu_backward({on_dy.data(), tokens, in}, {behind.data(), in, out},
                            {u.data(), tokens, out}, {du.data(), tokens, out},
                            device::cuda_stream()))
    GTEST_SKIP() << "no algorithm";
  linear.backward_input({on_dy.data(), tokens, in}, {behind.data(), in, out}, Write::replace,
                        {plain.data(), tokens, out}, device::cuda_stream());
  std::vector<double> u_sum(tokens * out), activated(tokens * out), slope(tokens * out);
  const std::vector<float> product = plain.values();
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t o = 0; o < out; ++o) {
      const auto no = std::size_t(n * out + o);
      double z = bias[std::size_t(o)];
      for (std::int64_t i = 0; i < in; ++i)
        z += double(x[std::size_t(n * in + i)]) * w[std::size_t(o * in + i)];
      const auto gelu = [](double at) {
        return 0.5 * at * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (at + 0.044715 * at * at * at)));
      };
      u_sum[no] = z;
      activated[no] = gelu(z);
      slope[no] = product[no] * (gelu(z + 1e-5) - gelu(z - 1e-5)) / 2e-5;
    }
  EXPECT_LT(largest_difference(u.values(), u_sum), 1e-4);
  EXPECT_LT(largest_difference(a.values(), activated), 1e-4);
  EXPECT_LT(largest_difference(du.values(), slope), 1e-3);
}

}  // namespace
}  // namespace brume::kernels
