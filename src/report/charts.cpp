/// @file Curves of runs over their steps, and what happened between the steps.
#include "charts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "html.hpp"
#include "svg.hpp"

namespace brume::report {
namespace {

using Value = std::function<double(const io::Row&)>;

Series series(const Run& run, std::string name, int colour, const Value& value) {
  Series series{.name = std::move(name), .colour = colour % num_colours, .points = {}};
  for (const io::Row& row : run.rows)
    series.points.push_back({double(row.metrics.step + 1), value(row)});
  return series;
}

}  // namespace

std::vector<Mark> marks(const Run& run) {
  std::vector<Mark> all;
  for (const io::Event& event : run.events) {
    const bool starts = event.kind == io::Event::Kind::start;
    if (starts && event.step == 0) continue;
    all.push_back({double(event.step),
                   starts ? fmt::format("resumed after step {}", event.step)
                          : fmt::format("step {}: {}", event.step, event.text),
                   !starts});
  }
  for (const io::Row& row : run.rows)
    if (row.metrics.skipped)
      all.push_back({double(row.metrics.step + 1),
                     fmt::format("step {}: {}, no update", row.metrics.step + 1,
                                 row.metrics.nothing_learned ? "nothing to learn" : "not finite"),
                     true});
  std::ranges::stable_sort(all, {}, &Mark::x);
  return all;
}

std::string happenings(const Run& run) {
  constexpr std::size_t most = 50;
  const std::vector<Mark> all = marks(run);
  if (all.empty()) return "";
  std::string out =
      "<p class=\"note\">Vertical lines: dashed where a job resumed, solid where something went "
      "wrong.</p>\n<ul class=\"columns\">";
  for (std::size_t i = 0; i < std::min(most, all.size()); ++i)
    out += fmt::format("<li>{}</li>\n", escaped(all[i].text));
  if (all.size() > most) out += fmt::format("<li>and {} more</li>\n", all.size() - most);
  return out + "</ul>\n";
}

namespace {

/// A chart of each run's values.
Chart chart(std::span<const Run> runs, std::string title, const Value& value) {
  Chart chart{.title = std::move(title), .x_name = "step", .series = {}, .marks = {}};
  for (std::size_t i = 0; i < runs.size(); ++i)
    chart.series.push_back(series(runs[i], runs[i].name, int(i), value));
  if (runs.size() == 1) chart.marks = marks(runs[0]);
  return chart;
}

/// What the process of a rank holds, by its place in the order of size; NaN where nobody measured.
double resident_mib(const io::Row& row, double place) {
  if (row.peak_bytes.empty()) return std::nan("");
  std::vector<std::int64_t> sorted = row.peak_bytes;
  std::ranges::sort(sorted);
  return double(sorted[place * double(sorted.size() - 1)]) / (1 << 20);
}

/// Of each rank, as long as their colours differ; else of the largest, the middle and the smallest
/// one; of several runs the largest ones.
Chart resident_sets(std::span<const Run> runs) {
  const auto at = [](double place) {
    return [place](const io::Row& row) { return resident_mib(row, place); };
  };
  if (runs.size() > 1) return chart(runs, "resident set of the largest rank [MiB]", at(1.0));
  Chart chart{.title = "resident set of each rank [MiB]",
              .x_name = "step",
              .series = {},
              .marks = marks(runs[0])};
  const int ranks = runs[0].description.ranks;
  if (ranks > num_colours) {
    chart.title = "resident sets [MiB]";
    chart.series = {series(runs[0], "largest rank", 0, at(1.0)),
                    series(runs[0], "median", 1, at(0.5)), series(runs[0], "smallest", 2, at(0.0))};
    return chart;
  }
  for (int rank = 0; rank < ranks; ++rank)
    chart.series.push_back(
        series(runs[0], fmt::format("rank {}", rank), rank, [rank](const io::Row& row) {
          const auto of = std::size_t(rank);
          return of < row.peak_bytes.size() ? double(row.peak_bytes[of]) / (1 << 20) : std::nan("");
        }));
  return chart;
}

}  // namespace

std::string charts(std::span<const Run> runs) {
  Chart loss = chart(runs, "loss [nat/token]", [](const io::Row& r) { return r.metrics.loss; });
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].evaluations.empty()) continue;
    Series valid{.name = runs.size() == 1 ? "validation" : runs[i].name + ", validation",
                 .colour = int(runs.size() == 1 ? 1 : i % num_colours),
                 .dots = true,
                 .points = {}};
    for (const io::EvaluationRow& row : runs[i].evaluations)
      valid.points.push_back({double(row.step), row.loss});
    loss.series.push_back(std::move(valid));
  }
  if (runs.size() == 1) loss.series[0].name = "training";
  Chart time = chart(runs, "step time [s]", [](const io::Row& r) { return r.metrics.iteration_s; });
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series predicted =
        series(runs[i], runs.size() == 1 ? "predicted" : runs[i].name + ", predicted",
               int(runs.size() == 1 ? 1 : i), [](const io::Row& r) { return r.predicted_s; });
    predicted.pale = runs.size() > 1;
    time.series.push_back(std::move(predicted));
  }
  if (runs.size() == 1) time.series[0].name = "measured";
  std::string out = "<div class=\"charts\">\n" + svg(loss);
  out += svg(chart(runs, "gradient norm", [](const io::Row& r) { return r.metrics.grad_norm; }));
  out += svg(chart(runs, "learning rate", [](const io::Row& r) { return r.metrics.lr; }));
  out += svg(chart(runs, "tokens/s", [](const io::Row& r) { return r.tokens_per_s; }));
  out += svg(time);
  const auto has_experts = [](const Run& run) {
    return !run.rows.empty() && run.rows.back().metrics.load_factor > 0.0;
  };
  if (std::ranges::any_of(runs, has_experts)) {
    out += svg(chart(runs, "load factor of experts",
                     [](const io::Row& r) { return r.metrics.load_factor; }));
    out += svg(chart(runs, "share of experts without tokens",
                     [](const io::Row& r) { return r.metrics.idle_experts; }));
  }
  const auto has_pairs = [](const Run& run) {
    return !run.rows.empty() && run.rows.back().metrics.accuracy >= 0.0;
  };
  if (std::ranges::any_of(runs, has_pairs)) {
    out +=
        svg(chart(runs, "accuracy of pairs", [](const io::Row& r) { return r.metrics.accuracy; }));
    out += svg(chart(runs, "margin of pairs", [](const io::Row& r) { return r.metrics.margin; }));
  }
  return out + svg(resident_sets(runs)) + "</div>\n";
}

}  // namespace brume::report
