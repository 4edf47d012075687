#include "kernels/host/tiles.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/host/gemm.hpp"

namespace brume::kernels {
namespace {

std::vector<bfloat16> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bfloat16> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.emplace_back(float(std::int32_t(random())) * 0x1p-31f);
  return values;
}

/// A product of m x n sums of k terms, with rows of both factors `gap` elements longer.
struct Product {
  Product(std::int64_t m_, std::int64_t n_, std::int64_t k_, Transpose of_a, Transpose of_b)
      : m(m_),
        n(n_),
        k(k_),
        a_stride((of_a == Transpose::no ? k : m) + gap),
        b_stride((of_b == Transpose::no ? n : k) + gap),
        a_values(random_values((of_a == Transpose::no ? m : k) * a_stride, 1)),
        b_values(random_values((of_b == Transpose::no ? k : n) * b_stride, 2)),
        a{a_values.data(), a_stride, of_a},
        b{b_values.data(), b_stride, of_b} {}

  double sum(std::int64_t i, std::int64_t j) const {
    double sum = 0.0;
    for (std::int64_t p = 0; p < k; ++p)
      sum += double(a.transpose == Transpose::no ? a.data[i * a_stride + p]
                                                 : a.data[p * a_stride + i]) *
             double(b.transpose == Transpose::no ? b.data[p * b_stride + j]
                                                 : b.data[j * b_stride + p]);
    return sum;
  }

  static constexpr std::int64_t gap = 6;
  std::int64_t m, n, k, a_stride, b_stride;
  std::vector<bfloat16> a_values, b_values;
  FactorOf<bfloat16> a, b;
};

constexpr Transpose both[] = {Transpose::no, Transpose::yes};

// One block, odd sizes, and more than a piece in each direction, of which some rows are looked at.
TEST(Tiles, ProductsEqualSums) {
  if (!has_tile_registers()) GTEST_SKIP() << "this processor has none";
  struct Sizes {
    std::int64_t m, n, k;
  };
  for (const auto& [m, n, k] :
       {Sizes{32, 32, 32}, Sizes{45, 70, 33}, Sizes{2081, 1057, 70}, Sizes{97, 33, 2100}})
    for (const Transpose of_a : both)
      for (const Transpose of_b : both)
        for (const Write write : {Write::replace, Write::accumulate}) {
          SCOPED_TRACE(testing::Message()
                       << m << " x " << n << " x " << k << ' ' << char(of_a) << char(of_b));
          const Product product(m, n, k, of_a, of_b);
          const std::int64_t stride = n + 3;
          std::vector<float> c(std::size_t(m * stride), 0.5f), row(std::size_t(n), 0.25f);
          gemm_blocks(m, n, k, product.a, product.b, write, c.data(), stride, row.data());
          const float before = write == Write::accumulate ? 0.75f : 0.25f;
          for (std::int64_t i = 0; i<m; i += m> 100 ? 173 : 1) {
            for (std::int64_t j = 0; j < n; ++j)
              ASSERT_NEAR(c[std::size_t(i * stride + j)], product.sum(i, j) + before,
                          1e-6 * std::sqrt(double(k)) + 1e-6)
                  << i << ", " << j;
            for (std::int64_t j = n; j < stride; ++j)
              ASSERT_EQ(c[std::size_t(i * stride + j)], 0.5f) << "behind row " << i;
          }
        }
}

TEST(Tiles, ProductsHaveTheSameBitsForAnyRowsAndThreads) {
  if (!has_tile_registers()) GTEST_SKIP() << "this processor has none";
  const Product product(700, 300, 1100, Transpose::no, Transpose::yes);
  const auto rows = [&](std::int64_t count, int threads) {
    omp_set_num_threads(threads);
    std::vector<float> c(std::size_t(count * 300));
    gemm_blocks<float>(count, 300, 1100, product.a, product.b, Write::replace, c.data(), 300,
                       nullptr);
    omp_set_num_threads(1);
    return c;
  };
  const std::vector<float> all = rows(700, 1);
  EXPECT_EQ(rows(700, 3), all);
  EXPECT_EQ(rows(40, 1), std::vector<float>(all.begin(), all.begin() + 40 * 300));
}

}  // namespace
}  // namespace brume::kernels
