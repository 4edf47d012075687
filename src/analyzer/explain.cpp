/// @file A prediction for people: formula, terms in numbers, and what binds.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "analyzer/analyzer.hpp"
#include "base/text.hpp"
#include "price/price.hpp"

namespace brume::analyzer {
namespace {

using Values = std::map<std::string, double, std::less<>>;

/// Longer formulas say less than their name.
constexpr std::size_t longest_formula = 900;

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

std::string formulas(const StageExpressions& stage) {
  std::string lines;
  for (const auto& part : TimeTerms::parts())
    for (const Term& term : stage.terms.*part.time)
      if (const std::string formula = term.value.text(); formula.size() <= longest_formula)
        lines += fmt::format("  {}: {} = {}\n", part.name, term.name, formula);
  return lines;
}

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
  const StageExpressions stage = stage_expressions(model, machine, role_of(plan, index, machine));
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
                         format_seconds(prediction.tied.gradient_s));
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
      "iteration {}: {} microbatches of {}, which the slowest stage takes, and {} beside them\n",
      format_seconds(prediction.iteration_s), plan.microbatches, format_seconds(slowest_s),
      format_seconds(prediction.iteration_s - plan.microbatches * slowest_s));
  text += binding(plan, prediction, model, machine) + messages(prediction);
  for (int i = 0; i < plan.num_stages(); ++i) {
    const StageExpressions stage = stage_expressions(model, machine, role_of(plan, i, machine));
    const StagePrediction& predicted = prediction.stages[std::size_t(i)];
    const std::string& group = plan.stages[std::size_t(i)].group;
    text += fmt::format("\nstage {}{}{}\n{}{}{}", i, group.empty() ? "" : " on ", group,
                        term_table(stage, predicted.time, bindings(plan, i)),
                        memory_line(predicted, cluster.groups[std::size_t(cluster.index(group))]),
                        formulas(stage));
  }
  text += "\n" + price::price_table(price::operator_prices(plan, model, machine));
  for (int group = 0; group < machine.num_groups(); ++group)
    for (const std::string& line : hardware::stand_ins(machine.profile(group))) text += line + "\n";
  return text;
}

}  // namespace brume::analyzer
