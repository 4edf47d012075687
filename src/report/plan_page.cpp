#include "report/plan_page.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "base/units.hpp"
#include "html.hpp"
#include "pictures.hpp"
#include "svg.hpp"

namespace brume::report {
namespace {

std::string times(const PlanPage& page) {
  std::string out = fmt::format(
      "<h2>Step time per stage</h2>\n<p class=\"note\">{} on the first rank of each "
      "stage. Communication that overlaps with computation counts as computation: tp, dp, copies "
      "and messages show exposed time only.</p>\n{}",
      format_seconds(page.account.iteration_s), activity_legend());
  for (std::size_t i = 0; i < page.account.stages.size(); ++i)
    out += fmt::format("<p class=\"note\">stage {}</p>{}\n", i,
                       bar(page.account.stages[i].seconds, page.account.iteration_s));
  return out;
}

/// A bar is as long as a device's memory beside that of the largest one.
std::string memory(const PlanPage& page) {
  double most = 0.0;
  std::vector<double> sums;
  for (const StageBytes& stage : page.memory) {
    double& sum = sums.emplace_back(0.0);
    for (const Amount& kind : stage.kinds) sum += kind.value;
    most = std::max({most, sum, stage.limit});
  }
  std::string out = "<h2>Memory per device</h2>\n";
  for (std::size_t i = 0; i < page.memory.size(); ++i) {
    const StageBytes& stage = page.memory[i];
    std::vector<Slice> slices;
    std::vector<std::pair<int, std::string>> keys;
    for (std::size_t k = 0; k < stage.kinds.size(); ++k) {
      const int shade = memory_shade(k);
      keys.emplace_back(shade, stage.kinds[k].name);
      slices.push_back({shade, stage.kinds[k].value / most,
                        stage.kinds[k].name + ": " + format_bytes(stage.kinds[k].value)});
    }
    if (i == 0) out += legend(keys);
    constexpr int free = 5;
    slices.push_back({free, std::max(0.0, stage.limit - sums[i]) / most, "free"});
    out += fmt::format("<p class=\"note\">stage {}: {} of {}</p>{}\n", i, format_bytes(sums[i]),
                       format_bytes(stage.limit), bar(slices));
  }
  return out;
}

std::string timelines(const PlanPage& page) {
  if (page.timelines.empty()) return "";
  std::string out = fmt::format(
      "<h2>Timeline of a step</h2>\n<p class=\"note\">Simulated, from 0 to {}, on the first "
      "rank of each stage.</p>\n",
      format_seconds(page.end_s));
  for (std::size_t i = 0; i < page.timelines.size(); ++i)
    out += fmt::format("<p class=\"note\">stage {}</p>{}", i, svg(page.timelines[i], page.end_s));
  return out;
}

std::string alternatives(const PlanPage& page) {
  Chart chart{
      .title = "step time [s]", .x_name = "memory of a device [GiB]", .series = {}, .marks = {}};
  std::string rows =
      html_row({"", "plan", "step time", "device memory", "host memory of a node"}, "th");
  for (std::size_t i = 0; i < page.alternatives.size(); ++i) {
    const Alternative& plan = page.alternatives[i];
    if (i < 2)
      chart.series.push_back({.name = i == 0 ? "the best" : "others",
                              .colour = i == 0 ? 1 : 0,
                              .dots = true,
                              .points = {}});
    chart.series.back().points.push_back(
        {plan.device_bytes / bytes_per_gib, plan.iteration_s, std::to_string(i + 1)});
    rows += html_row({std::to_string(i + 1), plan.summary, format_seconds(plan.iteration_s),
                      format_bytes(plan.device_bytes), format_bytes(plan.host_bytes)},
                     "td");
  }
  return "<h2>Alternatives</h2>\n<div style=\"max-width:620px\">" + svg(chart) + "</div>\n<table>" +
         rows + "</table>\n";
}

std::string reasons(const PlanPage& page) {
  if (page.without.empty()) return "";
  std::string out = "<h2>Worth of each technique</h2>\n<table>" +
                    html_row({"the best plan", "step time, at most", "more"}, "th");
  for (const Amount& without : page.without)
    out += html_row(
        {"without " + without.name, format_seconds(without.value),
         fmt::format("{:.1f} %", 100.0 * (without.value / page.account.iteration_s - 1.0))},
        "td");
  return out + "</table>\n";
}

}  // namespace

std::string html(const PlanPage& page) {
  return report::page(
      page.title,
      fmt::format(
          "<h1>{}</h1>\n<h2>Stages on devices</h2>\n{}<p class=\"note\">global batch {} in {} "
          "microbatches</p>\n",
          escaped(page.title), stages_picture(page.plan), page.plan.global_batch,
          page.plan.microbatches) +
          times(page) + memory(page) + timelines(page) + alternatives(page) + reasons(page) +
          fmt::format("<h2>Report</h2>\n<pre>{}</pre>\n<h2>Plan</h2>\n<pre>{}</pre>\n",
                      escaped(page.text), escaped(plan::text(page.plan))));
}

}  // namespace brume::report
