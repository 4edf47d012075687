/// @file A prediction for people: formula, terms in numbers, and what binds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>

#include "analyzer/analyzer.hpp"
#include "base/text.hpp"
#include "price/price.hpp"

namespace brume::analyzer {
namespace {

using Values = std::map<std::string, double, std::less<>>;

std::string term_table(const StageExpressions& stage, const PassTimes& times,
                       const Values& values) {
  Table table({"", "term", "time", "share"});
  for (std::size_t i = 0; i < PassTimes::num_parts; ++i) {
    const auto [name, seconds] = PassTimes::parts()[i];
    const double sum_s = times.*seconds;
    for (const Term& term : stage.terms.*TimeTerms::parts()[i].time) {
      const double term_s = term.value.evaluate(values);
      table.add({name, term.name, format_seconds(term_s),
                 sum_s > 0.0 ? fmt::format("{:.1f} %", 100.0 * term_s / sum_s) : "-"});
    }
    table.add({name, "sum", format_seconds(sum_s), ""});
  }
  return table.text();
}

/// An expression with a plan's numbers for its variables, of which only what counts is left: what
/// is nothing is gone, of a maximum the larger one stands alone. Prices keep their names.
class Simplified {
 public:
  explicit Simplified(const Values& values) : values_(values) {}

  std::string text(const Expr& e) { return of(e).formula.text(); }

 private:
  struct Valued {
    Expr formula;
    double value = 0.0;
  };

  const Valued& of(const Expr& e) {
    const auto known = done_.find(&e.node());
    if (known != done_.end()) return known->second;
    Valued made = simplified(e);
    if (made.value == 0.0) made.formula = Expr(0.0);
    return done_.emplace(&e.node(), std::move(made)).first->second;
  }

  Valued simplified(const Expr& e) {
    const Expr::Node& node = e.node();
    std::vector<Valued> of;
    for (const Expr& argument : node.arguments) of.push_back(this->of(argument));
    using symbolic::Op;
    switch (node.op) {
      case Op::constant: return {e, node.constant};
      case Op::variable: {
        const double value = values_.at(node.name);
        return {Expr(value), value};
      }
      case Op::add: return {of[0].formula + of[1].formula, of[0].value + of[1].value};
      case Op::subtract: return {of[0].formula - of[1].formula, of[0].value - of[1].value};
      case Op::multiply: return {of[0].formula * of[1].formula, of[0].value * of[1].value};
      case Op::divide: return {of[0].formula / of[1].formula, of[0].value / of[1].value};
      case Op::max: return of[0].value >= of[1].value ? of[0] : of[1];
      case Op::min: return of[0].value <= of[1].value ? of[0] : of[1];
      case Op::floor: return {floor(of[0].formula), std::floor(of[0].value)};
      case Op::less: return {less(of[0].formula, of[1].formula), double(of[0].value < of[1].value)};
      case Op::call: return called(node, of);
    }
    return {e, 0.0};
  }

  /// Of what starts together (compute, communication, copies in, copies out), what is alone takes
  /// the time that it takes.
  static Valued called(const Expr::Node& node, const std::vector<Valued>& of) {
    constexpr std::ptrdiff_t together = 4;
    const auto busy = [](const Valued& work) { return work.value != 0.0; };
    if (node.function->name == "overlapped" && std::ssize(of) > together) {
      const auto begin = of.begin(), end = begin + together;
      if (std::count_if(begin, end, busy) == 1) return *std::find_if(begin, end, busy);
    }
    std::vector<Expr> formulas;
    std::vector<double> values;
    for (const Valued& argument : of) {
      formulas.push_back(argument.formula);
      values.push_back(argument.value);
    }
    return {Expr::call(node.function, formulas), node.function->value(values)};
  }

  const Values& values_;
  std::map<const Expr::Node*, Valued> done_;
};

/// A term of a stage's time of an iteration.
struct Share {
  double seconds = 0.0;
  std::string name;
  Expr formula;
};

/// The terms that an iteration's time is the sum of, the longest first: those of a middle
/// microbatch as often as there are microbatches. What only shifts others is not among them.
std::vector<Share> shares(const StageExpressions& stage, const Values& values, int microbatches) {
  std::vector<Share> all;
  for (std::size_t i = 0; i < PassTimes::num_parts; ++i) {
    const std::string part = PassTimes::parts()[i].name;
    const bool middle = part == "forward" || part == "backward";
    if (!middle && part != "before" && part != "first" && part != "last" && part != "after")
      continue;
    for (const Term& term : stage.terms.*TimeTerms::parts()[i].time)
      all.push_back({(middle ? microbatches : 1) * term.value.evaluate(values),
                     fmt::format("{}{}: {}", middle ? "G times " : "", part, term.name),
                     term.value});
  }
  std::ranges::stable_sort(all, std::ranges::greater{}, &Share::seconds);
  return all;
}

std::string formulas(const StageExpressions& stage, const Values& values, int microbatches) {
  constexpr double most_of_it = 0.95;
  double whole_s = 0.0, said_s = 0.0;
  const std::vector<Share> terms = shares(stage, values, microbatches);
  for (const Share& term : terms) whole_s += std::max(0.0, term.seconds);
  std::string lines;
  Simplified simplified(values);
  for (const Share& term : terms) {
    if (said_s >= most_of_it * whole_s || term.seconds <= 0.0) break;
    said_s += term.seconds;
    lines += fmt::format("  {:.1f} %  {} = {}\n", 100.0 * term.seconds / whole_s, term.name,
                         simplified.text(term.formula));
  }
  return "terms of 95 % of its time, without terms that are 0:\n" + hanging(lines, usual_columns);
}

/// What formulas are made of.
constexpr const char* legend =
    "in formulas: SEGMENT_forward(b, tp, cp) and SEGMENT_backward(b, tp, cp), of experts also of "
    "ep, are the times of b sequences on each of tp cp devices, sums of the operators below; "
    "collectives are of (nodes, devices a "
    "node, bytes), copies of (bytes), norm and update of (bytes) and (elements); "
    "overlapped(compute, "
    "communication, copies in, copies out, ...) is how long they take that start together, and "
    "share_of_X which share of X is over when computing is\n";

std::string memory_line(const StagePrediction& stage, const hardware::NodeGroup& group) {
  const std::int64_t peak = stage.peak_bytes();
  const std::int64_t left = group.memory_bytes - peak;
  const std::string disk =
      stage.disk_bytes > 0 ? "; disk " + format_bytes(double(stage.disk_bytes)) : "";
  return fmt::format("memory: forward {}, backward {}, {} {} of {}; host {}{}\n",
                     format_bytes(double(stage.peak_forward_bytes)),
                     format_bytes(double(stage.peak_backward_bytes)),
                     format_bytes(double(std::abs(left))), left >= 0 ? "left" : "over",
                     format_bytes(double(group.memory_bytes)),
                     format_bytes(double(stage.host_bytes)), disk);
}

/// The stage with the longest passes, and the largest term of them.
std::string binding(const plan::Plan& plan, const Prediction& prediction,
                    const model::Config& model, const hardware::Machine& machine) {
  const auto slowest = std::ranges::max_element(
      prediction.stages, {}, [](const StagePrediction& s) { return s.time.stable_s(); });
  const int index = int(slowest - prediction.stages.begin());
  const StageExpressions stage =
      stage_expressions(model, machine, role_of(plan, index, model, machine));
  const Values values = bindings(plan, index);
  const auto seconds = [&](const Term& term) { return term.value.evaluate(values); };
  const bool forward = slowest->time.forward_s > slowest->time.backward_s;
  const auto& terms = forward ? stage.terms.forward_s : stage.terms.backward_s;
  const auto largest = std::ranges::max_element(terms, {}, seconds);
  return fmt::format("binds: the {} of the {} of stage {}, {} of its {} a microbatch\n",
                     forward ? "forward" : "backward", largest->name, index,
                     format_seconds(seconds(*largest)), format_seconds(slowest->time.stable_s()));
}

/// The messages between stages.
std::string messages(const Prediction& prediction) {
  std::string lines;
  for (std::size_t i = 0; i < prediction.messages_s.size(); ++i)
    lines += fmt::format("messages of a microbatch between stages {} and {}: {} each way\n", i,
                         i + 1, format_seconds(prediction.messages_s[i]));
  if (prediction.tied.table_s > 0.0)
    lines += fmt::format("the tied head's table: {} there, its gradient: {} back\n",
                         format_seconds(prediction.tied.table_s),
                         format_seconds(prediction.tied.gradient_s + prediction.tied.rest_s));
  return lines;
}

}  // namespace

std::string explain(const plan::Plan& plan, const model::Config& model,
                    const hardware::Machine& machine, const hardware::Cluster& cluster) {
  const Prediction prediction = analyze(plan, model, machine);
  double slowest_s = 0.0;
  for (const StagePrediction& stage : prediction.stages)
    slowest_s = std::max(slowest_s, stage.time.stable_s());
  std::string text = fmt::format(
      "step time {}: {} microbatches of {}, which the slowest stage takes, and {} beside them\n",
      format_seconds(prediction.iteration_s), plan.microbatches, format_seconds(slowest_s),
      format_seconds(prediction.iteration_s - plan.microbatches * slowest_s));
  text += binding(plan, prediction, model, machine) + messages(prediction);
  for (int i = 0; i < plan.num_stages(); ++i) {
    const StageExpressions stage =
        stage_expressions(model, machine, role_of(plan, i, model, machine));
    const StagePrediction& predicted = prediction.stages[i];
    const std::string& group = plan.stages[i].group;
    text += fmt::format("\nstage {}{}{}\n{}{}{}", i, group.empty() ? "" : " on ", group,
                        term_table(stage, predicted.time, bindings(plan, i)),
                        memory_line(predicted, cluster.groups[cluster.index(group)]),
                        formulas(stage, bindings(plan, i), plan.microbatches));
  }
  text += fmt::format("\n{}", legend);
  text += "\n" + price::price_table(price::operator_prices(plan, model, machine));
  for (int group = 0; group < machine.num_groups(); ++group)
    for (const std::string& line : hardware::stand_ins(machine.profile(group))) text += line + "\n";
  return text;
}

}  // namespace brume::analyzer
