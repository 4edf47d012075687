#include "report/figure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.hpp"
#include "base/units.hpp"
#include "html.hpp"
#include "pictures.hpp"
#include "svg.hpp"

namespace brume::report {
namespace {

constexpr double figure_width = 900;

/// A file with the page's colours; the reader's scheme decides between light and dark.
std::string file(double height, const std::string& title, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<style>\n{3}</style>\n"
      "<rect width=\"{0}\" height=\"{1:.0f}\" style=\"fill: var(--back)\"/>\n"
      "<text class=\"title\" x=\"16\" y=\"26\">{2}</text>\n{4}</svg>\n",
      figure_width, height, escaped(title), figure_style(), body);
}

std::string text(double x, double y, const char* anchor, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

std::string box(double x, double y, double w, double h, const std::string& colour) {
  return fmt::format(
      "<rect class=\"fill {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
      colour, x, y, std::max(w, 0.0), h);
}

struct LegendKey {
  std::string colour;
  std::string name;
};

/// Keys in a row, which breaks at the right edge. @param y  the first row's top; then the end
std::string legend_rows(const std::vector<LegendKey>& keys, double& y) {
  constexpr double letter = 6.4, key = 12, gap = 18, row = 20;
  std::string out;
  double x = 16;
  for (const LegendKey& each : keys) {
    const double size = key + 6 + letter * double(each.name.size()) + gap;
    if (x + size > figure_width && x > 16) {
      x = 16;
      y += row;
    }
    out += box(x, y, key, key, each.colour) + text(x + key + 6, y + 10, "start", each.name);
    x += size;
  }
  y += row + 6;
  return out;
}

std::string stages(const PlanPage& page, double& y) {
  std::string out;
  for (std::size_t i = 0; i < page.plan.stages.size(); ++i, y += stage_row) {
    const StageBoxes boxes = stage_boxes(page.plan, i, 330, y);
    out += text(322, y + 11, "end", boxes.name) +
           fmt::format("<path class=\"fill c{}\" d=\"{}\"/>\n", i % num_colours, boxes.path) +
           boxes.rest;
  }
  y += 12;
  return out;
}

std::string memory(const PlanPage& page, double& y) {
  constexpr double left = 90, bar_height = 16, row = 24;
  double most = 0.0;
  for (const StageBytes& stage : page.memory) most = std::max(most, stage.limit);
  std::vector<LegendKey> keys;
  for (const Amount& kind : page.memory.at(0).kinds)
    keys.push_back({fmt::format("s{}", memory_shade(keys.size())), kind.name});
  std::string out = text(16, y + 10, "start", "memory of a device") + "\n";
  y += 22;
  out += legend_rows(keys, y);
  for (std::size_t i = 0; i < page.memory.size(); ++i, y += row) {
    const StageBytes& stage = page.memory[i];
    const double scale = (figure_width - left - 170) / most;
    double x = left, sum = 0.0;
    out += text(left - 8, y + 12, "end", fmt::format("stage {}", i)) +
           box(x, y, scale * stage.limit, bar_height, "s5");
    for (std::size_t k = 0; k < stage.kinds.size(); ++k) {
      out +=
          box(x, y, scale * stage.kinds[k].value, bar_height, fmt::format("s{}", memory_shade(k)));
      x += scale * stage.kinds[k].value;
      sum += stage.kinds[k].value;
    }
    out += text(figure_width - 16, y + 12, "end",
                fmt::format("{} of {}", format_bytes(sum), format_bytes(stage.limit)));
  }
  y += 12;
  return out;
}

std::string step(const PlanPage& page, double& y) {
  if (page.timelines.empty()) return "";
  std::vector<LegendKey> keys;
  for (int a = 0; a < schedule::num_activities; ++a)
    keys.push_back({fmt::format("s{}", shade_of(schedule::Activity(a))),
                    schedule::name(schedule::Activity(a))});
  keys.pop_back();  // waiting is empty space
  std::string out = text(16, y + 10, "start",
                         fmt::format("one step, {} (simulated), on the first rank of each stage",
                                     format_seconds(page.end_s)));
  y += 22;
  out += legend_rows(keys, y);
  for (std::size_t i = 0; i < page.timelines.size(); ++i) {
    const Lanes lanes = timeline_lanes(page.timelines[i], page.end_s, figure_width - 16);
    out += text(16, y + 10, "start", fmt::format("stage {}", i)) +
           fmt::format("<g transform=\"translate(0 {:.1f})\">{}</g>\n", y, lanes.body);
    y += lanes.height + 8;
  }
  return out;
}

}  // namespace

std::string figure(const PlanPage& page) {
  double y = 44;
  std::string body = stages(page, y);
  body += memory(page, y);
  body += step(page, y);
  return file(y + 8, page.title, body);
}

std::string figure(const BarChart& chart) {
  constexpr double left = 300, right = 110, thick = 14, between = 12;
  double most = 0.0;
  for (const BarChart::Group& group : chart.groups)
    for (const double value : group.values)
      if (std::isfinite(value)) most = std::max(most, value);
  double y = 40;
  std::string body;
  if (chart.series.size() > 1) {
    std::vector<LegendKey> keys;
    for (std::size_t s = 0; s < chart.series.size(); ++s)
      keys.push_back({fmt::format("c{}", s), chart.series[s]});
    body += legend_rows(keys, y);
  }
  for (const BarChart::Group& group : chart.groups) {
    body += text(left - 10, y + 4 + 0.5 * thick * double(group.values.size()), "end", group.name);
    for (std::size_t s = 0; s < group.values.size(); ++s, y += thick) {
      if (!std::isfinite(group.values[s])) continue;
      const double length = (figure_width - left - right) * group.values[s] / most;
      body += box(left, y, length, thick - 2, fmt::format("c{}", s)) +
              text(left + length + 6, y + 10, "start",
                   fmt::format("{:.4g} {}", group.values[s], chart.unit));
    }
    y += between;
  }
  return file(y, chart.title, body);
}

std::string figure(const RatioChart& chart) {
  constexpr double left = 70, right = 20, high = 300;
  double low_x = std::numeric_limits<double>::infinity(), high_x = 0.0, low_y = 1.0, high_y = 1.0;
  for (const RatioChart::Series& series : chart.series)
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      low_x = std::min(low_x, series.x[i]);
      high_x = std::max(high_x, series.x[i]);
      low_y = std::min(low_y, series.ratio[i]);
      high_y = std::max(high_y, series.ratio[i]);
    }
  low_y = std::floor(10.0 * low_y) / 10.0;
  high_y = std::ceil(10.0 * high_y) / 10.0;
  const double first = std::floor(std::log10(low_x)), last = std::ceil(std::log10(high_x));
  double top = 44;
  std::vector<LegendKey> keys;
  for (std::size_t s = 0; s < chart.series.size(); ++s)
    keys.push_back({fmt::format("c{}", s), chart.series[s].name});
  std::string body = text(16, top + 4, "start", chart.y_name);
  top += 16;
  body += legend_rows(keys, top);
  const auto at_x = [&](double x) {
    return left + (figure_width - left - right) * (std::log10(x) - first) / (last - first);
  };
  const auto at_y = [&](double y) { return top + high * (high_y - y) / (high_y - low_y); };
  for (int tenth = int(std::lround(10 * low_y)); tenth <= int(std::lround(10 * high_y)); ++tenth) {
    const double y = at_y(tenth / 10.0);
    body += fmt::format("<path class=\"{}\" d=\"M{} {:.1f}H{}\"/>\n", tenth == 10 ? "mark" : "grid",
                        left, y, figure_width - right) +
            text(left - 8, y + 4, "end", fmt::format("{:.1f}", tenth / 10.0));
  }
  for (double power = first; power <= last; ++power)
    body += text(at_x(std::pow(10.0, power)), top + high + 18, "middle",
                 fmt::format("{:g}", std::pow(10.0, power)));
  body += text(0.5 * (left + figure_width - right), top + high + 38, "middle", chart.x_name);
  for (std::size_t s = 0; s < chart.series.size(); ++s)
    for (std::size_t i = 0; i < chart.series[s].x.size(); ++i)
      body += fmt::format("<circle class=\"fill c{}\" r=\"3.5\" cx=\"{:.1f}\" cy=\"{:.1f}\"/>\n", s,
                          at_x(chart.series[s].x[i]), at_y(chart.series[s].ratio[i]));
  return file(top + high + 50, chart.title, body);
}

}  // namespace brume::report
