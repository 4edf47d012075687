#include "pictures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "html.hpp"
#include "svg.hpp"

namespace brume::report {
namespace {

std::string layers(const plan::Stage& stage) {
  return fmt::format("{}-{}", stage.first_layer, stage.first_layer + stage.layers - 1);
}

}  // namespace

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
    boxes += fmt::format("<path class=\"fill c{}\" d=\"{}\"/>", i % num_colours, path);
    if (devices > most)
      boxes += fmt::format("<text x=\"{:.0f}\" y=\"{}\">and {} more</text>", x + gap, y + box - 2,
                           devices - most);
    right = std::max(right, x + (devices > most ? 90.0 : 0.0));
  }
  return fmt::format(
      "<div class=\"wide\"><svg class=\"stages\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"stages on devices\">{}</svg></div>\n",
      std::max(right, 1100.0), y, boxes);
}

int shade_of(schedule::Activity activity) {
  constexpr std::array<int, schedule::num_activities> shades{0, 6, 7, 1, 2, 3, 4, 5};
  return shades[std::size_t(activity)];
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
    const double spent_s = seconds[std::size_t(a)];
    slices.push_back({shade_of(activity), spent_s / iteration_s,
                      fmt::format("{}: {}", schedule::name(activity), format_seconds(spent_s))});
  }
  return bar(slices);
}

}  // namespace brume::report
