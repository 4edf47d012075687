#include "symbolic/expr.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "arithmetic.hpp"
#include "base/error.hpp"

namespace brume::symbolic {
namespace {

std::optional<double> constant_of(const Expr& e) {
  if (e.node().op == Op::constant) return e.node().constant;
  return std::nullopt;
}

/// How tightly an operation binds, for brackets: sums 1, products 2, the rest 3.
int binding(Op op) {
  if (op == Op::add || op == Op::subtract) return 1;
  return op == Op::multiply || op == Op::divide ? 2 : 3;
}

std::string infix(const Expr& e, const char* sign) {
  const auto& arguments = e.node().arguments;
  const int mine = binding(e.node().op);
  const auto side = [&](const Expr& argument, bool right) {
    // a - (b - c) and a / (b * c) need brackets, (a - b) - c does not.
    const bool loose = right && (e.node().op == Op::subtract || e.node().op == Op::divide);
    const int theirs = binding(argument.node().op);
    return theirs < mine || (loose && theirs == mine) ? fmt::format("({})", argument.text())
                                                      : argument.text();
  };
  return side(arguments[0], false) + sign + side(arguments[1], true);
}

std::string listed(const std::string& name, const std::vector<Expr>& arguments) {
  std::string text;
  for (const Expr& argument : arguments) text += (text.empty() ? "" : ", ") + argument.text();
  return fmt::format("{}({})", name, text);
}

/// What `ceil` made an expression of, if it did: -floor(-a).
const Expr* rounded_up(const Expr& e) {
  const auto negated = [](const Expr& of) -> const Expr* {
    const bool is_negated =
        of.node().op == Op::subtract && constant_of(of.node().arguments[0]) == 0.0;
    return is_negated ? &of.node().arguments[1] : nullptr;
  };
  const Expr* floored = negated(e);
  return floored && floored->node().op == Op::floor ? negated(floored->node().arguments[0])
                                                    : nullptr;
}

}  // namespace

Expr::Expr(double constant)
    : node_(std::make_shared<Node>(Node{Op::constant, constant, {}, {}, {}})) {}

Expr Expr::variable(std::string name) {
  return Expr(std::make_shared<Node>(Node{Op::variable, 0.0, std::move(name), {}, {}}));
}

Expr Expr::call(std::shared_ptr<const Function> function, std::vector<Expr> arguments) {
  return Expr(
      std::make_shared<Node>(Node{Op::call, 0.0, {}, std::move(function), std::move(arguments)}));
}

// Folds constants; `neutral` is the second operand that changes nothing.
#define BRUME_BINARY(function, operation, shortcut)                                        \
  Expr function(const Expr& a, const Expr& b) {                                            \
    const auto x = constant_of(a), y = constant_of(b);                                     \
    if (x && y) return Expr(apply(operation, *x, *y));                                     \
    shortcut;                                                                              \
    return Expr(std::make_shared<Expr::Node>(Expr::Node{operation, 0.0, {}, {}, {a, b}})); \
  }

BRUME_BINARY(operator+, Op::add, if (x && *x == 0.0) return b; if (y && *y == 0.0) return a)
BRUME_BINARY(operator-, Op::subtract, if (y && *y == 0.0) return a)
BRUME_BINARY(operator*, Op::multiply, if ((x && *x == 0.0) || (y && *y == 0.0)) return Expr(0.0);
             if (x && *x == 1.0) return b; if (y && *y == 1.0) return a)
BRUME_BINARY(operator/, Op::divide, if (y && *y == 1.0) return a; if (x && *x == 0.0) return a)
BRUME_BINARY(max, Op::max, if (a.node_ == b.node_) return a)
BRUME_BINARY(min, Op::min, if (a.node_ == b.node_) return a)
BRUME_BINARY(less, Op::less, )
#undef BRUME_BINARY

Expr floor(const Expr& a) {
  if (const auto x = constant_of(a)) return Expr(std::floor(*x));
  return Expr(std::make_shared<Expr::Node>(Expr::Node{Op::floor, 0.0, {}, {}, {a}}));
}

Expr ceil(const Expr& a) { return Expr(0.0) - floor(Expr(0.0) - a); }

Expr select(const Expr& condition, const Expr& yes, const Expr& no) {
  return condition * yes + (Expr(1.0) - condition) * no;
}

std::string Expr::text() const {
  const Node& n = *node_;
  if (const Expr* rounded = rounded_up(*this)) return listed("ceil", {*rounded});
  switch (n.op) {
    case Op::constant: return fmt::format("{:g}", n.constant);
    case Op::variable: return n.name;
    case Op::add: return infix(*this, " + ");
    case Op::subtract: return infix(*this, " - ");
    case Op::multiply: return infix(*this, " ");
    case Op::divide: return infix(*this, " / ");
    case Op::max: return listed("max", n.arguments);
    case Op::min: return listed("min", n.arguments);
    case Op::floor: return listed("floor", n.arguments);
    case Op::less: return fmt::format("[{} < {}]", n.arguments[0].text(), n.arguments[1].text());
    case Op::call: return listed(n.function->name, n.arguments);
  }
  return {};
}

double Expr::evaluate(const std::map<std::string, double, std::less<>>& values) const {
  std::unordered_map<const Node*, double> known;  // what several parts share is computed once
  const std::function<double(const Expr&)> value_of = [&](const Expr& e) -> double {
    const Node& n = e.node();
    if (n.op == Op::constant) return n.constant;
    if (n.op == Op::variable) {
      const auto found = values.find(n.name);
      require(found != values.end(), Failure::bug, "no value for variable '{}'", n.name);
      return found->second;
    }
    if (const auto found = known.find(&n); found != known.end()) return found->second;
    std::vector<double> arguments;
    for (const Expr& argument : n.arguments) arguments.push_back(value_of(argument));
    return known[&n] = n.op == Op::call ? n.function->value(arguments)
                                        : apply(n.op, arguments.front(), arguments.back());
  };
  return value_of(*this);
}

}  // namespace brume::symbolic
