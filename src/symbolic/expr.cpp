#include "symbolic/expr.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "base/error.hpp"

namespace brume::symbolic {
namespace {

double apply(Op op, double a, double b) {
  switch (op) {
    case Op::add: return a + b;
    case Op::subtract: return a - b;
    case Op::multiply: return a * b;
    case Op::divide: return a / b;
    case Op::max: return std::max(a, b);
    case Op::min: return std::min(a, b);
    case Op::floor: return std::floor(a);
    case Op::less: return a < b ? 1.0 : 0.0;
    default: throw Error(Failure::bug, "not an arithmetic operation");
  }
}

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
  std::vector<std::string> names;
  std::vector<double> numbers;
  std::vector<const double*> columns;
  for (const auto& [name, value] : values) {
    names.push_back(name);
    numbers.push_back(value);
  }
  for (const double& number : numbers) columns.push_back(&number);
  double result = 0.0;
  double* output = &result;
  Tape(std::span(this, 1), names).evaluate(columns, std::span(&output, 1), 1);
  return result;
}

Tape::Tape(std::span<const Expr> outputs, std::vector<std::string> variables)
    : num_variables_(variables.size()) {
  std::unordered_map<const Expr::Node*, int> seen;
  std::map<std::tuple<Op, std::vector<int>, double, int, const Function*>, int> registers;
  const std::function<int(const Expr&)> visit = [&](const Expr& e) -> int {
    const Expr::Node& n = e.node();
    if (const auto found = seen.find(&n); found != seen.end()) return found->second;
    Step step{.op = n.op, .arguments = {}, .constant = n.constant, .function = n.function};
    for (const Expr& argument : n.arguments) step.arguments.push_back(visit(argument));
    if (n.op == Op::variable) {
      const auto place = std::find(variables.begin(), variables.end(), n.name);
      require(place != variables.end(), Failure::bug, "no value for variable '{}'", n.name);
      step.variable = int(place - variables.begin());
    }
    // Equal steps of differently built expressions share a register.
    const auto [entry, fresh] = registers.try_emplace(
        std::tuple(step.op, step.arguments, step.constant, step.variable, step.function.get()),
        int(steps_.size()));
    if (fresh) steps_.push_back(std::move(step));
    return seen[&n] = entry->second;
  };
  for (const Expr& output : outputs) outputs_.push_back(visit(output));
}

void Tape::evaluate(std::span<const double* const> inputs, std::span<double* const> outputs,
                    std::size_t count) const {
  require(inputs.size() == num_variables_ && outputs.size() == outputs_.size(), Failure::bug,
          "a tape of {} variables and {} outputs got {} and {}", num_variables_, outputs_.size(),
          inputs.size(), outputs.size());
  // Registers of a block stay in the second-level cache.
  const std::size_t block = std::min<std::size_t>(256, count);
  std::vector<double> registers(steps_.size() * block);
  std::vector<double> values;
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t size = std::min(block, count - first);
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const Step& step = steps_[s];
      double* out = &registers[s * block];
      const auto in = [&](std::size_t i) {
        return &registers[std::size_t(step.arguments[i]) * block];
      };
      const auto each = [&](auto&& f) {
        const double* a = in(0);
        const double* b = step.arguments.size() > 1 ? in(1) : a;
        for (std::size_t i = 0; i < size; ++i) out[i] = f(a[i], b[i]);
      };
      switch (step.op) {
        case Op::constant: std::fill_n(out, size, step.constant); break;
        case Op::variable:
          std::copy_n(inputs[std::size_t(step.variable)] + first, size, out);
          break;
        case Op::add: each([](double a, double b) { return a + b; }); break;
        case Op::subtract: each([](double a, double b) { return a - b; }); break;
        case Op::multiply: each([](double a, double b) { return a * b; }); break;
        case Op::divide: each([](double a, double b) { return a / b; }); break;
        case Op::max: each([](double a, double b) { return a < b ? b : a; }); break;
        case Op::min: each([](double a, double b) { return b < a ? b : a; }); break;
        case Op::floor: each([](double a, double) { return std::floor(a); }); break;
        case Op::less: each([](double a, double b) { return a < b ? 1.0 : 0.0; }); break;
        case Op::call:
          values.resize(step.arguments.size());
          for (std::size_t i = 0; i < size; ++i) {
            for (std::size_t a = 0; a < values.size(); ++a) values[a] = in(a)[i];
            out[i] = step.function->value(values);
          }
          break;
      }
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o)
      std::copy_n(&registers[std::size_t(outputs_[o]) * block], size, outputs[o] + first);
  }
}

}  // namespace brume::symbolic
