#include "symbolic/expr.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.hpp"
#include "symbolic/batch.hpp"

namespace brume::symbolic {
namespace {

const Expr x = Expr::variable("x");
const Expr y = Expr::variable("y");

TEST(Expr, EvaluatesArithmetic) {
  const Expr e = max(x * y + 2.0, x / y) - floor(x) + min(x, 1.0);
  EXPECT_DOUBLE_EQ(e.evaluate({{"x", 3.5}, {"y", 2.0}}), 9.0 - 3.0 + 1.0);
}

TEST(Expr, FoldsConstantsAndNeutralElements) {
  EXPECT_EQ((x * 1.0 + 0.0).text(), "x");
  EXPECT_EQ((x * 0.0).text(), "0");
  EXPECT_EQ((Expr(2.0) * Expr(3.0)).text(), "6");
}

TEST(Expr, PrintsNoNeedlessBrackets) {
  EXPECT_EQ((x + y * 2.0).text(), "x + y 2");
  EXPECT_EQ(((x + y) * 2.0).text(), "(x + y) 2");
  EXPECT_EQ((x - (y - 1.0)).text(), "x - (y - 1)");
  EXPECT_EQ((x / (y * 2.0)).text(), "x / (y 2)");
}

TEST(Expr, SelectAndCeil) {
  const Expr e = select(less(x, 2.0), y, ceil(y));
  EXPECT_DOUBLE_EQ(e.evaluate({{"x", 1.0}, {"y", 0.5}}), 0.5);
  EXPECT_DOUBLE_EQ(e.evaluate({{"x", 2.0}, {"y", 0.5}}), 1.0);
  EXPECT_EQ(ceil(x / 4.0).text(), "ceil(x / 4)");
  EXPECT_EQ((Expr(0.0) - floor(x)).text(), "0 - floor(x)");
}

TEST(Expr, MissingVariableIsABug) { EXPECT_THROW(x.evaluate({{"y", 1.0}}), Error); }

// The tape against direct arithmetic, over more candidates than one block holds.
TEST(Tape, EvaluatesManyCandidatesAndCallsFunctions) {
  const auto hypotenuse = std::make_shared<const Function>(
      Function{"hypot", [](std::span<const double> v) { return std::hypot(v[0], v[1]); }});
  const Expr shared = x * y;
  const std::vector<Expr> outputs{shared + 1.0, shared * shared, Expr::call(hypotenuse, {x, y})};
  const Tape tape(outputs, {"x", "y"});
  std::mt19937 random(7);
  std::uniform_real_distribution<double> number(-5.0, 5.0);
  const std::size_t count = 1000;
  std::vector<double> xs(count), ys(count), a(count), b(count), c(count);
  for (std::size_t i = 0; i < count; ++i) xs[i] = number(random), ys[i] = number(random);
  const std::vector<const double*> in{xs.data(), ys.data()};
  const std::vector<double*> out{a.data(), b.data(), c.data()};

  tape.evaluate(in, out, count);

  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_NEAR(a[i], xs[i] * ys[i] + 1.0, 1e-13);
    ASSERT_NEAR(b[i], xs[i] * ys[i] * (xs[i] * ys[i]), 1e-11);
    ASSERT_DOUBLE_EQ(c[i], std::hypot(xs[i], ys[i]));
  }
}

// What is the same for all candidates of a block is computed once, and each run of equal arguments
// asks a function once: 1000 candidates in blocks of 256 whose x changes at 300 and 700.
TEST(Tape, AsksFunctionsOnceForEqualArguments) {
  int asked = 0;
  const auto twice = std::make_shared<const Function>(
      Function{"twice", [&asked](std::span<const double> v) { return ++asked, 2.0 * v[0]; }});
  const std::vector<Expr> outputs{Expr::call(twice, {x}) + y, x - 1.0};
  const Tape tape(outputs, {"x", "y"});
  std::vector<double> xs(1000, 1.0), ys(1000), a(1000), b(1000);
  for (std::size_t i = 0; i < 1000; ++i) xs[i] += (i >= 300) + (i >= 700), ys[i] = double(i);

  tape.evaluate(std::vector<const double*>{xs.data(), ys.data()}, std::vector{a.data(), b.data()},
                1000);

  EXPECT_EQ(asked, 1 + 2 + 2 + 1);
  for (std::size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(a[i], 2.0 * xs[i] + ys[i]);
    ASSERT_EQ(b[i], xs[i] - 1.0);
  }
}

TEST(Tape, SharesEqualSteps) {
  const std::vector<Expr> outputs{x * y + 1.0, x * y + 2.0};
  // x, y, x y, 1, sum, 2, sum
  EXPECT_EQ(Tape(outputs, {"x", "y"}).steps(), 7u);
}

// Both parts against the plain tape: outputs of each kind, functions over both parts, and more
// candidates than are computed at once, with some left over.
TEST(BatchTape, AgreesWithThePlainTape) {
  int asked = 0;
  const auto hypotenuse = std::make_shared<const Function>(Function{
      "hypot", [&asked](std::span<const double> v) { return ++asked, std::hypot(v[0], v[1]); }});
  const Expr z = Expr::variable("z");
  const Expr shared = Expr::call(hypotenuse, {x, x + 1.0}), step = floor(y / 100.0);
  const std::vector<Expr> outputs{shared, y, less(y, x) * max(shared, y) - min(y * y, 7.0 / x),
                                  Expr::call(hypotenuse, {shared, step}), Expr(3.0)};
  const std::vector<std::string> names{"x", "y", "z"};
  const Tape tape(outputs, names);
  const BatchTape batch(tape, {true, false, true});
  const std::size_t count = 403;
  std::vector<double> xs(count, 2.5), ys(count), zs(count, 1.0);
  for (std::size_t i = 0; i < count; ++i) ys[i] = double(i) - 100.0;
  std::vector<std::vector<double>> expected(outputs.size(), std::vector<double>(count));
  std::vector<std::vector<double>> found = expected;
  const auto columns = [](std::vector<std::vector<double>>& all) {
    std::vector<double*> pointers;
    for (auto& column : all) pointers.push_back(column.data());
    return pointers;
  };
  const std::vector<const double*> inputs{xs.data(), ys.data(), zs.data()};
  tape.evaluate(inputs, columns(expected), count);
  asked = 0;

  const std::vector<double> common = batch.common(std::vector{2.5, 0.0, 0.0});
  batch.evaluate(common, {{nullptr, ys.data(), nullptr}}, columns(found), count);

  EXPECT_EQ(found, expected);
  // Once for all, and once for each hundred.
  EXPECT_EQ(asked, 1 + 5);
  EXPECT_TRUE(batch.reads(0));
  EXPECT_FALSE(batch.reads(2));
}

// Steps are computed in another order than they were built, and share registers.
TEST(BatchTape, AgreesForRandomExpressions) {
  std::mt19937 random(5);
  const auto below = [&](std::size_t end) { return std::size_t(random() % end); };
  const auto product = std::make_shared<const Function>(
      Function{"product", [](std::span<const double> v) { return v[0] * v[1]; }});
  const std::vector<std::string> names{"x", "y", "z", "w"};
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<Expr> made{2.0, 0.5};
    for (const std::string& name : names) made.push_back(Expr::variable(name));
    for (int step = 0; step < 200; ++step) {
      const Expr &a = made[below(made.size())], &b = made[below(made.size())];
      const Expr all[] = {a + b,
                          a - b,
                          max(a, b),
                          min(a, b),
                          floor(a / 3.0),
                          less(a, b) * a,
                          0.5 * a * less(b, 1.0),
                          Expr::call(product, {less(a, b), b})};
      made.push_back(all[below(std::size(all))]);
    }
    const std::vector<Expr> outputs(made.end() - 20, made.end());
    const Tape tape(outputs, names);
    const BatchTape batch(tape, {true, false, true, false});
    const std::size_t count = 1 + below(20);
    std::vector<std::vector<double>> columns(names.size(), std::vector<double>(count));
    std::vector<double> values;
    for (std::size_t v = 0; v < names.size(); ++v) {
      for (double& number : columns[v]) number = double(below(9)) - 4.0;
      if (v % 2 == 0) columns[v].assign(count, columns[v][0]);
      values.push_back(columns[v][0]);
    }
    std::vector<std::vector<double>> expected(outputs.size(), std::vector<double>(count));
    std::vector<std::vector<double>> found = expected;
    std::vector<const double*> inputs;
    std::vector<double*> to_expected, to_found;
    for (const auto& column : columns) inputs.push_back(column.data());
    for (auto& column : expected) to_expected.push_back(column.data());
    for (auto& column : found) to_found.push_back(column.data());
    tape.evaluate(inputs, to_expected, count);
    batch.evaluate(batch.common(values), inputs, to_found, count);
    ASSERT_EQ(found, expected) << trial;
  }
}

}  // namespace
}  // namespace brume::symbolic
