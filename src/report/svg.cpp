#include "svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/text.hpp"

namespace brume::report {
namespace {

// Of a chart, in pixels.
constexpr double width = 560, height = 220, left = 64, right = 12, top = 10, bottom = 42;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  /// With room for a line where all values are one but for rounding.
  Range open() const {
    if (empty()) return {0.0, 1.0};
    const double size = std::max(std::abs(low), std::abs(high));
    const double room = high - low > 1e-9 * size ? 0.0 : std::max(0.05 * size, 1e-12);
    return {low - room, high + room};
  }
};

/// Steps of 1, 2 or 5 times a power of ten, about `wanted` of them.
std::vector<double> ticks(const Range& range, int wanted) {
  const double rough = (range.high - range.low) / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double step = power * (rough > 5 * power   ? 10
                               : rough > 2 * power ? 5
                               : rough > power     ? 2
                                                   : 1);
  std::vector<double> values;
  for (double i = std::ceil(range.low / step); i * step <= range.high + 1e-9 * step; ++i)
    values.push_back(i * step);
  return values;
}

/// 12500 as 12.5k, 0.00025 as 2.5e-4.
std::string label(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:.4g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

/// The points of each pixel's width that are first, lowest, highest and last.
std::vector<Point> thinned(const std::vector<Point>& points, const Range& x) {
  constexpr std::size_t columns = std::size_t(width - left - right);
  if (points.size() <= 4 * columns) return points;
  std::vector<Point> kept;
  for (std::size_t begin = 0; begin < points.size();) {
    const auto column = [&](const Point& p) {
      return std::int64_t(double(columns) * (p.x - x.low) / (x.high - x.low));
    };
    std::size_t end = begin, lowest = begin, highest = begin;
    for (; end < points.size() && column(points[end]) == column(points[begin]); ++end) {
      if (!(points[end].y >= points[lowest].y)) lowest = end;
      if (!(points[end].y <= points[highest].y)) highest = end;
    }
    std::vector<std::size_t> drawn{begin, lowest, highest, end - 1};
    std::ranges::sort(drawn);
    const auto twice = std::ranges::unique(drawn);
    drawn.erase(twice.begin(), twice.end());
    for (const std::size_t i : drawn) kept.push_back(points[i]);
    begin = end;
  }
  return kept;
}

/// Where values lie in the picture.
struct Axes {
  Range x, y;
  double at_x(double value) const {
    return left + (width - left - right) * (value - x.low) / (x.high - x.low);
  }
  double at_y(double value) const {
    return height - bottom - (height - top - bottom) * (value - y.low) / (y.high - y.low);
  }
};

void add_grid(std::string& out, const Axes& axes) {
  const auto to = std::back_inserter(out);
  for (const double value : ticks(axes.y, 5)) {
    const double y = axes.at_y(value);
    fmt::format_to(to, "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>", left, y, width - right);
    fmt::format_to(to, "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", left - 6, y + 4,
                   label(value));
  }
  for (const double value : ticks(axes.x, 6))
    fmt::format_to(to, "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                   axes.at_x(value), height - bottom + 18, label(value));
}

/// A dot's label, on the side that has room.
void add_label(std::string& out, const Point& p, const Axes& axes) {
  const double x = axes.at_x(p.x);
  const bool before = x > 0.5 * width;
  fmt::format_to(
      std::back_inserter(out), "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>",
      before ? x - 6 : x + 6, axes.at_y(p.y) + 4, before ? "end" : "start", escaped(p.label));
}

void add_series(std::string& out, const Series& series, const Axes& axes) {
  const auto to = std::back_inserter(out);
  if (series.dots) {
    for (const Point& p : series.points)
      if (std::isfinite(p.y)) {
        fmt::format_to(to, "<circle class=\"fill c{}\" r=\"3\" cx=\"{:.1f}\" cy=\"{:.1f}\"/>",
                       series.colour, axes.at_x(p.x), axes.at_y(p.y));
        if (!p.label.empty()) add_label(out, p, axes);
      }
    return;
  }
  std::string path;
  bool drawing = false;
  for (const Point& p : thinned(series.points, axes.x)) {
    if (std::isfinite(p.y))
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", drawing ? 'L' : 'M',
                     axes.at_x(p.x), axes.at_y(p.y));
    drawing = std::isfinite(p.y);
  }
  fmt::format_to(to, "<path class=\"line c{}{}\" d=\"{}\"/>", series.colour,
                 series.pale ? " pale" : "", path);
}

void add_marks(std::string& out, const std::vector<Mark>& marks, const Axes& axes) {
  double last = -1.0;
  for (const Mark& mark : marks) {
    const double x = axes.at_x(mark.x);
    if (mark.x < axes.x.low || mark.x > axes.x.high || std::abs(x - last) < 1.0) continue;
    last = x;
    fmt::format_to(std::back_inserter(out),
                   "<path class=\"mark{}\" d=\"M{:.1f} {}V{}\"><title>{}</title></path>",
                   mark.fault ? " fault" : "", x, top, height - bottom, escaped(mark.text));
  }
}

}  // namespace

int shade_of(schedule::Activity activity) {
  constexpr std::array<int, schedule::num_activities> shades{0, 6, 7, 1, 2, 3, 4, 5};
  return shades[std::size_t(activity)];
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

std::string svg(const Chart& chart) {
  Range x, y;
  for (const Series& series : chart.series)
    for (const Point& p : series.points) {
      x.add(p.x);
      y.add(p.y);
    }
  const Axes axes{x.open(), y.open()};
  std::string out = fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">",
      escaped(chart.title), width, height, escaped(chart.title));
  add_grid(out, axes);
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                     (left + width - right) / 2, height - 6, escaped(chart.x_name));
  add_marks(out, chart.marks, axes);
  for (const Series& series : chart.series) add_series(out, series, axes);
  out += "</svg>";
  if (chart.series.size() > 1) {
    out += "<p class=\"legend\">";
    for (const Series& series : chart.series)
      out += fmt::format("<span><span class=\"key c{}{}\"></span>{}</span> ", series.colour,
                         series.pale ? " pale" : "", escaped(series.name));
    out += "</p>";
  }
  return out + "</figure>\n";
}

namespace {

constexpr double lane = 14, gap = 3, names = 130, picture = 1100;  // pixels

/// A channel's name for people.
const char* title(schedule::Channel channel) {
  switch (channel) {
    case schedule::Channel::compute: return "compute";
    case schedule::Channel::collective_tp: return "tp collectives";
    case schedule::Channel::collective_dp: return "dp collectives";
    case schedule::Channel::p2p_forward: return "messages forward";
    case schedule::Channel::p2p_backward: return "messages back";
    case schedule::Channel::h2d: return "copies to device";
    case schedule::Channel::d2h: return "copies to host";
    case schedule::Channel::disk: return "disk";
    case schedule::Channel::host: return "CPU updates";
  }
  return "";
}

/// Boxes in a lane; those that touch to the eye are one.
std::string boxes(std::vector<schedule::Span> spans, double y, double end_s, double right) {
  constexpr double seen = 0.3, thinnest = 0.2;  // pixels
  const auto at = [&](double time_s) { return names + (right - names) * time_s / end_s; };
  std::ranges::sort(spans, {}, &schedule::Span::start_s);
  std::string path;
  double begin = at(spans[0].start_s), end = begin;
  const auto draw = [&] {
    const double length = std::max(end - begin, thinnest);
    fmt::format_to(std::back_inserter(path), "M{:.1f} {:.0f}h{:.1f}v{}h{:.1f}z", begin, y, length,
                   lane, -length);
  };
  for (const schedule::Span& span : spans) {
    if (at(span.start_s) > end + seen) {
      draw();
      begin = at(span.start_s);
    }
    end = std::max(end, at(span.end_s));
  }
  draw();
  return path;
}

}  // namespace

Lanes timeline_lanes(const io::RankTimeline& timeline, double end_s, double width) {
  std::string lanes;
  int rows = 0;
  for (int c = 0; c < schedule::num_channels; ++c) {
    std::array<std::vector<schedule::Span>, schedule::num_activities> spans;
    for (std::size_t task = 0; task < timeline.times.size(); ++task)
      if (timeline.tasks[task].channel == schedule::Channel(c))
        spans[std::size_t(timeline.tasks[task].activity)].push_back(timeline.times[task]);
    if (std::ranges::all_of(spans, &std::vector<schedule::Span>::empty)) continue;
    const double y = rows++ * (lane + gap);
    lanes += fmt::format("<text x=\"{}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>", names - 6,
                         y + lane - 3, title(schedule::Channel(c)));
    for (std::size_t a = 0; a < spans.size(); ++a)
      if (!spans[a].empty())
        lanes += fmt::format("<path class=\"fill s{}\" d=\"{}\"/>", shade_of(schedule::Activity(a)),
                             boxes(spans[a], y, end_s, width));
  }
  return {lanes, std::max(rows, 1) * (lane + gap)};
}

std::string svg(const io::RankTimeline& timeline, double end_s) {
  const Lanes lanes = timeline_lanes(timeline, end_s, picture);
  return fmt::format(
      "<div class=\"wide\"><svg class=\"lanes\" viewBox=\"0 0 {} {}\">{}</svg></div>\n", picture,
      lanes.height, lanes.body);
}

}  // namespace brume::report
