#include "report/plan_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "base/units.hpp"
#include "html.hpp"
#include "svg.hpp"

namespace brume::report {
namespace {

/// Of activities, in their order: what moves is as it is on the page of a run.
constexpr std::array<int, schedule::num_activities> shades{0, 6, 7, 1, 2, 3, 4, 5};

std::string layers(const plan::Stage& stage) {
  return fmt::format("{}-{}", stage.first_layer, stage.first_layer + stage.layers - 1);
}

/// A row of boxes for each stage, a box a device, those of a node together.
std::string stages_picture(const plan::Plan& plan) {
  constexpr double box = 13, gap = 2, between = 7, names = 300, row = 20;
  constexpr int most = 64;  // boxes of a stage
  std::string boxes;
  double right = names, y = 0.0;
  for (std::size_t i = 0; i < plan.stages.size(); ++i, y += row) {
    const plan::Stage& stage = plan.stages[i];
    const std::string name = fmt::format(
        "stage {}: layers {}, dp {}, tp {}, b {}, ZeRO {}{}", i, layers(stage), stage.dp, stage.tp,
        stage.microbatch, stage.zero_level, stage.group.empty() ? "" : ", " + stage.group);
    boxes += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", names - 8,
                         y + box - 2, escaped(name));
    double x = names;
    std::string path;
    const int devices = stage.nodes * stage.devices_per_node;
    for (int device = 0; device < std::min(devices, most); ++device) {
      if (device > 0 && device % stage.devices_per_node == 0) x += between;
      path += fmt::format("M{:.0f} {:.0f}h{}v{}h{}z", x, y, box, box, -box);
      x += box + gap;
    }
    boxes += fmt::format("<path class=\"fill c{}\" d=\"{}\"/>", i % 6, path);
    if (devices > most)
      boxes += fmt::format("<text x=\"{:.0f}\" y=\"{}\">and {} more</text>", x + gap, y + box - 2,
                           devices - most);
    right = std::max(right, x + (devices > most ? 90.0 : 0.0));
  }
  return fmt::format(
      "<svg class=\"stages\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"stages on devices\">{}</svg>\n",
      std::max(right, 1100.0), y, boxes);
}

std::string times(const PlanPage& page) {
  std::vector<std::pair<int, std::string>> keys;
  for (int a = 0; a < schedule::num_activities; ++a)
    keys.emplace_back(shades[std::size_t(a)], schedule::name(schedule::Activity(a)));
  std::string out = fmt::format(
      "<h2>Where an iteration's time goes</h2>\n<p class=\"note\">{} on the first rank of each "
      "stage. What computes hides what moves, so tp, dp, copies and messages are what is left "
      "exposed.</p>\n{}",
      format_seconds(page.account.iteration_s), legend(keys));
  for (std::size_t i = 0; i < page.account.stages.size(); ++i) {
    std::vector<Slice> slices;
    for (std::size_t a = 0; a < shades.size(); ++a) {
      const double seconds = page.account.stages[i].seconds[a];
      slices.push_back({shades[a], seconds / page.account.iteration_s,
                        fmt::format("{}: {}", keys[a].second, format_seconds(seconds))});
    }
    out += fmt::format("<p class=\"note\">stage {}</p>{}\n", i, bar(slices));
  }
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
  std::string out = "<h2>What lies on a device</h2>\n";
  for (std::size_t i = 0; i < page.memory.size(); ++i) {
    const StageBytes& stage = page.memory[i];
    std::vector<Slice> slices;
    std::vector<std::pair<int, std::string>> keys;
    for (std::size_t k = 0; k < stage.kinds.size(); ++k) {
      const int shade = shades[k % shades.size()];
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
      "<h2>One iteration</h2>\n<p class=\"note\">As it is simulated, from 0 to {}, on the first "
      "rank "
      "of each stage.</p>\n",
      format_seconds(page.end_s));
  for (std::size_t i = 0; i < page.timelines.size(); ++i)
    out += fmt::format("<p class=\"note\">stage {}</p>{}", i, svg(page.timelines[i], page.end_s));
  return out;
}

std::string alternatives(const PlanPage& page) {
  Chart chart{.title = "iteration [s] over memory of a device [GiB]", .series = {}, .marks = {}};
  std::string rows =
      html_row({"plan", "iteration", "device memory", "host memory of a rank"}, "th");
  for (std::size_t i = 0; i < page.alternatives.size(); ++i) {
    const Alternative& plan = page.alternatives[i];
    if (i < 2)
      chart.series.push_back({.name = i == 0 ? "the best" : "others",
                              .colour = i == 0 ? 1 : 0,
                              .dots = true,
                              .points = {}});
    chart.series.back().points.push_back({plan.device_bytes / bytes_per_gib, plan.iteration_s});
    rows += html_row({plan.summary, format_seconds(plan.iteration_s),
                      format_bytes(plan.device_bytes), format_bytes(plan.host_bytes)},
                     "td");
  }
  return "<h2>What else there was</h2>\n<div style=\"max-width:620px\">" + svg(chart) +
         "</div>\n<table>" + rows + "</table>\n";
}

std::string reasons(const PlanPage& page) {
  if (page.without.empty()) return "";
  std::string out = "<h2>What each knob is worth</h2>\n<table>" +
                    html_row({"the best plan", "iteration", "more"}, "th");
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
          fmt::format("<h2>In words</h2>\n<pre>{}</pre>\n<h2>Plan</h2>\n<pre>{}</pre>\n",
                      escaped(page.text), escaped(plan::text(page.plan))));
}

}  // namespace brume::report
