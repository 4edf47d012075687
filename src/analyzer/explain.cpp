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

void add_terms(Table& table, const char* of, const std::vector<Term>& terms, double sum_s,
               const Values& values) {
  for (const Term& term : terms) {
    const double term_s = term.value.evaluate(values);
    table.add({of, term.name, format_seconds(term_s),
               sum_s > 0.0 ? fmt::format("{:.1f} %", 100.0 * term_s / sum_s) : "-"});
  }
  table.add({of, "sum", format_seconds(sum_s), ""});
}

std::string formulas(const StageExpressions& stage) {
  std::string lines;
  const auto add = [&](const char* of, const std::vector<Term>& terms) {
    for (const Term& term : terms)
      if (const std::string formula = term.value.text(); formula.size() <= longest_formula)
        lines += fmt::format("  {} {} = {}\n", of, term.name, formula);
  };
  add("t:", stage.stable_terms);
  add("d:", stage.delta_terms);
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

/// The stage whose stable time every microbatch waits for, and its largest term.
std::string binding(const plan::Plan& plan, const Prediction& prediction,
                    const model::Config& model, const hardware::Machine& machine) {
  const auto slowest = std::ranges::max_element(
      prediction.stages, {}, [](const StagePrediction& s) { return s.time.stable_s; });
  const int index = int(slowest - prediction.stages.begin());
  const StageExpressions stage = stage_expressions(model, machine, role_of(plan, index, machine));
  const Values values = bindings(plan, index);
  const auto largest = std::ranges::max_element(
      stage.stable_terms, {}, [&](const Term& term) { return term.value.evaluate(values); });
  return fmt::format("binds: '{}' of stage {}, {} of its {} a microbatch, {} microbatches\n",
                     largest->name, index, format_seconds(largest->value.evaluate(values)),
                     format_seconds(slowest->time.stable_s), plan.microbatches);
}

}  // namespace

std::string explain(const plan::Plan& plan, const model::Config& model,
                    const hardware::Machine& machine, const hardware::Cluster& cluster) {
  const Prediction prediction = analyze(plan, model, machine);
  double filled_s = 0.0, slowest_s = 0.0;
  for (const StagePrediction& stage : prediction.stages) {
    filled_s += stage.time.stable_s;
    slowest_s = std::max(slowest_s, stage.time.stable_s);
  }
  const double steady_s = (plan.microbatches - 1) * slowest_s;
  std::string text = fmt::format(
      "T = (G - 1) max t + sum t + max(0, max(d - sum of earlier t))\n"
      "  = {} + {} + {} = {}\n",
      format_seconds(steady_s), format_seconds(filled_s),
      format_seconds(prediction.iteration_s - steady_s - filled_s),
      format_seconds(prediction.iteration_s));
  text += binding(plan, prediction, model, machine);
  for (int i = 0; i < plan.num_stages(); ++i) {
    const StageExpressions stage = stage_expressions(model, machine, role_of(plan, i, machine));
    const StagePrediction& predicted = prediction.stages[std::size_t(i)];
    Table table({"", "term", "time", "share"});
    add_terms(table, "t", stage.stable_terms, predicted.time.stable_s, bindings(plan, i));
    add_terms(table, "d", stage.delta_terms, predicted.time.delta_s, bindings(plan, i));
    const std::string& group = plan.stages[std::size_t(i)].group;
    text += fmt::format(
        "\nstage {}{}{}\n{}{}{}", i, group.empty() ? "" : " on ", group, table.text(),
        memory_line(predicted, cluster.groups[std::size_t(cluster.index(group))]), formulas(stage));
  }
  text += "\n" + price::price_table(price::operator_prices(plan, model, machine));
  for (int group = 0; group < machine.num_groups(); ++group)
    for (const std::string& line : hardware::stand_ins(machine.profile(group))) text += line + "\n";
  return text;
}

}  // namespace brume::analyzer
