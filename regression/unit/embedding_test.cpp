#include "kernels/embedding.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "reference/embedding.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

constexpr int V = 11, T = 4;
const std::vector<std::int32_t> tokens{3, 0, 3, 10,
                                       7, 7, 3, 1};  // two sequences; some tokens twice

TEST(Embedding, ForwardEqualsItsTwin) {
  for (const int C : {1, 7, 64, 2500}) {
    Array table = random_array(V, C, 1, 1.0f, 3), positions = random_array(T, C, 2, 1.0f, 1);
    Array x(int(tokens.size()), C, 2);
    embedding_forward(reference::view(tokens), table.matrix(), positions.matrix(), x.matrix());
    const auto expected =
        reference::embedding_forward(tokens, table.doubles(), positions.doubles(), T, C);
    EXPECT_LT(reference::relative_error(x.values(), expected), 1e-7);
    EXPECT_TRUE(x.gaps_untouched());
  }
}

TEST(Embedding, BackwardAddsToWhatTheTablesHold) {
  for (const int C : {1, 7, 64, 2500}) {
    Array dx = random_array(int(tokens.size()), C, 1, 1.0f, 2);
    Array table = random_array(V, C, 2, 1.0f, 3), positions = random_array(T, C, 3, 1.0f, 1);
    reference::Doubles expected = table.doubles(), expected_positions = positions.doubles();
    reference::embedding_backward(tokens, dx.doubles(), T, C, expected, expected_positions);
    embedding_backward(reference::view(tokens), dx.matrix(), table.matrix(), positions.matrix());
    EXPECT_LT(reference::relative_error(table.values(), expected), 1e-6);
    EXPECT_LT(reference::relative_error(positions.values(), expected_positions), 1e-6);
    EXPECT_TRUE(table.gaps_untouched());
  }
}

// Documents of 3 and 1, and of 2 and 2 tokens.
TEST(Embedding, PositionsBeginWithADocument) {
  constexpr int C = 7;
  const std::vector<std::int32_t> begins{0, 0, 0, 3, 0, 0, 2, 2}, places{0, 1, 2, 0, 0, 1, 0, 1};
  const Documents documents{begins.data()};
  Array table = random_array(V, C, 1), positions = random_array(T, C, 2), x(8, C);
  embedding_forward(reference::view(tokens), table.matrix(), positions.matrix(), x.matrix(), {},
                    1.0f, documents);
  Array dx = random_array(8, C, 3), d_positions = random_array(T, C, 4), expected = d_positions;
  embedding_backward(reference::view(tokens), dx.matrix(), table.matrix(), d_positions.matrix(), {},
                     1.0f, documents);
  const Array before = random_array(V, C, 1);
  for (int n = 0; n < 8; ++n)
    for (int c = 0; c < C; ++c) {
      const int place = places[std::size_t(n)];
      EXPECT_EQ(x(n, c), before(tokens[std::size_t(n)], c) + positions(place, c)) << n;
      expected(place, c) += dx(n, c);
    }
  EXPECT_TRUE(reference::same_bits(d_positions.values(), expected.values()));
}

// A sequence in parts of a rank each: places go on in the next one, with documents and without.
TEST(Embedding, PositionsGoOnInTheNextPartOfASequence) {
  constexpr int C = 7;
  const std::vector<std::int32_t> begins{0, 0, 0, 3};
  Array table = random_array(V, C, 1), positions = random_array(T, C, 2),
        dx = random_array(T, C, 3);
  for (const bool isolated : {false, true}) {
    Array d_positions = random_array(T, C, 4), expected = d_positions;
    for (const int first : {0, 2}) {
      const std::span part = std::span(tokens).subspan(std::size_t(first), 2);
      const std::vector<std::int32_t> own(part.begin(), part.end());
      const Documents documents{.begins = isolated ? begins.data() + first : nullptr,
                                .first = first};
      Array x(2, C), own_dx(2, C);
      for (int n = 0; n < 2; ++n)
        for (int c = 0; c < C; ++c) own_dx(n, c) = dx(first + n, c);
      embedding_forward(reference::view(own), table.matrix(), positions.matrix(), x.matrix(), {},
                        1.0f, documents);
      embedding_backward(reference::view(own), own_dx.matrix(), {}, d_positions.matrix(), {}, 1.0f,
                         documents);
      for (int n = 0; n < 2; ++n)
        for (int c = 0; c < C; ++c) {
          const int place = first + n - (isolated ? begins[std::size_t(first + n)] : 0);
          EXPECT_EQ(x(n, c), table(own[std::size_t(n)], c) + positions(place, c)) << first + n;
          expected(place, c) += own_dx(n, c);
        }
    }
    EXPECT_TRUE(reference::same_bits(d_positions.values(), expected.values())) << isolated;
  }
}

// Sequences of 4 tokens and 2 more: these have the last position.
TEST(Embedding, TokensBehindTheLastPositionShareIt) {
  constexpr int C = 7, padded = T + 2;
  const std::vector<std::int32_t> many{3, 1, 0, 2, 1, 1, 2, 0, 4, 1, 3, 3};
  const Documents documents{.seq_len = padded};
  Array table = random_array(V, C, 1), positions = random_array(T, C, 2), x(12, C);
  Array dx = random_array(12, C, 3), d_positions = random_array(T, C, 4), expected = d_positions;
  embedding_forward(reference::view(many), table.matrix(), positions.matrix(), x.matrix(), {}, 1.0f,
                    documents);
  embedding_backward(reference::view(many), dx.matrix(), {}, d_positions.matrix(), {}, 1.0f,
                     documents);
  for (int n = 0; n < 12; ++n)
    for (int c = 0; c < C; ++c) {
      const int row = std::min(n % padded, T - 1);
      EXPECT_EQ(x(n, c), table(many[std::size_t(n)], c) + positions(row, c)) << n;
      expected(row, c) += dx(n, c);
    }
  EXPECT_TRUE(reference::same_bits(d_positions.values(), expected.values()));
}

// Hundreds of tokens, no power of two of them, some outside the table: each row has the bits of the
// plain sum in order.
TEST(Embedding, BackwardAddsTokensInOrder) {
  constexpr int C = 5, N = 777;
  std::vector<std::int32_t> many(N);
  for (int n = 0; n < N; ++n) many[std::size_t(n)] = n * n % 13 - 1;
  Array dx = random_array(N, C, 1), table = random_array(V, C, 2), expected = table;
  for (int n = 0; n < N; ++n)
    if (const int token = many[std::size_t(n)]; token >= 0 && token < V)
      for (int c = 0; c < C; ++c) expected(token, c) += dx(n, c);
  embedding_backward(reference::view(many), dx.matrix(), table.matrix(), {});
  EXPECT_TRUE(reference::same_bits(table.values(), expected.values()));
}

// Positions of zero are the twin of none at all.
TEST(Embedding, WithoutPositionsOnlyTokensCount) {
  constexpr int C = 7;
  Array table = random_array(V, C, 1, 1.0f, 3), x(int(tokens.size()), C, 2);
  const reference::Doubles zeros(std::size_t(T) * C, 0.0);
  embedding_forward(reference::view(tokens), table.matrix(), {}, x.matrix());
  EXPECT_EQ(reference::relative_error(
                x.values(), reference::embedding_forward(tokens, table.doubles(), zeros, T, C)),
            0.0);
  reference::Doubles expected = table.doubles(), unused = zeros;
  reference::embedding_backward(tokens, x.doubles(), T, C, expected, unused);
  embedding_backward(reference::view(tokens), x.matrix(), table.matrix(), {});
  EXPECT_LT(reference::relative_error(table.values(), expected), 1e-6);
  EXPECT_TRUE(table.gaps_untouched() && x.gaps_untouched());
}

// 11 tokens in parts of 4, 4 and 3; the first one adds the positions. What is added to nothing
// keeps its bits.
TEST(Embedding, PartsOfTheVocabularyAddUp) {
  constexpr int C = 7, parts = 3, each = 4;
  const int N = int(tokens.size());
  Array table = random_array(V, C, 1), positions = random_array(T, C, 2), whole(N, C);
  embedding_forward(reference::view(tokens), table.matrix(), positions.matrix(), whole.matrix());
  Array dx = random_array(N, C, 3), d_whole = random_array(V, C, 4), d_parts = d_whole;
  embedding_backward(reference::view(tokens), dx.matrix(), d_whole.matrix(), {});
  std::vector<float> sum(whole.values().size(), 0.0f);
  for (int p = 0; p < parts; ++p) {
    const VocabularyPart part{p * each, V};
    const auto rows = std::size_t(std::min(each, V - part.first));
    Array x(N, C);
    embedding_forward(reference::view(tokens), ConstMatrix(&table(part.first, 0), rows, C),
                      p == 0 ? ConstMatrix(positions.matrix()) : ConstMatrix(), x.matrix(), part);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x.values()[i];
    embedding_backward(reference::view(tokens), ConstMatrix(dx.matrix()),
                       Matrix(&d_parts(part.first, 0), rows, C), {}, part);
  }
  EXPECT_TRUE(reference::same_bits(sum, whole.values()));
  EXPECT_TRUE(reference::same_bits(d_parts.values(), d_whole.values()));
}

TEST(Embedding, GradientIsTheSlopeOfTheTwin) {
  constexpr int C = 3;
  Array dx = random_array(int(tokens.size()), C, 1), table = random_array(V, C, 2),
        positions = random_array(T, C, 3), d_table(V, C), d_positions(T, C);
  for (int r = 0; r < V; ++r) std::fill_n(&d_table(r, 0), C, 0.0f);
  for (int r = 0; r < T; ++r) std::fill_n(&d_positions(r, 0), C, 0.0f);
  embedding_backward(reference::view(tokens), dx.matrix(), d_table.matrix(), d_positions.matrix());
  const auto loss = [&](const reference::Doubles& at, const reference::Doubles& at_positions) {
    return reference::dot(dx.doubles(),
                          reference::embedding_forward(tokens, at, at_positions, T, C));
  };
  const auto slope =
      reference::slope_of([&](auto& at) { return loss(at, positions.doubles()); }, table.doubles());
  const auto slope_positions =
      reference::slope_of([&](auto& at) { return loss(table.doubles(), at); }, positions.doubles());
  EXPECT_LT(reference::relative_error(d_table.values(), slope), 1e-6);
  EXPECT_LT(reference::relative_error(d_positions.values(), slope_positions), 1e-6);
}

TEST(Embedding, ATokenOutsideTheTableCountsAsZeros) {
  Array table = random_array(V, 4, 1), x = random_array(1, 4, 2);
  const Array before = table;
  for (const std::int32_t token : {-1, V}) {
    const std::vector<std::int32_t> outside{token};
    embedding_backward(reference::view(outside), x.matrix(), table.matrix(), {});
    EXPECT_TRUE(reference::same_bits(table.values(), before.values()));
    embedding_forward(reference::view(outside), table.matrix(), {}, x.matrix());
    EXPECT_EQ(x.values(), std::vector<float>(4, 0.0f));
  }
}

TEST(Embedding, RepeatsBitwiseAlsoAmongThreads) {
  reference::expect_same_bits([] {
    Array dx = random_array(int(tokens.size()), 301, 1), table = random_array(V, 301, 2),
          positions = random_array(T, 301, 3);
    embedding_backward(reference::view(tokens), dx.matrix(), table.matrix(), positions.matrix());
    embedding_forward(reference::view(tokens), table.matrix(), positions.matrix(), dx.matrix());
    return dx.values();
  });
}

TEST(Embedding, ScalesTokens) {
  const std::vector<std::int32_t> tokens{2, 0, 2};
  Array table = random_array(3, 5, 1), dx = random_array(3, 5, 2), x(3, 5), d_table(3, 5);
  embedding_forward(reference::view(tokens), table.matrix(), {}, x.matrix(), {}, 3.0f);
  std::fill_n(&d_table(0, 0), 15, 0.0f);
  embedding_backward(reference::view(tokens), dx.matrix(), d_table.matrix(), {}, {}, 3.0f);
  for (int c = 0; c < 5; ++c) {
    EXPECT_EQ(x(1, c), 3.0f * table(0, c));
    EXPECT_NEAR(d_table(2, c), 3.0f * (dx(0, c) + dx(2, c)), 1e-6);
    EXPECT_EQ(d_table(1, c), 0.0f);
  }
}

}  // namespace
}  // namespace brume::kernels
