#include "base/quantization.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/matmul.hpp"
#include "kernels/quantized.hpp"
#include "reference/arrays.hpp"  // binds a stream

namespace brume::kernels {
namespace {

using Block = std::array<float, quantized_block>;
constexpr Quantization formats[] = {Quantization::int8, Quantization::nf4};

std::vector<std::byte> quantized(Quantization format, const Block& values) {
  std::vector<std::byte> block(std::size_t(block_bytes(format)));
  quantize_block(format, values, block.data());
  return block;
}

Block dequantized(Quantization format, const std::vector<std::byte>& block) {
  Block values;
  dequantize_block(format, block.data(), values);
  return values;
}

Block random_block(std::mt19937& random, float scale) {
  std::normal_distribution<float> normal(0.0f, scale);
  Block values;
  for (float& value : values) value = normal(random);
  return values;
}

// Codes are in the order of their values, from 0 to 1 in 15 octaves and a linear part, and a value
// of a code has the same code again, whatever is drawn.
TEST(Float8, CodesAreOrderedAndStay) {
  for (const Quantization format : {Quantization::float8, Quantization::ufloat8}) {
    const int bits = fraction_bits(format), top = 15 << bits;
    EXPECT_EQ(float8_magnitude(0, bits), 0.0f);
    EXPECT_EQ(float8_magnitude(top, bits), 1.0f);
    EXPECT_EQ(float8_magnitude(1, bits), std::ldexp(1.0f, -14 - bits));
    for (int code = 0; code <= top; ++code) {
      const float value = float8_magnitude(code, bits);
      if (code > 0) {
        EXPECT_GT(value, float8_magnitude(code - 1, bits));
      }
      for (const std::uint32_t chance : {0u, 1u, to_nearest, 0xFFFFFFFFu})
        EXPECT_EQ(float8_code(value, bits, chance), code) << code;
    }
  }
}

// By chances that are as far apart as they can be: the share that is rounded up is the place
// between both neighbours.
TEST(Float8, IsRoundedUpAsOftenAsItIsNearer) {
  std::mt19937 random(3);
  for (const Quantization format : {Quantization::float8, Quantization::ufloat8})
    for (int trial = 0; trial < 300; ++trial) {
      const int bits = fraction_bits(format);
      const float x = std::ldexp(float(random() % 4096) / 4096.0f, -int(random() % 20));
      double sum = 0.0;
      constexpr int chances = 1024;
      for (int k = 0; k < chances; ++k)
        sum += float8_magnitude(float8_code(x, bits, std::uint32_t(k) << 22), bits);
      const int below = float8_code(x, bits, 0);
      const float step = float8_magnitude(below + 1, bits) - float8_magnitude(below, bits);
      EXPECT_NEAR(sum / chances, x, step / 500) << x;
    }
}

// The largest value of a block is its scale, so it is exact; what is not 0 stays so in ufloat8.
TEST(Float8, BlocksKeepTheirLargestValue) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 100; ++trial) {
    Block values = random_block(random, std::ldexp(1.0f, int(random() % 40) - 20));
    for (const Quantization format : {Quantization::float8, Quantization::ufloat8}) {
      if (format == Quantization::ufloat8)
        for (float& value : values) value *= value;
      const Block found = dequantized(format, quantized(format, values));
      float scale = 0.0f;
      for (const float value : values) scale = std::max(scale, std::abs(value));
      const float spacing = std::ldexp(1.0f, -fraction_bits(format));
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::abs(values[i]) == scale) {
          EXPECT_EQ(found[i], values[i]);
        }
        EXPECT_NEAR(found[i], values[i],
                    std::max(0.51f * spacing * std::abs(values[i]), scale * spacing * 0x1p-14f));
      }
      EXPECT_EQ(dequantized(format, quantized(format, found)), found);
    }
  }
  Block far{};
  far[0] = 1.0f, far[1] = 1e-30f;
  EXPECT_EQ(dequantized(Quantization::ufloat8, quantized(Quantization::ufloat8, far))[1],
            std::ldexp(1.0f, -18));
  far[2] = std::numeric_limits<float>::infinity();
  for (const float value : dequantized(Quantization::float8, quantized(Quantization::float8, far)))
    EXPECT_TRUE(std::isnan(value));
}

// A block is its scale, then a byte for each value, or for two with the first in its high bits.
TEST(Quantization, BlocksHaveTheirPublishedBytes) {
  Block values{};
  values[0] = 2.0f, values[1] = -2.0f, values[2] = 0.6f, values[3] = -0.5f;
  const std::vector<std::byte> nf4 = quantized(Quantization::nf4, values);
  ASSERT_EQ(nf4.size(), 36u);
  EXPECT_EQ(block_scale(nf4.data()), 2.0f);
  EXPECT_EQ(nf4[4], std::byte{0xf0});
  EXPECT_EQ(nf4[5], std::byte{0xb4});  // 0.3 is nearest to 0.338, -0.25 to -0.284
  EXPECT_EQ(nf4[6], std::byte{0x77});
  const std::vector<std::byte> int8 = quantized(Quantization::int8, values);
  ASSERT_EQ(int8.size(), 68u);
  EXPECT_EQ(block_scale(int8.data()), 2.0f);
  const int codes[] = {127, -127, 38, -32, 0};  // 38.1, -31.75
  for (int i = 0; i < 5; ++i) EXPECT_EQ(int(std::int8_t(int8[std::size_t(4 + i)])), codes[i]);
}

TEST(Quantization, ValuesHaveTheNearestCode) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const Block values = random_block(random, std::ldexp(1.0f, int(random() % 40) - 20));
    for (const Quantization format : formats) {
      const std::vector<std::byte> block = quantized(format, values);
      const Block found = dequantized(format, block);
      const float scale = block_scale(block.data());
      std::vector<float> all;
      for (int code = -127; format == Quantization::int8 && code <= 127; ++code)
        all.push_back(scale * float(code) / 127.0f);
      for (int code = 0; format == Quantization::nf4 && code < 16; ++code)
        all.push_back(scale * nf4_value(code));
      for (std::size_t i = 0; i < values.size(); ++i) {
        float nearest = std::numeric_limits<float>::infinity();
        for (const float value : all) nearest = std::min(nearest, std::abs(value - values[i]));
        EXPECT_NEAR(std::abs(found[i] - values[i]), nearest, 1e-6f * scale);
      }
    }
  }
}

template <class Storage>
void expect_same_codes(Quantization format, std::mt19937& random) {
  // Weights of 16 bits have scales of 16 bits.
  Block values = random_block(random, 0.05f);
  for (float& value : values) value = float(Storage(value));
  const std::vector<std::byte> block = quantized(format, values);
  Block again = dequantized(format, block);
  for (float& value : again) value = float(Storage(value));
  EXPECT_EQ(quantized(format, again), block);
}

// So that a checkpoint, which holds values, gives the codes back.
TEST(Quantization, ValuesOfCodesHaveTheSameCodesAgain) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial)
    for (const Quantization format : formats) {
      expect_same_codes<float>(format, random);
      expect_same_codes<bfloat16>(format, random);
      expect_same_codes<float16>(format, random);
    }
}

TEST(Quantization, KeepsZerosAndShowsWhatIsNotFinite) {
  for (const Quantization format : formats) {
    for (const float value : dequantized(format, quantized(format, Block{})))
      EXPECT_EQ(value, 0.0f);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      Block values{};
      values[5] = bad, values[6] = 1.0f;
      for (const float value : dequantized(format, quantized(format, values)))
        EXPECT_TRUE(std::isnan(value));
    }
  }
}

/// A matrix of blocks, and its values, rounded.
template <class Storage>
struct Matrix {
  Matrix(Quantization format, int rows, int columns, std::mt19937& random)
      : format(format), rows(rows), columns(columns) {
    for (int i = 0; i < rows * columns / quantized_block; ++i) {
      const std::vector<std::byte> block = quantized(format, random_block(random, 0.1f));
      blocks.insert(blocks.end(), block.begin(), block.end());
      for (const float value : dequantized(format, block)) values.push_back(Storage(value));
    }
  }
  QuantizedMatrix view() const { return {format, blocks.data(), rows, columns}; }

  Quantization format;
  int rows, columns;
  std::vector<std::byte> blocks;
  std::vector<Storage> values;
};

template <class Storage>
void expect_equal(const std::vector<Storage>& found, const std::vector<Storage>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(float(found[i]), float(wanted[i])) << i;
}

template <class Storage>
void expect_rounded_values() {
  std::mt19937 random(3);
  for (const Quantization format : formats) {
    const Matrix<Storage> w(format, 7, 3 * quantized_block, random);
    std::vector<Storage> found(w.values.size());
    dequantize<Storage>(format, w.blocks.data(), VectorOf<Storage>(found.data(), found.size()));
    expect_equal(found, w.values);
  }
}

TEST(Quantization, KernelsRoundValuesOnce) {
  expect_rounded_values<float>();
  expect_rounded_values<bfloat16>();
  expect_rounded_values<float16>();
}

template <class Storage>
void expect_products_of_values() {
  std::mt19937 random(4);
  for (const Quantization format : formats)
    for (const int tokens : {1, 3, 4, 16, 33, 70})
      for (const auto& [outputs, inputs] : {std::pair{33, 64}, {64, 320}, {100, 128}}) {
        if (!takes_blocks<Storage>(tokens)) continue;
        const Matrix<Storage> w(format, outputs, inputs, random);
        const auto drawn = [&](int count) {
          std::vector<Storage> values;
          for (int i = 0; i < count; ++i)
            values.push_back(Storage(float(random() % 200) / 100 - 1));
          return values;
        };
        const std::vector<Storage> x = drawn(tokens * inputs), bias = drawn(outputs),
                                   residual = drawn(tokens * outputs);
        const auto rows = [&](const std::vector<Storage>& values, int columns) {
          return ConstMatrixOf<Storage>(values.data(), values.size() / std::size_t(columns),
                                        std::size_t(columns));
        };
        for (const bool adds : {false, true}) {
          std::vector<Storage> found(residual.size()), wanted(residual.size());
          const auto out = [&](std::vector<Storage>& values) {
            return MatrixOf<Storage>(values.data(), std::size_t(tokens), std::size_t(outputs));
          };
          const ConstVectorOf<Storage> b(bias.data(), bias.size());
          const auto r = adds ? rows(residual, outputs) : ConstMatrixOf<Storage>();
          affine_forward<Storage>(rows(x, inputs), w.view(), b, r, out(found));
          affine_forward<Storage>(rows(x, inputs), rows(w.values, inputs), b, r, out(wanted));
          expect_equal(found, wanted);
        }
      }
}

// Bit for bit, so that it does not matter which passes make copies of the values.
TEST(Quantization, ProductsWithBlocksAreThoseWithTheirValues) {
  if (!takes_blocks<float>(1)) GTEST_SKIP() << "products of devices take no blocks";
  expect_products_of_values<float>();
  expect_products_of_values<bfloat16>();
  expect_products_of_values<float16>();
}

}  // namespace
}  // namespace brume::kernels
