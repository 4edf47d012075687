#include "pictures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "html.hpp"
#include "svg.hpp"

namespace brume::report {
namespace {

std::string if_used(const char* name, int degree) {
  return degree > 1 ? fmt::format(", {} {}", name, degree) : "";
}

}  // namespace

StageBoxes stage_boxes(const plan::Plan& plan, std::size_t i, double left, double y) {
  constexpr double box = 13, gap = 2, between = 7;
  constexpr int most = 32;  // boxes of a stage
  const plan::Stage& stage = plan.stages[i];
  StageBoxes out{.name = fmt::format(
                     "stage {}: {}{}, dp {}{}, tp {}{}, b {}, ZeRO {}{}", i,
                     stage.layers > 0 ? "layers " : "", plan::blocks_text(plan, int(i)), stage.dp,
                     if_used("cp", stage.cp), stage.tp, if_used("ep", stage.ep), stage.microbatch,
                     stage.zero_level, stage.group.empty() ? "" : ", " + stage.group),
                 .path = {},
                 .rest = {},
                 .right = left};
  const int devices = stage.nodes * stage.devices_per_node;
  for (int device = 0; device < std::min(devices, most); ++device) {
    if (device > 0 && device % stage.devices_per_node == 0) out.right += between;
    out.path += fmt::format("M{:.0f} {:.0f}h{}v{}h{}z", out.right, y, box, box, -box);
    out.right += box + gap;
  }
  if (devices > most) {
    out.rest = fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">and {} more</text>", out.right + gap,
                           y + box - 2, devices - most);
    out.right += 90.0;
  }
  return out;
}

std::string stages_picture(const plan::Plan& plan) {
  constexpr double names = 300;
  std::string boxes;
  double right = names, y = 0.0;
  for (std::size_t i = 0; i < plan.stages.size(); ++i, y += stage_row) {
    const StageBoxes stage = stage_boxes(plan, i, names, y);
    boxes += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", names - 8, y + 11,
                         escaped(stage.name));
    boxes += fmt::format("<path class=\"fill c{}\" d=\"{}\"/>", i % num_colours, stage.path) +
             stage.rest;
    right = std::max(right, stage.right);
  }
  return fmt::format(
      "<div class=\"wide\"><svg class=\"stages\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"stages on devices\">{}</svg></div>\n",
      std::max(right, 1100.0), y, boxes);
}

int memory_shade(std::size_t kind) {
  return shade_of(schedule::Activity(kind % schedule::num_activities));
}

std::string activity_legend() {
  std::vector<std::pair<int, std::string>> keys;
  for (int a = 0; a < schedule::num_activities; ++a)
    keys.emplace_back(shade_of(schedule::Activity(a)), schedule::name(schedule::Activity(a)));
  return legend(keys);
}

std::string bar(const schedule::Seconds& seconds, double iteration_s) {
  std::vector<Slice> slices;
  for (int a = 0; a < schedule::num_activities; ++a) {
    const auto activity = schedule::Activity(a);
    const double spent_s = seconds[a];
    slices.push_back({shade_of(activity), spent_s / iteration_s,
                      fmt::format("{}: {}", schedule::name(activity), format_seconds(spent_s))});
  }
  return bar(slices);
}

}  // namespace brume::report
