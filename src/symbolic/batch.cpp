#include "symbolic/batch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "arithmetic.hpp"
#include "base/error.hpp"

namespace brume::symbolic {
namespace {

constexpr std::size_t lanes = 8;         ///< computed at once: as many as a vector register holds
constexpr std::size_t batch_block = 64;  ///< registers of a block stay in cache

/// One number for each candidate, or the same for all.
struct Operand {
  const double* numbers;
  bool same;
};

template <class F>
void each(F f, Operand a, Operand b, double* to, std::size_t size) {
  const auto over = [&](auto left, auto right) {
    for (std::size_t first = 0; first < size; first += lanes) {
      double result[lanes];
      for (std::size_t i = 0; i < lanes; ++i) result[i] = f(left(first + i), right(first + i));
      std::copy_n(result, lanes, to + first);
    }
  };
  const auto of = [](const double* numbers) {
    return [numbers](std::size_t i) { return numbers[i]; };
  };
  const auto all = [](double number) { return [number](std::size_t) { return number; }; };
  if (a.same)
    over(all(*a.numbers), of(b.numbers));
  else if (b.same)
    over(of(a.numbers), all(*b.numbers));
  else
    over(of(a.numbers), of(b.numbers));
}

constexpr std::size_t most_arguments = 8;

/// Asks the function again only where an argument differs from the last candidate's. The result may
/// take the place of an operand.
void call(const Function& function, std::span<const Operand> operands, double* to,
          std::size_t size) {
  std::array<double, most_arguments> values{};
  for (std::size_t i = 0; i < size; ++i) {
    bool changed = i == 0;
    for (std::size_t a = 0; a < operands.size(); ++a) {
      const double value = operands[a].numbers[operands[a].same ? 0 : i];
      changed |= value != values[a];
      values[a] = value;
    }
    to[i] = changed ? function.value(std::span(values).first(operands.size())) : to[i - 1];
  }
}

/// Registers that are free again once nobody needs what they hold.
class Allocation {
 public:
  std::int32_t take() {
    if (free_.empty()) return std::int32_t(count_++);
    const std::int32_t taken = free_.back();
    free_.pop_back();
    return taken;
  }
  void give_back(std::int32_t taken) { free_.push_back(taken); }
  std::size_t count() const { return count_; }

 private:
  std::vector<std::int32_t> free_;
  std::size_t count_ = 0;
};

}  // namespace

BatchTape::BatchTape(const Tape& tape, const std::vector<bool>& shared)
    : reads_(tape.num_variables_, false) {
  const std::vector<Tape::Step>& all = tape.steps_;
  std::vector<int> place(all.size());  // of a shared step among shared_
  std::vector<bool> is_shared(all.size());
  std::vector<std::size_t> last_use(all.size(), 0);
  for (std::size_t s = 0; s < all.size(); ++s) {
    const Tape::Step& step = all[s];
    if (step.op == Op::variable) reads_[std::size_t(step.variable)] = true;
    is_shared[s] =
        step.op == Op::variable
            ? shared[std::size_t(step.variable)]
            : std::ranges::all_of(step.arguments, [&](int a) { return is_shared[std::size_t(a)]; });
    for (int argument : step.arguments) last_use[std::size_t(argument)] = s;
    if (!is_shared[s]) continue;
    place[s] = int(shared_.size());
    Tape::Step& mine = shared_.emplace_back(step);
    for (int& argument : mine.arguments) argument = place[std::size_t(argument)];
  }
  for (int output : tape.outputs_) last_use[std::size_t(output)] = all.size();

  std::vector<std::int32_t> operand(all.size(), 0);
  std::vector<bool> kept(all.size(), false);
  const auto read = [&](int argument) {
    const auto s = std::size_t(argument);
    if (is_shared[s] && !kept[s]) {
      kept[s] = true;
      operand[s] = ~std::int32_t(kept_.size());
      kept_.push_back(std::size_t(place[s]));
    }
    return operand[s];
  };
  Allocation registers;
  for (std::size_t s = 0; s < all.size(); ++s) {
    if (is_shared[s]) continue;
    const Tape::Step& step = all[s];
    Step& mine = steps_.emplace_back(Step{.op = step.op});
    if (step.op == Op::variable) {
      mine.a = step.variable;
    } else if (step.op == Op::call) {
      require(step.arguments.size() <= most_arguments, Failure::bug, "{} takes too much",
              step.function->name);
      mine.a = std::int32_t(step.arguments.size());
      mine.b = std::int32_t(operands_.size());
      for (int argument : step.arguments) operands_.push_back(read(argument));
      functions_.push_back(step.function);
    } else {
      mine.a = read(step.arguments.front());
      mine.b = read(step.arguments.back());
    }
    // A result may take the place of an operand, number by number.
    std::vector<int> done = step.arguments;
    std::ranges::sort(done);
    done.erase(std::unique(done.begin(), done.end()), done.end());
    for (int argument : done)
      if (const auto a = std::size_t(argument); !is_shared[a] && last_use[a] == s)
        registers.give_back(operand[a]);
    operand[s] = mine.to = registers.take();
  }
  for (int output : tape.outputs_) outputs_.push_back(read(output));
  num_registers_ = registers.count();
}

std::vector<double> BatchTape::common(std::span<const double> values) const {
  std::vector<double> numbers(shared_.size()), arguments;
  for (std::size_t s = 0; s < shared_.size(); ++s) {
    const Tape::Step& step = shared_[s];
    const auto of = [&](int argument) { return numbers[std::size_t(argument)]; };
    if (step.op == Op::constant) {
      numbers[s] = step.constant;
    } else if (step.op == Op::variable) {
      numbers[s] = values[std::size_t(step.variable)];
    } else if (step.op == Op::call) {
      arguments.clear();
      for (int argument : step.arguments) arguments.push_back(of(argument));
      numbers[s] = step.function->value(arguments);
    } else {
      numbers[s] = apply(step.op, of(step.arguments.front()), of(step.arguments.back()));
    }
  }
  std::vector<double> kept;
  kept.reserve(kept_.size());
  for (std::size_t s : kept_) kept.push_back(numbers[s]);
  return kept;
}

void BatchTape::evaluate(std::span<const double> common, std::span<const double* const> inputs,
                         std::span<double* const> outputs, std::size_t count) const {
  require(inputs.size() == reads_.size() && outputs.size() == outputs_.size() &&
              common.size() == kept_.size(),
          Failure::bug, "a batch of {} variables and {} outputs got {} and {}", reads_.size(),
          outputs_.size(), inputs.size(), outputs.size());
  thread_local std::vector<double> registers;
  std::vector<Operand> operands;
  const std::size_t stride = (std::min(batch_block, count) + lanes - 1) / lanes * lanes;
  registers.resize(num_registers_ * stride);
  const auto at = [&](std::int32_t place) { return &registers[std::size_t(place) * stride]; };
  const auto operand = [&](std::int32_t place) {
    return place < 0 ? Operand{&common[std::size_t(~place)], true} : Operand{at(place), false};
  };
  for (std::size_t first = 0; first < count; first += batch_block) {
    const std::size_t size = std::min(stride, count - first);
    const std::size_t whole = (size + lanes - 1) / lanes * lanes;  // the last one fills it up
    auto function = functions_.begin();
    for (const Step& step : steps_) {
      double* const to = at(step.to);
      if (step.op == Op::variable) {
        const double* const from = inputs[std::size_t(step.a)] + first;
        std::copy_n(from, size, to);
        std::fill(to + size, to + whole, from[size - 1]);
      } else if (step.op == Op::call) {
        operands.clear();
        for (std::int32_t i = 0; i < step.a; ++i)
          operands.push_back(operand(operands_[std::size_t(step.b + i)]));
        call(**function++, operands, to, size);
        std::fill(to + size, to + whole, to[size - 1]);
      } else {
        arithmetic(step.op, [&](auto f) { each(f, operand(step.a), operand(step.b), to, whole); });
      }
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      const auto [numbers, same] = operand(outputs_[o]);
      if (same)
        std::fill_n(outputs[o] + first, size, *numbers);
      else
        std::copy_n(numbers, size, outputs[o] + first);
    }
  }
}

}  // namespace brume::symbolic
