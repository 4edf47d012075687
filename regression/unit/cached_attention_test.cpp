/// @file Attention to kept keys: sequences that come in pieces of any size, against whole ones.
#include "kernels/cached_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "reference/attention.hpp"
#include "reference/formats.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::Doubles;

/// Sequences of random lengths up to T, in a cache whose blocks lie in a random order.
template <class Storage>
class Sequences {
 public:
  Sequences(const AttentionShape& shape, int count, int block_tokens, unsigned seed,
            bool has_sinks = false)
      : shape_(shape), block_tokens_(block_tokens), random_(seed) {
    const Array sinks = reference::random_array(1, shape.heads, seed);
    for (int h = 0; has_sinks && h < shape.heads; ++h) sinks_.emplace_back(sinks(0, h));
    blocks_ = (shape.seq_len + block_tokens - 1) / block_tokens;
    tables_.resize(std::size_t(count * blocks_));
    std::iota(tables_.begin(), tables_.end(), 0);
    std::ranges::shuffle(tables_, random_);
    // What is not kept yet must not be read.
    cache_.resize(tables_.size() * std::size_t(2 * shape.keys() * block_tokens * shape.head_dim),
                  Storage(NAN));
    for (int s = 0; s < count; ++s) {
      const int length = 1 + int(random_() % unsigned(shape.seq_len));
      Array qkv = reference::random_array(length, shape.width(), seed + unsigned(s));
      for (int n = 0; n < length; ++n)
        for (int c = 0; c < shape.width(); ++c) qkv(n, c) = float(Storage(qkv(n, c)));
      inputs_.push_back(std::move(qkv));
      outputs_.emplace_back(length, shape.heads * shape.head_dim);
      lengths_.push_back(length);
      done_.push_back(0);
    }
  }

  bool ended() const { return done_ == lengths_; }

  /// Computes up to `most` next tokens of each sequence: the last one of each first, then the
  /// others, with tokens of no sequence between them.
  void pass(int most) {
    struct Token {
      int sequence, place;
    };
    std::vector<Token> tokens, others;
    for (int s = 0; s < int(lengths_.size()); ++s) {
      const int count = std::min(lengths_[s] - done_[s], int(random_() % unsigned(most + 1)));
      if (count == 0) continue;
      tokens.push_back({s, done_[s] + count - 1});
      for (int i = 0; i + 1 < count; ++i) others.push_back({s, done_[s] + i});
      if (random_() % 2 == 0) others.push_back({-1, 0});
      done_[s] += count;
    }
    tokens.insert(tokens.end(), others.begin(), others.end());
    if (tokens.empty()) return;
    const int N = int(tokens.size()), width = shape_.width(), out = shape_.heads * shape_.head_dim;
    std::vector<std::int32_t> sequences, begins;
    std::vector<Storage> qkv(std::size_t(N * width), Storage(NAN)), o(std::size_t(N * out));
    for (int n = 0; n < N; ++n) {
      const auto [s, place] = tokens[std::size_t(n)];
      sequences.push_back(s);
      begins.push_back(n % shape_.seq_len - place);
      for (int c = 0; s >= 0 && c < width; ++c) qkv[n * width + c] = inputs_[s](place, c);
    }
    AttentionShape shape = shape_;
    shape.documents.begins = begins.data();
    cached_attention<Storage>(shape, {qkv.data(), std::size_t(N), std::size_t(width)},
                              {.data = cache_.data(),
                               .block_tokens = block_tokens_,
                               .blocks_per_sequence = blocks_,
                               .sequences = sequences.data(),
                               .tables = tables_.data()},
                              {o.data(), std::size_t(N), std::size_t(out)},
                              sinks_.empty()
                                  ? ConstVectorOf<Storage>()
                                  : ConstVectorOf<Storage>(sinks_.data(), sinks_.size()));
    for (int n = 0; n < N; ++n) {
      const auto [s, place] = tokens[std::size_t(n)];
      for (int c = 0; c < out; ++c) {
        const float value = o[n * out + c];
        if (s >= 0)
          outputs_[s](place, c) = value;
        else
          EXPECT_EQ(value, 0.0f);
      }
    }
  }

  void expect_twin(double tolerance) {
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
      AttentionShape whole = shape_;
      whole.batch = 1, whole.seq_len = lengths_[s];
      const Doubles sinks(sinks_.begin(), sinks_.end());
      const Doubles expected = reference::attention_forward(whole, inputs_[s].doubles(), sinks).o;
      EXPECT_LT(reference::relative_error(outputs_[s].values(), expected), tolerance);
    }
  }

 private:
  AttentionShape shape_;
  int block_tokens_, blocks_;
  std::mt19937 random_;
  std::vector<std::int32_t> tables_;
  std::vector<Storage> cache_, sinks_;
  std::vector<Array> inputs_, outputs_;
  std::vector<int> lengths_, done_;
};

template <class Storage>
class CachedAttention : public ::testing::Test {};

using Formats = ::testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(CachedAttention, Formats, reference::StorageName);

// Own key heads, groups of two and of four, the last heads on a rank that holds all key heads, a
// window, a cap; heads whose features fill no vector.
const AttentionShape shapes[] = {{1, 50, 2, 8},
                                 {1, 200, 4, 16, 2, 2},
                                 {1, 150, 4, 12, 1, 4},
                                 {1, 70, 2, 8, 2, 2, 2},
                                 {1, 300, 2, 16, 1, 2, 0, 90},
                                 {1, 130, 2, 8, 1, 2, 0, 1},
                                 {1, 90, 2, 33, 2, 1, 0, 0, 0.3f, 2.0f}};

TYPED_TEST(CachedAttention, PiecesEqualWholeSequences) {
  const double tolerance = std::is_same_v<TypeParam, float> ? 3e-6 : 1e-2;
  for (const AttentionShape& shape : shapes)
    for (const int most : {1, 3, 80}) {
      SCOPED_TRACE(testing::Message() << shape.seq_len << " tokens, " << most << " at once");
      Sequences<TypeParam> sequences(shape, 5, 16, 11, most == 3);
      while (!sequences.ended()) sequences.pass(most);
      sequences.expect_twin(tolerance);
    }
}

}  // namespace
}  // namespace brume::kernels
