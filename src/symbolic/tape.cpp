#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "arithmetic.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"
#include "symbolic/expr.hpp"

namespace brume::symbolic {
namespace {

/// Registers of a block stay in the second-level cache.
constexpr std::size_t block_size = 256;

/// One number for each candidate of a block, or one for all of them.
struct Register {
  double* numbers = nullptr;
  bool same = false;
};

template <class F>
void each(F f, const Register& a, const Register& b, Register& out, std::size_t size) {
  out.same = a.same && b.same;
  double* const to = out.numbers;
  const double *const x = a.numbers, *const y = b.numbers;
  if (out.same)
    to[0] = f(x[0], y[0]);
  else if (a.same)
    for (std::size_t i = 0; i < size; ++i) to[i] = f(x[0], y[i]);
  else if (b.same)
    for (std::size_t i = 0; i < size; ++i) to[i] = f(x[i], y[0]);
  else
    for (std::size_t i = 0; i < size; ++i) to[i] = f(x[i], y[i]);
}

void copy(const double* column, Register& out, std::size_t size) {
  out.same = std::adjacent_find(column, column + size, std::not_equal_to{}) == column + size;
  std::copy_n(column, out.same ? 1 : size, out.numbers);
}

/// Asks the function again only where an argument differs from the last candidate's.
void call(const Function& function, const std::vector<const Register*>& arguments, Register& out,
          std::size_t size) {
  out.same = std::ranges::all_of(arguments, &Register::same);
  std::vector<double> values(arguments.size());
  for (std::size_t i = 0; i < (out.same ? 1 : size); ++i) {
    bool changed = i == 0;
    for (std::size_t a = 0; a < values.size(); ++a) {
      const double value = arguments[a]->numbers[arguments[a]->same ? 0 : i];
      changed |= value != values[a];
      values[a] = value;
    }
    out.numbers[i] = changed ? function.value(values) : out.numbers[i - 1];
  }
}

}  // namespace

std::size_t Tape::Step::hash() const {
  std::size_t sum = std::size_t(op);
  const auto add = [&sum](std::size_t value) { sum = hash_with(sum, value); };
  for (int argument : arguments) add(std::size_t(argument));
  add(std::hash<double>()(constant));
  add(std::size_t(variable));
  add(std::hash<const void*>()(function.get()));
  return sum;
}

Tape::Tape(std::span<const Expr> outputs, std::vector<std::string> variables)
    : num_variables_(variables.size()) {
  std::unordered_map<const Expr::Node*, int> seen;
  const auto hash = [this](int i) { return steps_[i].hash(); };
  const auto equal = [this](int a, int b) { return steps_[a] == steps_[b]; };
  std::unordered_set<int, decltype(hash), decltype(equal)> registers(1024, hash, equal);
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
    steps_.push_back(std::move(step));
    const auto [entry, fresh] = registers.insert(int(steps_.size()) - 1);
    if (!fresh) steps_.pop_back();
    return seen[&n] = *entry;
  };
  for (const Expr& output : outputs) outputs_.push_back(visit(output));
}

void Tape::evaluate(std::span<const double* const> inputs, std::span<double* const> outputs,
                    std::size_t count) const {
  require(inputs.size() == num_variables_ && outputs.size() == outputs_.size(), Failure::bug,
          "a tape of {} variables and {} outputs got {} and {}", num_variables_, outputs_.size(),
          inputs.size(), outputs.size());
  const std::size_t block = std::min(block_size, count);
  const auto numbers = std::make_unique_for_overwrite<double[]>(steps_.size() * block);
  std::vector<Register> registers(steps_.size());
  for (std::size_t s = 0; s < steps_.size(); ++s) registers[s].numbers = &numbers[s * block];
  std::vector<const Register*> arguments;
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t size = std::min(block, count - first);
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const Step& step = steps_[s];
      Register& out = registers[s];
      arguments.clear();
      for (int argument : step.arguments) arguments.push_back(&registers[argument]);
      if (step.op == Op::constant)
        out.same = true, out.numbers[0] = step.constant;
      else if (step.op == Op::variable)
        copy(inputs[step.variable] + first, out, size);
      else if (step.op == Op::call)
        call(*step.function, arguments, out, size);
      else
        arithmetic(step.op,
                   [&](auto f) { each(f, *arguments.front(), *arguments.back(), out, size); });
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      const Register& from = registers[outputs_[o]];
      if (from.same)
        std::fill_n(outputs[o] + first, size, from.numbers[0]);
      else
        std::copy_n(from.numbers, size, outputs[o] + first);
    }
  }
}

}  // namespace brume::symbolic
