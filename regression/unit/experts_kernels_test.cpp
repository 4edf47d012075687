/// @file Routers, the choice of experts, the copies of tokens and their products.
#include "kernels/experts.hpp"

#include <gtest/gtest.h>

#include "kernels/pointwise.hpp"
#include "kernels/token_rows.hpp"
#include "reference/experts.hpp"
#include "reference/formats.hpp"
#include "reference/matmul.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::Doubles;
using reference::random_array;
using reference::Routed;

/// Values rounded to a format, and the same values in fp32.
template <class Storage>
struct Values {
  explicit Values(Array array) : wide{std::move(array)}, rows{wide.matrix().extent(0)} {
    for (const float value : wide.values()) stored.emplace_back(value);
    for (std::size_t i = 0; i < stored.size(); ++i)
      wide(int(i / columns()), int(i % columns())) = stored[i];
  }
  Values(int rows, int columns, unsigned seed) : Values(random_array(rows, columns, seed)) {}

  std::size_t columns() const { return stored.size() / rows; }
  MatrixOf<Storage> matrix() { return {stored.data(), rows, columns()}; }
  Doubles doubles() const { return wide.doubles(); }
  std::vector<float> values() const { return {stored.begin(), stored.end()}; }

  Array wide;
  std::size_t rows;
  std::vector<Storage> stored;
};

/// The largest relative error of a result that is rounded once.
template <class Storage>
constexpr double tolerance = 2e-6;
template <>
constexpr double tolerance<bfloat16> = 0x1p-8;
template <>
constexpr double tolerance<float16> = 0x1p-11;

template <class Storage>
class Experts : public ::testing::Test {};

using Formats = ::testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(Experts, Formats, reference::StorageName);

struct RouterShape {
  int N, C, E;
};
const RouterShape router_shapes[] = {{1, 1, 1}, {7, 33, 5}, {70, 130, 8}, {130, 40, 19}};

TYPED_TEST(Experts, RoutersAreProductsInFp32) {
  for (const auto& [N, C, E] : router_shapes) {
    SCOPED_TRACE(testing::Message() << N << " x " << C << " x " << E);
    Values<TypeParam> x(N, C, 1), w(E, C, 2);
    Array logits(N, E, 3), d_logits = random_array(N, E, 3, 1.0f, 2);
    router_forward<TypeParam>(x.matrix(), w.matrix(), logits.matrix());
    EXPECT_LT(reference::relative_error(
                  logits.values(), reference::linear_forward(x.doubles(), w.doubles(), N, C, E)),
              3e-6);
    EXPECT_TRUE(logits.gaps_untouched());
    Values<TypeParam> bias(1, E, 6);
    const Doubles without = logits.doubles();
    router_forward<TypeParam>(x.matrix(), w.matrix(), logits.matrix(),
                              {bias.stored.data(), bias.stored.size()});
    for (int n = 0; n < N; ++n)
      for (int e = 0; e < E; ++e)
        EXPECT_EQ(logits(n, e), float(without[std::size_t(n * E + e)]) + bias.wide(0, e));

    const Doubles dw = reference::linear_backward_weight(d_logits.doubles(), x.doubles(), N, C, E);
    const Doubles dx = reference::linear_backward_input(d_logits.doubles(), w.doubles(), N, C, E);
    for (const Write write : {Write::replace, Write::accumulate}) {
      const bool adds = write == Write::accumulate;
      Array found = adds ? random_array(E, C, 4, 1.0f, 1) : Array(E, C, 1);
      const Doubles expected = adds ? reference::sum(found.doubles(), dw) : dw;
      Values<TypeParam> in_place = x;
      router_backward<TypeParam>(d_logits.matrix(), in_place.matrix(), w.matrix(), write,
                                 found.matrix(), in_place.matrix());
      EXPECT_LT(reference::relative_error(found.values(), expected), 3e-6);
      EXPECT_LT(reference::relative_error(in_place.values(), dx), tolerance<TypeParam>);
      EXPECT_TRUE(found.gaps_untouched());
    }
    router_backward<TypeParam>(d_logits.matrix(), x.matrix(), w.matrix(), Write::replace, {},
                               x.matrix());
    EXPECT_LT(reference::relative_error(x.values(), dx), tolerance<TypeParam>);
  }
}

TYPED_TEST(Experts, RoutersOfNoTokensHaveNoGradient) {
  std::vector<TypeParam> nothing(12, TypeParam(1.0f));
  const MatrixOf<TypeParam> none(nothing.data(), 0, 4);
  const MatrixOf<TypeParam> w(nothing.data(), 3, 4);
  float logits = 0.0f;
  Array dw(3, 4);
  router_forward<TypeParam>(none, w, Matrix(&logits, 0, 3));
  router_backward<TypeParam>(Matrix(&logits, 0, 3), none, w, Write::replace, dw.matrix(), none);
  EXPECT_EQ(dw.values(), std::vector<float>(12, 0.0f));
}

TYPED_TEST(Experts, SigmoidsGateRows) {
  Values<TypeParam> logits(5, 1, 1);
  logits.stored[0] = TypeParam(-90.0f), logits.stored[1] = TypeParam(90.0f);
  Array gates(1, 5), d_gates = random_array(1, 5, 2);
  sigmoid_forward<TypeParam>(logits.matrix(), gates.vector());
  Values<TypeParam> d_logits(5, 1, 3);
  sigmoid_backward<TypeParam>(logits.matrix(), d_gates.vector(), d_logits.matrix());
  for (std::size_t n = 0; n < 5; ++n) {
    const double gate = 1.0 / (1.0 + std::exp(-double(float(logits.stored[n]))));
    EXPECT_NEAR(gates.values()[n], gate, 1e-6);
    const double expected = gate * (1.0 - gate) * d_gates.values()[n];
    EXPECT_NEAR(float(d_logits.stored[n]), expected,
                1e-7 + tolerance<TypeParam> * std::abs(expected));
  }
}

// --- the choice ----------------------------------------------------------------------------------

struct Choice {
  int N, E, k;
};
// One expert, all of them, one of many, more tokens than one part has.
const Choice choices[] = {{1, 1, 1}, {5, 4, 4}, {9, 7, 1}, {40, 8, 2}, {260, 64, 8}, {150, 3, 2}};

TEST(ChooseExperts, EqualsItsTwin) {
  for (const auto& [N, E, k] : choices)
    for (const bool normalizes : {false, true}) {
      SCOPED_TRACE(testing::Message() << N << " tokens, " << k << " of " << E);
      Array logits = random_array(N, E, 1, 2.0f, 1), gates(1, N * k);
      Routed found(N, E, k);
      choose_experts(logits.matrix(), {.normalizes = normalizes}, gates.vector(), found.routes());
      const Routed expected = reference::routed(logits.doubles(), E, k);
      EXPECT_EQ(found, expected);
      EXPECT_LT(reference::relative_error(
                    gates.values(),
                    reference::gates(logits.doubles(), {.normalizes = normalizes}, expected)),
                2e-6);
    }
}

// The parts of ranks that hold some of the experts each, from no expert on to all of them.
TEST(ChooseExperts, RowsBeginWithTheExpertsOfTheRank) {
  for (const auto& [N, E, k] : choices)
    for (const int ranks : {1, 2, 4}) {
      if (E % ranks != 0) continue;
      Array logits = random_array(N, E, 1, 2.0f, 1), d_gates = random_array(1, N * k, 2);
      const RouterLoss loss{.balance = 0.1f, .z = 0.1f, .seq_len = N};
      const auto routed_on = [&](int rank) {
        return reference::routed(logits.doubles(), E, k, rank * (E / ranks), E / ranks);
      };
      // The gradients of all gates, by the rows of one rank that holds all experts.
      const Routed all = reference::routed(logits.doubles(), E, k);
      Array expected(N, E), gates(1, N * k);
      Routed one = all;
      choose_experts_backward(logits.matrix(), Router{}, one.routes(), d_gates.vector(), loss,
                              expected.matrix());
      Doubles sum(std::size_t(N) * E, 0.0);
      int rows = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(testing::Message() << N << " tokens, " << k << " of " << E << ", rank " << rank
                                        << " of " << ranks);
        const Routed twin = routed_on(rank);
        Routed found(N, E, k);
        found.first_held = twin.first_held, found.num_held = twin.num_held;
        choose_experts(logits.matrix(), Router{}, gates.vector(), found.routes());
        EXPECT_EQ(found, twin);
        rows += found.held_rows();
        Array own(1, std::max(1, found.held_rows())), d_logits(N, E);
        for (int n = 0; n < N; ++n)
          for (int j = 0; j < k; ++j)
            if (found.row(n, j) < found.held_rows())
              own(0, found.row(n, j)) = d_gates(0, all.row(n, j));
        choose_experts_backward(logits.matrix(), Router{}, found.routes(),
                                Vector(own.vector().data(), std::size_t(found.held_rows())),
                                rank == 0 ? loss : RouterLoss{}, d_logits.matrix());
        sum = reference::sum(sum, d_logits.doubles());
      }
      EXPECT_EQ(rows, N * k);
      EXPECT_LT(reference::relative_error(expected.values(), sum), 3e-6);
    }
}

/// The rows that a rank exchanges with others, by their definition.
struct ExpectedRows {
  std::vector<std::int32_t> sent, sent_begins{0}, places, place_begins{0};

  ExpectedRows(const Routed& all, int ranks, int rank)
      : sent(std::size_t(all.tokens() / ranks * all.chosen), no_row),
        places(std::size_t(all.tokens()), no_row) {
    const int own = all.tokens() / ranks, held = all.num_experts / ranks;
    const auto first_copy = [&](int n, int of) {
      for (int j = 0; j < all.chosen; ++j)
        if (all.expert(n, j) / held == of) return j;
      return -1;
    };
    for (int to = 0, row = 0; to < ranks; ++to) {
      for (int n = 0; n < own; ++n)
        if (const int j = first_copy(rank * own + n, to); j >= 0)
          sent[std::size_t(n * all.chosen + j)] = row++;
      sent_begins.push_back(row);
    }
    for (int from = 0, row = 0; from < ranks; ++from) {
      for (int n = from * own; n < (from + 1) * own; ++n)
        if (first_copy(n, rank) >= 0) places[std::size_t(n)] = row++;
      place_begins.push_back(row);
    }
  }
};

// Each rank chooses for its own tokens, and has the rows and gates of a rank that knows all logits.
TEST(TokenRows, FollowTheChoicesOfAllRanks) {
  for (const auto& [N, E, k] : choices)
    for (const int ranks : {2, 4}) {
      if (E % ranks != 0 || N % ranks != 0) continue;
      const int own = N / ranks, copies = own * k;
      Array logits = random_array(N, E, 1, 2.0f, 0), d_gates = random_array(1, N * k, 2);
      Array numbers(1, 2 * N * k), d_numbers(1, 2 * N * k);
      const auto of_rank = [&](Array& all, int rank) {
        return all.vector().data() + std::ptrdiff_t{2} * rank * copies;
      };
      const auto own_logits = [&](Array& all, int rank) {
        return Matrix(all.matrix().data() + std::ptrdiff_t{rank} * own * E, std::size_t(own),
                      std::size_t(E));
      };
      for (int rank = 0; rank < ranks; ++rank) {
        float* const begin = of_rank(numbers, rank);
        choose_experts(own_logits(logits, rank), Router{}, Vector(begin + copies, copies),
                       {.experts = reinterpret_cast<std::int32_t*>(begin),
                        .num_experts = E,
                        .chosen = k,
                        .num_held = E / ranks});
      }
      Doubles sum(std::size_t(N) * E, 0.0);
      const RouterLoss loss{.balance = 0.1f, .z = 0.1f, .seq_len = N};
      Routed all = reference::routed(logits.doubles(), E, k);
      Array expected_gradient(N, E);
      Doubles d_choices(std::size_t(2 * N * k), 0.0);
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(testing::Message() << N << " tokens, " << k << " of " << E << ", rank " << rank
                                        << " of " << ranks);
        const Routed twin =
            reference::routed(logits.doubles(), E, k, rank * (E / ranks), E / ranks);
        Array gates(1, N * k), of_tokens(1, N * k), expected_gates(1, N * k);
        Routed found(N, E, k), known(N, E, k);
        for (Routed* one : {&found, &known})
          one->first_held = twin.first_held, one->num_held = twin.num_held;
        std::vector<std::int32_t> sent(copies), begins(2 * (std::size_t(ranks) + 1)), places(N);
        read_choices(numbers.vector(), found.routes(), of_tokens.vector(),
                     {.sent = sent.data(),
                      .sent_begins = begins.data(),
                      .places = places.data(),
                      .place_begins = begins.data() + ranks + 1,
                      .ranks = ranks,
                      .rank = rank,
                      .own_tokens = own});
        order_copies(of_tokens.vector(), found.routes(), gates.vector());
        EXPECT_EQ(found, twin);
        choose_experts(logits.matrix(), Router{}, expected_gates.vector(), known.routes());
        EXPECT_EQ(gates.values(), expected_gates.values());
        const ExpectedRows rows(twin, ranks, rank);
        EXPECT_EQ(sent, rows.sent);
        EXPECT_EQ(places, rows.places);
        std::vector<std::int32_t> both = rows.sent_begins;
        both.insert(both.end(), rows.place_begins.begin(), rows.place_begins.end());
        EXPECT_EQ(begins, both);
        Array of_held(1, std::max(1, found.held_rows()));
        for (int n = 0; n < N; ++n)
          for (int j = 0; j < k; ++j)
            if (found.row(n, j) < found.held_rows())
              of_held(0, found.row(n, j)) = d_gates(0, all.row(n, j));
        order_copies_backward(Vector(of_held.vector().data(), std::size_t(found.held_rows())),
                              found.routes(), 0, N, own, d_numbers.vector());
        d_choices = reference::sum(d_choices, d_numbers.doubles());
      }
      for (std::size_t i = 0; i < d_choices.size(); ++i) d_numbers(0, int(i)) = float(d_choices[i]);
      choose_experts_backward(logits.matrix(), Router{}, all.routes(), d_gates.vector(), loss,
                              expected_gradient.matrix());
      Array gradient(N, E);
      for (int rank = 0; rank < ranks; ++rank) {
        const RouterLoss own_loss{.balance = loss.balance,
                                  .z = loss.z,
                                  .seq_len = N,
                                  .before = rank * own,
                                  .after = N - (rank + 1) * own};
        choose_experts_backward(own_logits(logits, rank), Router{},
                                {.experts = all.experts.data() + std::ptrdiff_t{rank} * copies,
                                 .num_experts = E,
                                 .chosen = k,
                                 .num_held = E},
                                Vector(of_rank(d_numbers, rank) + copies, copies), own_loss,
                                own_logits(gradient, rank));
      }
      EXPECT_EQ(gradient.values(), expected_gradient.values());
    }
}

// Copies of tokens that came from other ranks, and their sums, are in the places of these tokens.
TYPED_TEST(Experts, CopiesFindTokensInTheirPlaces) {
  const int N = 40, E = 8, k = 2, C = 9;
  Array logits = random_array(N, E, 1, 2.0f, 1);
  Routed routed = reference::routed(logits.doubles(), E, k, 2, 2);
  std::vector<std::int32_t> places(N, no_row);
  int came = 0;
  for (int n = 0; n < N; ++n)
    for (int j = 0; j < k; ++j)
      if (routed.row(n, j) < routed.held_rows() && places[std::size_t(n)] == no_row)
        places[std::size_t(n)] = came++;
  ASSERT_GT(came, 5);
  ASSERT_LT(came, N);
  Values<TypeParam> all(N, C, 2), arrived(came, C, 3);
  for (int n = 0; n < N; ++n)
    if (const int place = places[std::size_t(n)]; place != no_row)
      for (int c = 0; c < C; ++c)
        arrived.stored[std::size_t(place * C + c)] = all.stored[std::size_t(n * C + c)];
  Values<TypeParam> expected(routed.held_rows(), C, 4), found(routed.held_rows(), C, 5);
  Routes routes = routed.routes();
  dispatch<TypeParam>(all.matrix(), routes, expected.matrix());
  Values<TypeParam> sums(N, C, 6), placed(came, C, 7);
  combine<TypeParam>(expected.matrix(), routes, {}, sums.matrix());
  routes.places = places.data(), routes.placed = N;
  dispatch<TypeParam>(arrived.matrix(), routes, found.matrix());
  EXPECT_EQ(found.values(), expected.values());
  combine<TypeParam>(expected.matrix(), routes, {}, placed.matrix());
  for (int n = 0; n < N; ++n) {
    const int place = places[std::size_t(n)];
    for (int c = 0; place != no_row && c < C; ++c)
      EXPECT_EQ(float(placed.stored[std::size_t(place * C + c)]),
                float(sums.stored[std::size_t(n * C + c)]));
  }
}

TEST(ChooseExperts, GivesEqualLogitsToTheLowestExperts) {
  Array logits(3, 5), gates(1, 6);
  const std::vector<std::vector<float>> rows{
      {1, 1, 1, 1, 1}, {0, 2, 1, 2, 2}, {-INFINITY, 3, -INFINITY, -INFINITY, -INFINITY}};
  for (int n = 0; n < 3; ++n)
    for (int e = 0; e < 5; ++e) logits(n, e) = rows[std::size_t(n)][std::size_t(e)];
  Routed found(3, 5, 2);
  choose_experts(logits.matrix(), Router{}, gates.vector(), found.routes());
  EXPECT_EQ(found.experts, (std::vector<std::int32_t>{0, 1, 1, 3, 0, 1}));
  EXPECT_EQ(found.begins, (std::vector<std::int32_t>{0, 2, 5, 5, 6, 6}));
  EXPECT_EQ(found.rows, (std::vector<std::int32_t>{0, 2, 3, 5, 1, 4}));
  EXPECT_EQ(gates.values(), (std::vector<float>{0.5f, 0.0f, 0.5f, 0.5f, 1.0f, 0.5f}));
}

TEST(ChooseExperts, MaySendAllTokensToOneExpert) {
  Array logits = random_array(200, 6, 1), gates(1, 200);
  for (int n = 0; n < 200; ++n) logits(n, 4) = 100.0f;
  Routed found(200, 6, 1);
  choose_experts(logits.matrix(), Router{}, gates.vector(), found.routes());
  EXPECT_EQ(found, reference::routed(logits.doubles(), 6, 1));
  EXPECT_EQ(found.begins, (std::vector<std::int32_t>{0, 0, 0, 0, 0, 200, 200}));
  EXPECT_EQ(gates.values(), std::vector<float>(200, 1.0f));
}

TEST(ChooseExperts, TakesANaNForTheLowestLogit) {
  Array logits(3, 4);
  const std::vector<std::vector<float>> rows{
      {NAN, 1, 2, 1}, {NAN, NAN, NAN, NAN}, {NAN, NAN, 0, NAN}};
  for (int n = 0; n < 3; ++n)
    for (int e = 0; e < 4; ++e) logits(n, e) = rows[std::size_t(n)][std::size_t(e)];
  for (const bool normalizes : {false, true}) {
    Array gates(1, 6);
    Routed found(3, 4, 2);
    choose_experts(logits.matrix(), {.normalizes = normalizes}, gates.vector(), found.routes());
    EXPECT_EQ(found.experts, (std::vector<std::int32_t>{1, 2, 0, 1, 0, 2}));
    for (int n = 0; n < 3; ++n)
      for (int j = 0; j < 2; ++j)
        EXPECT_EQ(std::isnan(gates(0, found.row(n, j))), n > 0 || !normalizes) << n;
  }
}

// Corrections decide for experts, and so do groups, but gates do not know of them.
TEST(ChooseExperts, InGroupsEqualsItsTwin) {
  struct Case {
    int N, E, k, groups, chosen_groups;
    bool sigmoid = true;
  };
  for (const auto& [N, E, k, groups, chosen_groups, sigmoid] :
       {Case{5, 4, 4, 1, 1}, Case{40, 8, 2, 4, 2}, Case{60, 8, 3, 2, 1}, Case{260, 64, 8, 8, 4},
        Case{30, 128, 2, 64, 1}, Case{40, 8, 2, 4, 2, false}, Case{260, 160, 6, 8, 3, false}})
    for (const bool normalizes : {false, true}) {
      SCOPED_TRACE(testing::Message() << N << " tokens, " << k << " of " << E << " in " << groups);
      Array logits = random_array(N, E, 1, 2.0f, 1), gates(1, N * k);
      Array correction = random_array(1, E, 2, 0.5f);
      const Router router{.sigmoid = sigmoid,
                          .normalizes = normalizes,
                          .scale = 2.5f,
                          .groups = groups,
                          .chosen_groups = chosen_groups,
                          .correction = correction.vector().data()};
      Routed found(N, E, k);
      choose_experts(logits.matrix(), router, gates.vector(), found.routes());
      const Doubles scores =
          reference::corrected_scores(logits.doubles(), correction.doubles(), router);
      EXPECT_EQ(found, reference::routed(scores, E, k));
      EXPECT_LT(reference::relative_error(gates.values(),
                                          reference::gates(logits.doubles(), router, found)),
                2e-6);
    }
}

// Groups {0, 1}, {2, 3} and {4, 5} have equal sums, so the first two are chosen, and of
// equal scores the lowest experts. A NaN comes last in its group.
TEST(ChooseExperts, BySigmoidsGivesEqualScoresToTheLowestExperts) {
  Array logits(3, 6), gates(1, 6), correction(1, 6);
  const std::vector<std::vector<float>> rows{
      {0, 0, 0, 0, 0, 0}, {-9, 0, 1, 1, 1, 1}, {NAN, 0, NAN, NAN, 0, 0}};
  for (int e = 0; e < 6; ++e) {
    correction(0, e) = 0.0f;
    for (int n = 0; n < 3; ++n) logits(n, e) = rows[std::size_t(n)][std::size_t(e)];
  }
  const Router router{
      .sigmoid = true, .groups = 3, .chosen_groups = 2, .correction = correction.vector().data()};
  Routed found(3, 6, 2);
  choose_experts(logits.matrix(), router, gates.vector(), found.routes());
  EXPECT_EQ(found.experts, (std::vector<std::int32_t>{0, 1, 2, 3, 1, 4}));
  for (int n = 0; n < 3; ++n)
    for (int j = 0; j < 2; ++j) EXPECT_EQ(gates(0, found.row(n, j)), 0.5f);
}

TEST(ChooseExperts, BackwardIsTheSlopeOfTheTwin) {
  const Router routers[] = {{.normalizes = false},
                            {},
                            {.scale = 2.5f},
                            {.sigmoid = true, .normalizes = false, .scale = 0.5f},
                            {.sigmoid = true, .scale = 2.5f}};
  const RouterLoss losses[] = {{},
                               {.balance = 0.3f, .z = 0.0f, .seq_len = 3},
                               {.balance = 0.0f, .z = 0.2f, .seq_len = 3},
                               {.balance = 0.3f, .z = 0.2f, .seq_len = 6},
                               {.balance = 0.3f, .z = 0.2f, .seq_len = 0}};
  for (const auto& [N, E, k] : {Choice{6, 5, 2}, Choice{6, 4, 1}, Choice{6, 3, 3}})
    for (const RouterLoss& loss : losses)
      for (const Router& router : routers) {
        SCOPED_TRACE(testing::Message() << k << " of " << E << ", " << loss.balance << ' ' << loss.z
                                        << " by " << loss.seq_len << ' ' << router.sigmoid
                                        << router.normalizes << ' ' << router.scale);
        Array logits = random_array(N, E, 1, 1.0f, 2), d_gates = random_array(1, N * k, 2);
        Array gates(1, N * k), d_logits(N, E, 1);
        Routed routed(N, E, k);
        choose_experts(logits.matrix(), router, gates.vector(), routed.routes());
        choose_experts_backward(logits.matrix(), router, routed.routes(), d_gates.vector(), loss,
                                d_logits.matrix());
        const Doubles slope = reference::slope_of(
            [&](const Doubles& at) {
              return reference::dot(d_gates.doubles(), reference::gates(at, router, routed)) +
                     reference::router_loss(at, router, routed, loss);
            },
            logits.doubles());
        for (std::size_t i = 0; i < slope.size(); ++i)
          EXPECT_NEAR(d_logits.values()[i], slope[i], 3e-6) << i;
        EXPECT_TRUE(d_logits.gaps_untouched());
      }
}

// Counts of both parts of a sequence balance some of its tokens as the sequence does.
TEST(ChooseExperts, BalancesPartsOfASequenceByTheCountsOfAllParts) {
  constexpr int N = 130, E = 5, k = 2, cut = 50, first = 7, count = 100;
  Array logits = random_array(N, E, 1), d_gates = random_array(1, N * k, 2), gates(1, N * k),
        counts(1, 2 * E);
  Routed routed(N, E, k);
  choose_experts(logits.matrix(), Router{}, gates.vector(), routed.routes());
  const auto part = [&](int index) { return Vector(counts.vector().data() + index * E, E); };
  count_copies(routed.routes(), 0, cut, part(0));
  count_copies(routed.routes(), cut, N - cut, part(1));
  const auto backward = [&](const RouterLoss& loss) {
    Array d_logits(N, E);
    choose_experts_backward(logits.matrix(), Router{}, routed.routes(), d_gates.vector(), loss,
                            d_logits.matrix());
    return d_logits.values();
  };
  const auto whole = backward({.balance = 0.3f, .seq_len = N}), none = backward({}),
             some = backward({.balance = 0.3f,
                              .counts = counts.vector().data(),
                              .parts = 2,
                              .first = first,
                              .count = count});
  for (int n = 0; n < N; ++n)
    for (int e = 0; e < E; ++e) {
      const auto i = std::size_t(n * E + e);
      EXPECT_NE(whole[i], none[i]);
      EXPECT_EQ(some[i], first <= n && n < first + count ? whole[i] : none[i]) << n;
    }
}

// More tokens than one part of a sequence has.
TEST(ChooseExperts, BalancesTheLoadsOfLongSequences) {
  constexpr int N = 1000, E = 9, k = 3;
  for (const int seq_len : {1000, 250, 1}) {
    const RouterLoss loss{.balance = 0.01f, .seq_len = seq_len};
    Array logits = random_array(N, E, 1), gates(1, N * k), d_gates(1, N * k), found(N, E);
    fill(0.0f, d_gates.vector());
    Routed routed(N, E, k);
    choose_experts(logits.matrix(), Router{}, gates.vector(), routed.routes());
    choose_experts_backward(logits.matrix(), Router{}, routed.routes(), d_gates.vector(), loss,
                            found.matrix());
    Doubles expected;
    for (int n = 0; n < N; ++n) {
      Doubles loads(E, 0.0);
      const int first = n / seq_len * seq_len;
      for (int m = first; m < first + seq_len; ++m)
        for (int j = 0; j < k; ++j) ++loads[std::size_t(routed.expert(m, j))];
      const Doubles p = reference::softmax(reference::row_of(logits.doubles(), n, E));
      const double mean = reference::dot(p, loads);
      for (std::size_t e = 0; e < E; ++e)
        expected.push_back(loss.balance * p[e] * (loads[e] - mean));
    }
    EXPECT_LT(reference::relative_error(found.values(), expected), 5e-6) << seq_len;
  }
}

TEST(ChooseExperts, SameBitsOnEveryRun) {
  reference::expect_same_bits([] {
    constexpr int N = 300, E = 17, k = 4;
    Array logits = random_array(N, E, 1), gates(1, N * k), d_gates = random_array(1, N * k, 2);
    Array d_logits(N, E);
    Routed routed(N, E, k);
    choose_experts(logits.matrix(), Router{}, gates.vector(), routed.routes());
    choose_experts_backward(logits.matrix(), Router{}, routed.routes(), d_gates.vector(),
                            {.balance = 0.1f, .z = 0.1f, .seq_len = 100}, d_logits.matrix());
    std::vector<float> all = gates.values();
    for (const float value : d_logits.values()) all.push_back(value);
    all.insert(all.end(), routed.rows.begin(), routed.rows.end());
    return all;
  });
}

// --- copies --------------------------------------------------------------------------------------

TYPED_TEST(Experts, CopiesOfTokensStandByExpertAndAreAddedUp) {
  constexpr double rounding = tolerance<TypeParam>;
  for (const auto& [N, E, k] : choices)
    for (const int C : {1, 70, 1100}) {
      SCOPED_TRACE(testing::Message() << N << " tokens, " << k << " of " << E << ", C " << C);
      Routed routed = reference::routed(random_array(N, E, 1).doubles(), E, k);
      Values<TypeParam> x(N, C, 2), copies(N * k, C, 3), y(N, C, 4), residual(N, C, 5);
      dispatch<TypeParam>(x.matrix(), routed.routes(), copies.matrix());
      for (int n = 0; n < N; ++n)
        for (int j = 0; j < k; ++j)
          for (int c = 0; c < C; ++c)
            ASSERT_EQ(float(copies.matrix()(routed.row(n, j), c)), float(x.matrix()(n, c)));

      Values<TypeParam> made(N * k, C, 6);
      Doubles expected(std::size_t(N) * C, 0.0);
      for (int n = 0; n < N; ++n)
        for (int j = 0; j < k; ++j)
          for (int c = 0; c < C; ++c)
            expected[std::size_t(n * C + c)] += made.wide(routed.row(n, j), c);
      combine<TypeParam>(made.matrix(), routed.routes(), {}, y.matrix());
      EXPECT_LT(reference::relative_error(y.values(), expected), rounding);
      const Doubles with_residual = reference::sum(residual.doubles(), expected);
      combine<TypeParam>(made.matrix(), routed.routes(), residual.matrix(), y.matrix());
      EXPECT_LT(reference::relative_error(y.values(), with_residual), rounding);
      combine<TypeParam>(made.matrix(), routed.routes(), residual.matrix(), residual.matrix());
      EXPECT_TRUE(reference::same_bits(residual.values(), y.values())) << "y is the residual";
    }
}

// Ranks that hold some of the experts make parts of the sum that one rank makes.
TYPED_TEST(Experts, RanksCopyAndAddUpTheRowsOfTheirExperts) {
  constexpr int N = 70, E = 8, k = 3, C = 40, O = 24, ranks = 4;
  Array logits = random_array(N, E, 1);
  for (int n = 0; n < N; ++n) logits(n, 2) = logits(n, 3) = -100.0f;  // rank 1 has no rows
  Routed all = reference::routed(logits.doubles(), E, k);
  Values<TypeParam> x(N, C, 2), w(E * O, C, 3), copies(Array(N * k, C)), made(Array(N * k, O));
  Values<TypeParam> y(Array(N, O));
  dispatch<TypeParam>(x.matrix(), all.routes(), copies.matrix());
  experts_forward<TypeParam>(copies.matrix(), w.matrix(), all.routes(), Write::replace,
                             made.matrix());
  combine<TypeParam>(made.matrix(), all.routes(), {}, y.matrix());
  Array dw(E * O, C);
  experts_backward_weight<TypeParam>(made.matrix(), copies.matrix(), all.routes(), Write::replace,
                                     dw.matrix());
  Doubles sum(std::size_t(N) * O, 0.0);
  std::vector<float> all_dw;
  for (int rank = 0; rank < ranks; ++rank) {
    constexpr int held = E / ranks;
    Routed routed = reference::routed(logits.doubles(), E, k, rank * held, held);
    const int rows = routed.held_rows();
    EXPECT_EQ(rows == 0, rank == 1);
    Values<TypeParam> own_copies(Array(rows + 1, C)), own_made(Array(rows + 1, O));
    Values<TypeParam> part(Array(N, O));
    const auto held_rows = [&](auto matrix) {
      return decltype(matrix)(matrix.data(), std::size_t(rows), matrix.extent(1));
    };
    const auto own_w =
        MatrixOf<TypeParam>(&w.matrix()(rank * held * O, 0), std::size_t(held * O), std::size_t(C));
    dispatch<TypeParam>(x.matrix(), routed.routes(), held_rows(own_copies.matrix()));
    experts_forward<TypeParam>(held_rows(own_copies.matrix()), own_w, routed.routes(),
                               Write::replace, held_rows(own_made.matrix()));
    combine<TypeParam>(held_rows(own_made.matrix()), routed.routes(), {}, part.matrix());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part.values()[i];
    Array own_dw(held * O, C);
    experts_backward_weight<TypeParam>(held_rows(own_made.matrix()), held_rows(own_copies.matrix()),
                                       routed.routes(), Write::replace, own_dw.matrix());
    const std::vector<float> values = own_dw.values();
    all_dw.insert(all_dw.end(), values.begin(), values.end());
  }
  EXPECT_LT(reference::relative_error(y.values(), sum), 2 * tolerance<TypeParam>);
  EXPECT_TRUE(reference::same_bits(dw.values(), all_dw));
}

TEST(Combine, SameBitsOnEveryRun) {
  Routed routed = reference::routed(random_array(50, 8, 1).doubles(), 8, 3);
  reference::expect_same_bits([&] {
    Array x = random_array(150, 90, 2), y(50, 90);
    combine(x.matrix(), routed.routes(), {}, y.matrix());
    return y.values();
  });
}

// --- products ------------------------------------------------------------------------------------

/// Rows [begin, end) of a matrix.
Doubles rows_of(const Doubles& matrix, int columns, int begin, int end) {
  return {matrix.begin() + begin * columns, matrix.begin() + end * columns};
}

void append(Doubles& to, const Doubles& from) { to.insert(to.end(), from.begin(), from.end()); }

// Experts 2 and 5 have no rows; a rank that holds experts 3 and 4 begins with their rows.
TYPED_TEST(Experts, BiasesAreScaledByTheGatesOfRows) {
  constexpr int N = 60, E = 6, k = 2, O = 48;
  Array logits = random_array(N, E, 1);
  for (int n = 0; n < N; ++n) logits(n, 2) = logits(n, 5) = -100.0f;
  for (const auto& [first, held] : {std::pair(0, E), std::pair(3, 2)})
    for (const bool gated : {false, true}) {
      Routed routed = reference::routed(logits.doubles(), E, k, first, held);
      const int rows = routed.held_rows();
      Values<TypeParam> y(rows, O, 2), b(held, O, 3);
      Array gates = random_array(1, rows, 4), d_gates(1, rows), db = random_array(held, O, 5);
      const Doubles before = y.doubles(), old_db = db.doubles();
      Doubles added(before.size(), 0.0), of_gates(std::size_t(rows), 0.0), of_b(old_db.size(), 0.0);
      for (int h = 0; h < held; ++h)
        for (int r = routed.begin(h); r < routed.begin(h + 1); ++r)
          for (int c = 0; c < O; ++c) {
            const double gate = gated ? gates(0, r) : 1.0, dy = before[std::size_t(r * O + c)];
            const double bias = b.doubles()[std::size_t(h * O + c)];
            added[std::size_t(r * O + c)] = dy + gate * bias;
            of_gates[std::size_t(r)] += dy * bias;
            of_b[std::size_t(h * O + c)] += dy * gate;
          }
      const ConstVector given = gated ? ConstVector(gates.vector()) : ConstVector();
      experts_bias_backward_gates<TypeParam>(y.matrix(), b.matrix(), routed.routes(),
                                             d_gates.vector());
      EXPECT_LT(reference::relative_error(d_gates.values(), of_gates), 2e-6);
      Array replaced(held, O);
      experts_bias_backward<TypeParam>(y.matrix(), routed.routes(), given, Write::replace,
                                       replaced.matrix());
      EXPECT_LT(reference::relative_error(replaced.values(), of_b), 2e-6);
      experts_bias_backward<TypeParam>(y.matrix(), routed.routes(), given, Write::accumulate,
                                       db.matrix());
      EXPECT_LT(reference::relative_error(db.values(), reference::sum(old_db, of_b)), 2e-6);
      add_experts_bias<TypeParam>(b.matrix(), routed.routes(), given, y.matrix());
      EXPECT_LT(reference::relative_error(y.values(), added), tolerance<TypeParam>);
    }
}

TYPED_TEST(Experts, ProductsAreThoseOfEachExpert) {
  constexpr int N = 60, E = 6, k = 2, I = 32, O = 48;
  // Two experts, one of them the last, have no rows.
  Array logits = random_array(N, E, 1);
  for (int n = 0; n < N; ++n) logits(n, 2) = logits(n, 5) = -100.0f;
  Routed routed = reference::routed(logits.doubles(), E, k);
  ASSERT_EQ(routed.begin(2), routed.begin(3));
  Values<TypeParam> x(N * k, I, 2), w(E * O, I, 3), dy(N * k, O, 4);
  Values<TypeParam> y(Array(N * k, O)), dx(Array(N * k, I));
  Doubles expected_y, expected_dx, expected_dw;
  for (int e = 0; e < E; ++e) {
    const int begin = routed.begin(e), end = routed.begin(e + 1), rows = end - begin;
    const Doubles of_x = rows_of(x.doubles(), I, begin, end);
    const Doubles of_w = rows_of(w.doubles(), I, e * O, (e + 1) * O);
    const Doubles of_dy = rows_of(dy.doubles(), O, begin, end);
    append(expected_y, reference::linear_forward(of_x, of_w, rows, I, O));
    append(expected_dx, reference::linear_backward_input(of_dy, of_w, rows, I, O));
    append(expected_dw, reference::linear_backward_weight(of_dy, of_x, rows, I, O));
  }
  experts_forward<TypeParam>(x.matrix(), w.matrix(), routed.routes(), Write::replace, y.matrix());
  EXPECT_LT(reference::relative_error(y.values(), expected_y), tolerance<TypeParam>);
  experts_backward_input<TypeParam>(dy.matrix(), w.matrix(), routed.routes(), Write::replace,
                                    dx.matrix());
  EXPECT_LT(reference::relative_error(dx.values(), expected_dx), tolerance<TypeParam>);

  Array dw(E * O, I);
  experts_backward_weight<TypeParam>(dy.matrix(), x.matrix(), routed.routes(), Write::replace,
                                     dw.matrix());
  EXPECT_LT(reference::relative_error(dw.values(), expected_dw), 2e-6);
  Array added = random_array(E * O, I, 5);
  const Doubles before = added.doubles();
  experts_backward_weight<TypeParam>(dy.matrix(), x.matrix(), routed.routes(), Write::accumulate,
                                     added.matrix());
  EXPECT_LT(reference::relative_error(added.values(), reference::sum(before, expected_dw)), 2e-6);
}

// Each expert's factors have powers of two of their own, and one without rows has none.
TEST(ExpertsIn8Bits, ProductsAreThoseOfEachExpert) {
  constexpr int N = 60, E = 4, k = 2, I = 32, O = 48;
  Array logits = random_array(N, E, 1);
  for (int n = 0; n < N; ++n) logits(n, 1) = -100.0f;
  Routed routed = reference::routed(logits.doubles(), E, k);
  Values<bfloat16> x(N * k, I, 2), w(E * O, I, 3), dy(N * k, O, 4);
  Values<bfloat16> y(Array(N * k, O)), dx(Array(N * k, I)), one_y = y, one_dx = dx;
  Array dw(E * O, I), one_dw(E * O, I);
  const Routes routes = routed.routes();
  experts_forward<bfloat16>(x.matrix(), w.matrix(), routes, Write::replace, y.matrix(),
                            Factors::fp8);
  experts_backward_input<bfloat16>(dy.matrix(), w.matrix(), routes, Write::replace, dx.matrix(),
                                   Factors::fp8);
  experts_backward_weight<bfloat16>(dy.matrix(), x.matrix(), routes, Write::replace, dw.matrix(),
                                    Factors::fp8);
  for (int e = 0; e < E; ++e) {
    const auto part = [](const auto& matrix, int begin, int end) {
      auto rows = matrix;
      rows = {&matrix(begin, 0), std::size_t(end - begin), matrix.extent(1)};
      return rows;
    };
    const auto copies = [&](const auto& matrix) {
      return part(matrix, routed.begin(e), routed.begin(e + 1));
    };
    const auto of_w = part(w.matrix(), e * O, (e + 1) * O);
    linear_forward<bfloat16>(copies(x.matrix()), of_w, Write::replace, copies(one_y.matrix()),
                             Factors::fp8);
    linear_backward_input<bfloat16>(copies(dy.matrix()), of_w, Write::replace,
                                    copies(one_dx.matrix()), Factors::fp8);
    linear_backward_weight<bfloat16>(copies(dy.matrix()), copies(x.matrix()), Write::replace,
                                     part(one_dw.matrix(), e * O, (e + 1) * O), Factors::fp8);
  }
  EXPECT_TRUE(reference::same_bits(y.values(), one_y.values()));
  EXPECT_TRUE(reference::same_bits(dx.values(), one_dx.values()));
  EXPECT_TRUE(reference::same_bits(dw.values(), one_dw.values()));
}

// A layer of experts with gates, from a router's input to the sum of its copies.
TEST(LayerOfExperts, AgreesWithItselfWhereEveryExpertIsTheSame) {
  constexpr int N = 30, E = 4, k = 2, C = 16, O = 8;
  Array x = random_array(N, C, 1), one = random_array(O, C, 2), w(E * O, C);
  for (int o = 0; o < E * O; ++o)
    for (int i = 0; i < C; ++i) w(o, i) = one(o % O, i);
  Array logits = random_array(N, E, 3), gates(1, N * k), copies(N * k, C), made(N * k, O), y(N, O);
  Routed routed(N, E, k);
  choose_experts(logits.matrix(), Router{}, gates.vector(), routed.routes());
  dispatch(x.matrix(), routed.routes(), copies.matrix());
  experts_forward(copies.matrix(), w.matrix(), routed.routes(), Write::replace, made.matrix());
  for (int i = 0; i < N * k; ++i)
    for (int o = 0; o < O; ++o) made(i, o) *= gates(0, i);
  combine(made.matrix(), routed.routes(), {}, y.matrix());
  EXPECT_LT(reference::relative_error(
                y.values(), reference::linear_forward(x.doubles(), one.doubles(), N, C, O)),
            2e-6);
}

}  // namespace
}  // namespace brume::kernels
