#include "kernels/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "attention_documents.hpp"
#include "attention_zigzag.hpp"
#include "base/error.hpp"
#include "reference/attention.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::Doubles;
using reference::random_array;

// One token, less than a block, exactly one, one more, several of both kinds, odd head sizes.
const AttentionShape shapes[] = {{1, 1, 1, 1},    {2, 7, 3, 5},    {1, 64, 2, 32},  {2, 65, 1, 33},
                                 {1, 200, 2, 16}, {1, 256, 1, 64}, {1, 333, 1, 24}, {1, 577, 1, 8}};

struct Case {
  explicit Case(const AttentionShape& s, float spread = 1.0f, int gap = 0)
      : shape{s},
        qkv{random_array(s.batch * s.seq_len, s.width(), 1, spread, gap)},
        d_o{random_array(s.batch * s.seq_len, s.heads * s.head_dim, 2, 1.0f, gap)},
        o(s.batch * s.seq_len, s.heads * s.head_dim, gap),
        dqkv(s.batch * s.seq_len, s.width(), gap),
        lse(1, s.batch * s.heads * s.seq_len),
        sinks(random_array(1, s.heads, 3)) {}
  void forward() {
    attention_forward(shape, qkv.matrix(), o.matrix(), lse.vector(), given_sinks());
  }
  void backward() {
    attention_backward(shape, qkv.matrix(), o.matrix(), lse.vector(), d_o.matrix(), dqkv.matrix());
  }

  ConstVector given_sinks() { return has_sinks ? ConstVector(sinks.vector()) : ConstVector(); }
  Doubles sinks_of_twin() const { return has_sinks ? sinks.doubles() : Doubles(); }

  AttentionShape shape;
  Array qkv, d_o, o, dqkv, lse, sinks;
  bool has_sinks = false;
};

void expect_twin(Case& c) {
  SCOPED_TRACE(testing::Message() << c.shape.batch << " x " << c.shape.seq_len << " x "
                                  << c.shape.heads << " x " << c.shape.head_dim);
  c.forward();
  const reference::Attention expected =
      reference::attention_forward(c.shape, c.qkv.doubles(), c.sinks_of_twin());
  EXPECT_LT(reference::relative_error(c.o.values(), expected.o), 3e-6);
  EXPECT_LT(reference::relative_error(c.lse.values(), expected.lse), 3e-6);
  EXPECT_TRUE(c.o.gaps_untouched());
  c.backward();
  const auto gradient =
      reference::attention_backward(c.shape, c.qkv.doubles(), c.d_o.doubles(), c.sinks_of_twin());
  EXPECT_LT(reference::relative_error(c.dqkv.values(), gradient), 5e-6);
  EXPECT_TRUE(c.dqkv.gaps_untouched());
}

TEST(Attention, EqualsItsTwin) {
  for (const AttentionShape& shape : shapes) {
    Case c(shape);
    expect_twin(c);
  }
}

// One key head for all, groups of two, and the second half of the heads on a rank that holds all
// key heads, of which it reads the last one only.
TEST(Attention, SharedKeyHeadsEqualTheirTwin) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 70, 4, 8, 1, 4}, AttentionShape{1, 130, 4, 12, 2, 2},
        AttentionShape{2, 33, 2, 8, 2, 2, 2}, AttentionShape{1, 9, 1, 4, 3, 2, 3}}) {
    Case c(shape, 1.0f, 3);
    expect_twin(c);
  }
}

// Windows of a token, within, of and beyond a block of queries or keys, and longer than the
// sequence.
TEST(Attention, AWindowEqualsItsTwin) {
  for (const int T : {1, 70, 333, 600})
    for (const int window : {1, 2, 63, 64, 65, 100, 256, 300, 1000}) {
      SCOPED_TRACE(window);
      Case c({1, T, 2, 12, 1, 2, 0, window}, 1.0f, 3);
      expect_twin(c);
    }
}

// Documents of a token, within a block of queries, beyond one of keys; with and without a window.
TEST(Attention, DocumentsEqualTheirTwin) {
  for (const int T : {1, 70, 333, 600})
    for (const int longest : {1, 3, 80, 400})
      for (const int window : {0, 50}) {
        SCOPED_TRACE(longest);
        Case c({2, T, 2, 12, 1, 2, 0, window}, 1.0f, 3);
        const std::vector<std::int32_t> begins = random_begins(c.shape, longest);
        c.shape.documents = {begins.data()};
        expect_twin(c);
      }
}

// Ranks with chunks shorter and longer than blocks of queries and keys, and of odd lengths; with
// windows, documents, shared key heads and sinks.
TEST(Attention, OfRanksThatShareASequenceEqualsItsTwin) {
  for (const auto& [ranks, T] :
       {std::pair{2, 12}, std::pair{3, 210}, std::pair{2, 1200}, std::pair{8, 560}})
    for (const int window : {0, 50})
      for (const int longest : {0, 80}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << T << " tokens, window " << window
                                        << ", documents " << longest);
        Case c({1, T, 2, 12, 1, 2, 0, window});
        const std::vector<std::int32_t> begins = random_begins(c.shape, std::max(longest, 1));
        if (longest > 0) c.shape.documents = {begins.data()};
        c.has_sinks = window > 0;
        const SharedAttention all =
            attend_shared<float>(c.shape, c.qkv.matrix(), c.d_o.matrix(), c.given_sinks(), ranks);
        const reference::Attention expected =
            reference::attention_forward(c.shape, c.qkv.doubles(), c.sinks_of_twin());
        EXPECT_LT(reference::relative_error(all.o, expected.o), 3e-6);
        EXPECT_LT(reference::relative_error(all.lse, expected.lse), 3e-6);
        const auto gradient = reference::attention_backward(c.shape, c.qkv.doubles(),
                                                            c.d_o.doubles(), c.sinks_of_twin());
        EXPECT_LT(reference::relative_error(all.dqkv, gradient), 5e-6);
        if (!c.has_sinks) continue;
        c.forward();
        Array d_sinks(1, 2);
        attention_backward_sinks(c.shape, c.given_sinks(), c.o.matrix(), c.lse.vector(),
                                 c.d_o.matrix(), Write::replace, d_sinks.vector());
        EXPECT_LT(reference::relative_error(all.d_sinks, d_sinks.doubles()), 3e-6);
      }
}

// Keys of chunks that no query of a rank sees may have any bits, and get gradients of zero.
TEST(Attention, OfRanksThatShareASequenceReadsNoChunkOutsideItsWindow) {
  constexpr int ranks = 4, chunk = 96, window = 100, T = 2 * ranks * chunk;
  Case c({1, T, 2, 12, 1, 2, 0, window});
  const int width = 24, columns = 2 * 12;
  AttentionShape shape = c.shape;
  for (int rank = 0; rank < ranks; ++rank) {
    shape.zigzag = {.ranks = ranks, .rank = rank, .chunk = chunk};
    const auto sees = [&](int key) {
      for (int row = 0; row < 2 * chunk; ++row) {
        const int query = shape.zigzag.position(row);
        if (key <= query && key > query - window) return true;
      }
      return false;
    };
    Array own(2 * chunk, width + columns), d_o(2 * chunk, width), keys(T, columns);
    for (int row = 0; row < 2 * chunk; ++row) {
      for (int i = 0; i < width + columns; ++i) own(row, i) = c.qkv(shape.zigzag.position(row), i);
      for (int i = 0; i < width; ++i) d_o(row, i) = c.d_o(shape.zigzag.position(row), i);
    }
    int unseen = 0;
    for (int key = 0; key < T; ++key) {
      unseen += !sees(key);
      for (int i = 0; i < columns; ++i)
        keys(shape.zigzag.row(key), i) = sees(key) ? c.qkv(key, width + i) : NAN;
    }
    EXPECT_GE(unseen, 3 * chunk);
    Array o(2 * chunk, width), lse(1, 2 * chunk * 2), dqkv(2 * chunk, width + columns),
        d_keys(T, columns);
    attention_forward<float>(shape, own.matrix(), o.matrix(), lse.vector(), {}, keys.matrix());
    attention_backward<float>(shape, own.matrix(), o.matrix(), lse.vector(), d_o.matrix(),
                              dqkv.matrix(), keys.matrix(), d_keys.matrix());
    for (int row = 0; row < 2 * chunk; ++row)
      for (int i = 0; i < width; ++i)
        EXPECT_TRUE(std::isfinite(o(row, i)) && std::isfinite(dqkv(row, i))) << row;
    for (int key = 0; key < T; ++key)
      for (int i = 0; i < columns; ++i) {
        const float gradient = d_keys(shape.zigzag.row(key), i);
        EXPECT_TRUE(sees(key) ? std::isfinite(gradient) : gradient == 0.0f) << key;
      }
  }
}

// Chunks of whole blocks: each query adds the same numbers in the same order as in one rank.
TEST(Attention, OfRanksThatShareASequenceHasTheBitsOfOne) {
  Case c({1, 1024, 1, 8});
  c.forward();
  const SharedAttention all = attend_shared<float>(c.shape, c.qkv.matrix(), c.d_o.matrix(), {}, 2);
  EXPECT_EQ(all.o, c.o.values());
  EXPECT_EQ(all.lse, c.lse.values());
}

// What a document's rows hold is what they hold alone, whatever the others are.
TEST(Attention, ADocumentIsAlone) {
  Case c({2, 333, 2, 12, 1, 2});
  const std::vector<std::int32_t> begins = random_begins(c.shape, 150);
  c.shape.documents = {begins.data()};
  c.forward(), c.backward();
  const int rows = 2 * 333;
  for (int first = 0, end = 0; first < rows; first = end) {
    const auto same = [&](int n) {
      return n < rows && n / 333 == first / 333 &&
             begins[std::size_t(n)] == begins[std::size_t(first)];
    };
    while (same(end)) ++end;
    Case alone({1, end - first, 2, 12, 1, 2});
    const auto copy = [&](const Array& from, Array& to, int width) {
      for (int n = first; n < end; ++n)
        for (int i = 0; i < width; ++i) to(n - first, i) = from(n, i);
    };
    copy(c.qkv, alone.qkv, c.shape.width()), copy(c.d_o, alone.d_o, 24);
    alone.forward(), alone.backward();
    Array o(end - first, 24), dqkv(end - first, c.shape.width());
    copy(c.o, o, 24), copy(c.dqkv, dqkv, c.shape.width());
    EXPECT_LT(reference::relative_error(o.values(), alone.o.doubles()), 3e-6) << first;
    EXPECT_LT(reference::relative_error(dqkv.values(), alone.dqkv.doubles()), 5e-6) << first;
  }
}

// What is not finite stays in its document.
TEST(Attention, ADocumentThatIsNotFiniteSpoilsNoOther) {
  Case c({1, 333, 2, 12});
  const std::vector<std::int32_t> begins = random_begins(c.shape, 60);
  c.shape.documents = {begins.data()};
  const std::int32_t spoilt = begins[100];
  for (int i = 0; i < c.shape.width(); ++i) c.qkv(100, i) = NAN;
  c.forward(), c.backward();
  for (int n = 0; n < 333; ++n)
    if (begins[std::size_t(n)] != spoilt) {
      for (int i = 0; i < c.shape.width(); ++i)
        EXPECT_TRUE(std::isfinite(c.dqkv(n, i)) && std::isfinite(c.o(n, i % 24))) << n;
    }
}

// Scores of some units, of which a cap of 2 leaves little.
TEST(Attention, CappedAndScaledScoresEqualTheirTwin) {
  for (const float cap : {0.0f, 2.0f, 50.0f})
    for (const int window : {0, 40}) {
      Case c({1, 333, 2, 24, 1, 2, 0, window, 0.3f, cap}, 1.5f);
      expect_twin(c);
    }
}

// Sinks below, among and above the scores; with shared key heads and windows.
TEST(Attention, SinksEqualTheirTwin) {
  for (const float above : {-30.0f, 0.0f, 8.0f})
    for (const AttentionShape& shape :
         {AttentionShape{1, 1, 1, 1}, AttentionShape{2, 70, 4, 8, 1, 4},
          AttentionShape{1, 333, 2, 12, 1, 2, 0, 50}, AttentionShape{1, 300, 2, 16, 2, 1, 0, 1}}) {
      SCOPED_TRACE(above);
      Case c(shape, 1.0f, 3);
      c.has_sinks = true;
      for (int h = 0; h < shape.heads; ++h) c.sinks(0, h) += above;
      expect_twin(c);
    }
}

TEST(Attention, GradientsOfSinksAreTheSlopeOfTheTwin) {
  for (const AttentionShape& shape : {AttentionShape{2, 70, 4, 8, 2, 2, 0, 9},
                                      AttentionShape{1, 5, 3, 3}, AttentionShape{3, 1, 2, 40}}) {
    Case c(shape, 1.0f, 2);
    c.has_sinks = true;
    c.forward();
    const Doubles slope = reference::slope_of(
        [&](const Doubles& at) {
          return reference::dot(c.d_o.doubles(),
                                reference::attention_forward(shape, c.qkv.doubles(), at).o);
        },
        c.sinks.doubles());
    for (const Write write : {Write::replace, Write::accumulate}) {
      Array found = random_array(1, shape.heads, 4);
      const Doubles before = found.doubles();
      attention_backward_sinks(shape, c.given_sinks(), c.o.matrix(), c.lse.vector(), c.d_o.matrix(),
                               write, found.vector());
      EXPECT_LT(
          reference::relative_error(
              found.values(), write == Write::accumulate ? reference::sum(before, slope) : slope),
          1e-5);
    }
  }
}

// A sink that weighs nothing is none.
TEST(Attention, ASinkWithoutWeightChangesNothing) {
  Case c({1, 150, 2, 24}), d({1, 150, 2, 24});
  d.has_sinks = true;
  for (int h = 0; h < 2; ++h) d.sinks(0, h) = -INFINITY;
  c.forward(), d.forward();
  EXPECT_LT(reference::relative_error(d.o.values(), c.o.doubles()), 1e-6);
  EXPECT_LT(reference::relative_error(d.lse.values(), c.lse.doubles()), 1e-6);
}

TEST(Attention, AWindowsGradientIsTheSlopeOfTheTwin) {
  Case c({2, 6, 2, 3, 0, 1, 0, 3, 0.9f, 1.5f});
  c.forward();
  c.backward();
  const auto slope = reference::slope_of(
      [&](auto& at) {
        return reference::dot(c.d_o.doubles(), reference::attention_forward(c.shape, at).o);
      },
      c.qkv.doubles());
  EXPECT_LT(reference::relative_error(c.dqkv.values(), slope), 1e-5);
}

// A window that hides nothing changes no bit.
TEST(Attention, AWindowAsLongAsTheSequenceIsNone) {
  Case c({1, 300, 2, 24}), d({1, 300, 2, 24, 0, 1, 0, 300});
  c.forward(), c.backward();
  d.forward(), d.backward();
  EXPECT_TRUE(reference::same_bits(c.o.values(), d.o.values()));
  EXPECT_TRUE(reference::same_bits(c.dqkv.values(), d.dqkv.values()));
}

// Kernels of devices keep a number for each query and head in 32 MiB: here for all but 64 Ki of
// them; the second key head of a sequence is then in another piece. A lone token sees itself, so
// o = v, and dv is the sum over the value's query heads.
TEST(Attention, MoreQueriesThanAWorkspaceHolds) {
  const int queries = 3 << 15, heads = 86, keys = 2, group = heads / keys;
  const AttentionShape shape{queries, 1, heads, 1, keys, group};
  Array qkv = random_array(queries, shape.width(), 1), d_o = random_array(queries, heads, 2);
  ASSERT_GT(std::int64_t{queries} * heads * 4, std::int64_t{32} << 20);
  Array o(queries, heads), dqkv(queries, shape.width()), lse(1, queries * heads);
  attention_forward(shape, qkv.matrix(), o.matrix(), lse.vector());
  attention_backward(shape, qkv.matrix(), o.matrix(), lse.vector(), d_o.matrix(), dqkv.matrix());
  for (int n = 0; n < queries; ++n)
    for (int k = 0; k < keys; ++k) {
      double expected = 0.0;
      for (int h = k * group; h < (k + 1) * group; ++h) expected += d_o(n, h);
      EXPECT_NEAR(dqkv(n, heads + keys + k), expected, 2e-5) << n;
      EXPECT_NEAR(dqkv(n, heads + k), 0.0, 1e-5) << n;
    }
}

TEST(Attention, SharedKeyHeadsHaveTheSlopeOfTheTwin) {
  Case c({2, 5, 4, 3, 2, 2});
  c.forward();
  c.backward();
  const auto slope = reference::slope_of(
      [&](auto& at) {
        return reference::dot(c.d_o.doubles(), reference::attention_forward(c.shape, at).o);
      },
      c.qkv.doubles());
  EXPECT_LT(reference::relative_error(c.dqkv.values(), slope), 1e-5);
}

TEST(Attention, AGroupWithoutItsKeyHeadBreaksAPromise) {
  Case c({1, 8, 4, 4, 1, 2});
  EXPECT_THROW(c.forward(), Error);
}

TEST(Attention, HonoursRowStrides) {
  Case c({2, 70, 2, 12}, 1.0f, 5);
  expect_twin(c);
}

TEST(Attention, GradientIsTheSlopeOfTheTwin) {
  Case c({2, 5, 2, 3});
  c.forward();
  c.backward();
  const auto slope = reference::slope_of(
      [&](auto& at) {
        return reference::dot(c.d_o.doubles(), reference::attention_forward(c.shape, at).o);
      },
      c.qkv.doubles());
  EXPECT_LT(reference::relative_error(c.dqkv.values(), slope), 1e-5);
}

// Scores of some hundreds overflow exp in fp32 unless the largest is taken off; a later block
// raises it.
TEST(Attention, LargeScoresStayFinite) {
  Case c({1, 300, 1, 16});
  for (int n = 0; n < 300; ++n)
    for (int d = 0; d < 32; ++d) c.qkv(n, d) = float(n) / 20.0f;
  c.forward();
  const auto expected = reference::attention_forward(c.shape, [&] {
    auto shifted = c.qkv.doubles();  // the twin takes nothing off, so its keys are made smaller
    for (int n = 0; n < 300; ++n)
      for (int d = 16; d < 32; ++d) shifted[n * 48 + d] -= 7.5;
    return shifted;
  }());
  EXPECT_LT(reference::relative_error(c.o.values(), expected.o), 1e-4);
}

TEST(Attention, ATokenSeesNoLaterToken) {
  Case c({1, 150, 2, 8});
  c.forward();
  const Array before = c.o;
  for (int i = 0; i < 48; ++i) c.qkv(100, i) = 5.0f;
  c.forward();
  for (int n = 0; n < 150; ++n) {
    // Hidden keys weigh exactly nothing, so earlier tokens keep their bits.
    EXPECT_EQ(c.o(n, 3) == before(n, 3), n < 100) << n;
  }
}

TEST(Attention, RepeatsBitwiseAlsoAmongThreads) {
  reference::expect_same_bits([] {
    Case c({2, 150, 2, 24});
    c.forward();
    c.backward();
    return c.dqkv.values();
  });
}

// The same within a window of 30: token 100 is seen by 100 to 129.
TEST(Attention, ANanStaysWithinItsWindow) {
  Case c({1, 150, 1, 20, 0, 1, 0, 30});
  for (int i = 40; i < 60; ++i) c.qkv(100, i) = NAN;
  c.forward();
  for (int n = 0; n < 150; ++n) EXPECT_EQ(std::isnan(c.o(n, 7)), n >= 100 && n < 130) << n;

  c = Case({1, 150, 1, 20, 0, 1, 0, 30});
  c.forward();
  for (int i = 0; i < 20; ++i) c.d_o(100, i) = NAN;
  c.backward();
  for (int n = 0; n < 150; ++n) {
    EXPECT_EQ(std::isnan(c.dqkv(n, 7)), n == 100) << n;
    EXPECT_EQ(std::isnan(c.dqkv(n, 27)), n > 70 && n <= 100) << n;
    EXPECT_EQ(std::isnan(c.dqkv(n, 47)), n > 70 && n <= 100) << n;
  }
}

// Token 100 sees itself and what is before it, and is seen by later ones: nothing else may be NaN.
TEST(Attention, ANanGoesWhereItIsSeen) {
  Case c({1, 150, 1, 20});
  const auto is_nan = [](const Array& x, int n, int first) {
    return std::isnan(x(n, first)) && std::isnan(x(n, first + 19));
  };
  for (int i = 40; i < 60; ++i) c.qkv(100, i) = NAN;  // its value
  c.forward();
  for (int n = 0; n < 150; ++n) EXPECT_EQ(is_nan(c.o, n, 0), n >= 100) << n;

  c = Case({1, 150, 1, 20});
  c.forward();
  for (int i = 0; i < 20; ++i) c.d_o(100, i) = NAN;
  c.backward();
  for (int n = 0; n < 150; ++n) {
    EXPECT_EQ(is_nan(c.dqkv, n, 0), n == 100) << n;
    EXPECT_EQ(is_nan(c.dqkv, n, 20), n <= 100) << n;
    EXPECT_EQ(is_nan(c.dqkv, n, 40), n <= 100) << n;
  }
}

}  // namespace
}  // namespace brume::kernels
