#include "symbolic/batch.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <queue>
#include <utility>

#include "arithmetic.hpp"
#include "base/error.hpp"

namespace brume::symbolic {
namespace {

constexpr std::size_t lanes = 8;  ///< candidates side by side: as many as a vector register holds
constexpr std::size_t most_arguments = 8;

/// A register.
struct alignas(lanes * sizeof(double)) Lanes {
  double numbers[lanes];
};

/// The arguments of a function for the last candidate, and its answer.
struct Asked {
  std::array<double, most_arguments> arguments;
  double answer;
};

/// Notes in which bits an argument differs from the candidate's before.
/// @param last  of the candidate before all of these
/// @return that of the last one
double compare(const Lanes& argument, double last, std::array<std::uint64_t, lanes>& differs) {
  Lanes before;
  before.numbers[0] = last;
  std::copy_n(argument.numbers, lanes - 1, before.numbers + 1);
  for (std::size_t i = 0; i < lanes; ++i)
    differs[i] |= std::bit_cast<std::uint64_t>(argument.numbers[i]) ^
                  std::bit_cast<std::uint64_t>(before.numbers[i]);
  return argument.numbers[lanes - 1];
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

/// Orders steps in runs of one kind, as long as they can be, so that what tells kinds apart is
/// asked once a run. Of a kind the step comes first whose arguments are known the longest: right
/// after the last of them it would wait for it.
///
/// @param is_known  [step] what need not be computed
/// @param kind      of a step
std::vector<std::size_t> in_runs(const std::vector<Tape::Step>& steps,
                                 const std::vector<bool>& is_known, auto kind) {
  std::vector<std::vector<std::size_t>> users(steps.size());
  std::vector<int> unknown(steps.size(), 0);  // arguments
  std::map<decltype(kind(steps[0])), std::queue<std::size_t>> ready;
  std::size_t count = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (is_known[s]) continue;
    ++count;
    for (const int argument : steps[s].arguments)
      if (const auto a = std::size_t(argument); !is_known[a]) {
        users[a].push_back(s);
        ++unknown[s];
      }
    if (unknown[s] == 0) ready[kind(steps[s])].push(s);
  }
  const auto size = [](const auto& of_kind) { return of_kind.second.size(); };
  std::vector<std::size_t> order;
  while (order.size() < count) {
    std::queue<std::size_t>& run = std::ranges::max_element(ready, {}, size)->second;
    for (; !run.empty(); run.pop()) {
      order.push_back(run.front());
      for (const std::size_t user : users[run.front()])
        if (--unknown[user] == 0) ready[kind(steps[user])].push(user);
    }
  }
  return order;
}

}  // namespace

BatchTape::BatchTape(const Tape& tape, const std::vector<bool>& shared)
    : reads_(tape.num_variables_, false) {
  const std::vector<Tape::Step>& all = tape.steps_;
  std::vector<int> place(all.size());  // of a shared step among shared_
  std::vector<bool> is_shared(all.size());
  const auto shares = [&](int step) { return bool(is_shared[step]); };
  for (std::size_t s = 0; s < all.size(); ++s) {
    const Tape::Step& step = all[s];
    if (step.op == Op::variable) reads_[step.variable] = true;
    is_shared[s] = step.op == Op::variable ? shared[step.variable]
                                           : std::ranges::all_of(step.arguments, shares);
    if (!is_shared[s]) continue;
    place[s] = int(shared_.size());
    Tape::Step& mine = shared_.emplace_back(step);
    for (int& argument : mine.arguments) argument = place[argument];
  }
  const auto kind = [&](const Tape::Step& step) {
    const bool computes = step.op != Op::variable && step.op != Op::call;
    return Kind{step.op, computes && shares(step.arguments.front()),
                computes && shares(step.arguments.back())};
  };
  const std::vector<std::size_t> order = in_runs(all, is_shared, kind);

  std::vector<std::size_t> last_use(all.size(), 0);
  for (std::size_t i = 0; i < order.size(); ++i)
    for (int argument : all[order[i]].arguments) last_use[argument] = i;
  for (int output : tape.outputs_) last_use[output] = order.size();
  std::vector<std::int32_t> register_of(all.size());
  std::vector<std::int32_t> kept(all.size(), -1);  // of a shared step among kept_
  const auto operand = [&](int argument) {
    const auto s = std::size_t(argument);
    if (!is_shared[s]) return Operand{false, register_of[s]};
    if (kept[s] < 0) {
      kept[s] = std::int32_t(kept_.size());
      kept_.push_back(std::size_t(place[s]));
    }
    return Operand{true, kept[s]};
  };
  Allocation registers;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Tape::Step& step = all[order[i]];
    if (runs_.empty() || runs_.back().kind != kind(step)) runs_.push_back({kind(step), 0});
    ++runs_.back().length;
    Step& mine = steps_.emplace_back();
    if (step.op == Op::variable) {
      mine.a = step.variable;
    } else if (step.op == Op::call) {
      require(step.arguments.size() <= most_arguments, Failure::bug, "{} takes too much",
              step.function->name);
      Call& call = calls_.emplace_back(Call{step.function, {}});
      for (int argument : step.arguments) call.operands.push_back(operand(argument));
    } else {
      mine.a = operand(step.arguments.front()).place;
      mine.b = operand(step.arguments.back()).place;
    }
    // A result may take the place of an operand.
    std::vector<int> done = step.arguments;
    std::ranges::sort(done);
    done.erase(std::unique(done.begin(), done.end()), done.end());
    for (int argument : done)
      if (const auto a = std::size_t(argument); !is_shared[a] && last_use[a] == i)
        registers.give_back(register_of[a]);
    register_of[order[i]] = mine.to = registers.take();
  }
  for (int output : tape.outputs_) outputs_.push_back(operand(output));
  num_registers_ = registers.count();
}

std::vector<double> BatchTape::common(std::span<const double> values) const {
  std::vector<double> numbers(shared_.size()), arguments;
  for (std::size_t s = 0; s < shared_.size(); ++s) {
    const Tape::Step& step = shared_[s];
    const auto of = [&](int argument) { return numbers[argument]; };
    if (step.op == Op::constant) {
      numbers[s] = step.constant;
    } else if (step.op == Op::variable) {
      numbers[s] = values[step.variable];
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

namespace {

/// Computes a run of steps for all lanes.
///
/// @param common  what shared operands are read from
template <bool shared_a, bool shared_b, class F, class Step>
[[gnu::noinline]] void compute(F f, std::span<const Step> run, const double* common,
                               Lanes* registers) {
  for (const Step& step : run) {
    const double* const a = shared_a ? common + step.a : registers[step.a].numbers;
    const double* const b = shared_b ? common + step.b : registers[step.b].numbers;
    Lanes result;
    for (std::size_t i = 0; i < lanes; ++i)
      result.numbers[i] = f(a[shared_a ? 0 : i], b[shared_b ? 0 : i]);
    registers[step.to] = result;
  }
}

}  // namespace

void BatchTape::evaluate(std::span<const double> common, std::span<const double* const> inputs,
                         std::span<double* const> outputs, std::size_t count) const {
  require(inputs.size() == reads_.size() && outputs.size() == outputs_.size() &&
              common.size() == kept_.size(),
          Failure::bug, "a batch of {} variables and {} outputs got {} and {}", reads_.size(),
          outputs_.size(), inputs.size(), outputs.size());
  thread_local std::vector<Lanes> kept_registers;
  thread_local std::vector<Asked> kept_asked;
  kept_registers.resize(std::max(kept_registers.size(), num_registers_));
  kept_asked.resize(std::max(kept_asked.size(), calls_.size()));
  Lanes* const registers = kept_registers.data();
  Asked* const asked = kept_asked.data();  // [call]
  const double* const shared = common.data();
  const auto number = [&](Operand operand, std::size_t lane) {
    return operand.shared ? shared[operand.place] : registers[operand.place].numbers[lane];
  };
  // A function is asked where one of its arguments differs from the candidate's before.
  const auto answers = [&](const Call& call, Asked& of_last, bool begins) {
    std::array<std::uint64_t, lanes> differs{begins};
    for (std::size_t a = 0; a < call.operands.size(); ++a)
      if (const Operand operand = call.operands[a]; !operand.shared)
        of_last.arguments[a] = compare(registers[operand.place], of_last.arguments[a], differs);
    Lanes found;
    for (std::size_t i = 0; i < lanes; ++i) {
      if (differs[i]) {
        std::array<double, most_arguments> arguments;
        for (std::size_t a = 0; a < call.operands.size(); ++a)
          arguments[a] = number(call.operands[a], i);
        of_last.answer = call.function->value(std::span(arguments).first(call.operands.size()));
      }
      found.numbers[i] = of_last.answer;
    }
    return found;
  };
  for (std::size_t first = 0; first < count; first += lanes) {
    const std::size_t size = std::min(lanes, count - first);
    const Step* step = steps_.data();
    std::size_t call = 0;
    for (const auto& [kind, length] : runs_) {
      const std::span run(step, length);
      step += length;
      if (kind.op == Op::variable) {
        for (const auto& [to, variable, unused] : run) {
          const double* const from = inputs[variable] + first;
          for (std::size_t i = 0; i < lanes; ++i)  // the last candidate fills up the lanes
            registers[to].numbers[i] = from[std::min(i, size - 1)];
        }
      } else if (kind.op == Op::call) {
        for (const Step& one : run) {
          registers[one.to] = answers(calls_[call], asked[call], first == 0);
          ++call;
        }
      } else {
        arithmetic(kind.op, [&](auto f) {
          if (kind.shared_a)
            compute<true, false>(f, run, shared, registers);
          else if (kind.shared_b)
            compute<false, true>(f, run, shared, registers);
          else
            compute<false, false>(f, run, shared, registers);
        });
      }
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o)
      for (std::size_t i = 0; i < size; ++i) outputs[o][first + i] = number(outputs_[o], i);
  }
}

}  // namespace brume::symbolic
