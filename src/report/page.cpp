/// @file Runs as a page and as text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.hpp"
#include "charts.hpp"
#include "html.hpp"
#include "pictures.hpp"
#include "report/report.hpp"
#include "summary.hpp"
#include "svg.hpp"

namespace brume::report {
namespace {

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-";
}

/// One row a run.
const std::vector<std::string> columns = {"run",
                                          "ranks",
                                          "steps",
                                          "loss",
                                          "best validation loss",
                                          "tokens/s",
                                          "step time",
                                          "predicted",
                                          "measured / predicted"};
std::vector<std::string> cells(const Run& run, const Summary& s) {
  if (run.rows.empty())
    return {run.name,
            std::to_string(run.description.ranks),
            "0",
            "-",
            number(s.best_valid_loss),
            "-",
            "-",
            "-",
            "-"};
  return {run.name,
          std::to_string(run.description.ranks),
          std::to_string(s.steps),
          number(s.loss),
          number(s.best_valid_loss),
          format_count(s.tokens_per_s),
          format_seconds(s.measured_s),
          format_seconds(s.predicted_s),
          fmt::format("{:.2f}", s.ratio())};
}

std::vector<std::string> share_cells(const std::string& title, const schedule::Seconds& seconds,
                                     double iteration_s) {
  std::vector<std::string> row{title};
  for (const double spent_s : seconds)
    row.push_back(fmt::format("{:.1f} %", 100.0 * spent_s / iteration_s));
  row.push_back(format_seconds(iteration_s));
  return row;
}

/// A row for what was measured and one for what was predicted of each stage.
std::vector<std::vector<std::string>> time_rows(const Summary& s) {
  std::vector<std::vector<std::string>> rows;
  for (const StageTimes& stage : s.stages) {
    rows.push_back(
        share_cells(fmt::format("{} measured", stage.stage), stage.measured, s.last_measured_s));
    rows.push_back(
        share_cells(fmt::format("{} predicted", stage.stage), stage.predicted, s.last_predicted_s));
  }
  return rows;
}

std::vector<std::string> time_header() {
  std::vector<std::string> header{"stage"};
  for (int a = 0; a < schedule::num_activities; ++a)
    header.emplace_back(schedule::name(schedule::Activity(a)));
  header.emplace_back("step time");
  return header;
}

// --- one run ---

/// Samples that a report shows.
struct ShownSamples {
  std::vector<io::SampleRow> rows;  ///< by prompt, then by step
  bool all = true;
};

/// Of many prompts the first ones, and of many steps some, the last one among them.
ShownSamples shown_samples(const Run& run) {
  constexpr std::int64_t most_prompts = 8, most_steps = 10;
  std::vector<std::int64_t> steps;
  for (const io::SampleRow& row : run.samples) steps.push_back(row.step);
  std::ranges::sort(steps);
  steps.erase(std::ranges::unique(steps).begin(), steps.end());
  const std::int64_t count = std::ssize(steps), kept = std::min(count, most_steps);
  std::vector<std::int64_t> some;
  for (std::int64_t i = 1; i <= kept; ++i) some.push_back(steps[std::size_t(i * count / kept - 1)]);
  ShownSamples shown;
  for (const io::SampleRow& row : run.samples)
    if (row.index < most_prompts && std::ranges::binary_search(some, row.step))
      shown.rows.push_back(row);
  shown.all = shown.rows.size() == run.samples.size();
  std::ranges::stable_sort(shown.rows, {},
                           [](const io::SampleRow& row) { return std::pair(row.index, row.step); });
  return shown;
}

const std::vector<std::string> sample_columns{"step", "prompt", "answer"};

/// @param columns  of an answer
std::vector<std::string> sample_cells(const io::SampleRow& row, std::size_t columns) {
  return {std::to_string(row.step), io::quoted(row.prompt, columns / 2),
          row.finish == "error" ? "the logits are not finite" : io::quoted(row.text, columns)};
}

std::string samples(const Run& run) {
  if (run.samples.empty()) return "";
  constexpr std::size_t columns = 400;
  const ShownSamples shown = shown_samples(run);
  std::string out = "<h2>Samples</h2>\n<table>" + html_row(sample_columns, "th");
  for (const io::SampleRow& row : shown.rows) out += html_row(sample_cells(row, columns), "td");
  out += "</table>\n";
  if (!shown.all) out += "<p class=\"note\">metrics.jsonl has all steps and prompts.</p>\n";
  return out;
}

std::string times(const Summary& s) {
  if (s.stages.empty()) return "";
  std::string out =
      "<h2>Where the last step's time went</h2>\n<p class=\"note\">On the first rank of each "
      "stage. Communication that overlaps with computation counts as computation: tp, dp, copies "
      "and messages show exposed time only.</p>\n<table>" +
      html_row(time_header(), "th");
  for (const std::vector<std::string>& row : time_rows(s)) out += html_row(row, "td");
  out += "</table>\n" + activity_legend();
  if (!s.last_is_usual())
    out += fmt::format(
        "<p class=\"note\">This step took {:.1f} times as long as the usual one, so it says "
        "little of the others.</p>\n",
        s.last_measured_s / s.measured_s);
  for (const StageTimes& stage : s.stages)
    out += fmt::format("<p class=\"note\">stage {}, measured</p>{}\n", stage.stage,
                       bar(stage.measured, s.last_measured_s));
  return out;
}

std::string timelines(const Run& run, const Summary& s) {
  if (s.stages.empty()) return "";
  constexpr std::size_t most = 8;  // stages
  const double end = std::max(s.last_measured_s, s.last_predicted_s);
  std::string out = fmt::format(
      "<h2>The last step</h2>\n<p class=\"note\">From 0 to {} on the first rank of {}; "
      "trace.json has all ranks and tasks.</p>\n",
      format_seconds(end), s.stages.size() > most ? "the first stages" : "each stage");
  for (std::size_t i = 0; i < std::min(most, s.stages.size()); ++i) {
    const int stage = s.stages[i].stage, rank = plan::first_rank(run.plan, stage);
    out += fmt::format("<p class=\"note\">stage {}, measured</p>{}", stage,
                       svg(*timeline_of(run.trace.measured, rank), end));
    out += fmt::format("<p class=\"note\">stage {}, predicted</p>{}", stage,
                       svg(*timeline_of(run.trace.predicted, rank), end));
  }
  return out;
}

std::string memory(const Run& run) {
  const io::RunDescription& d = run.description;
  std::string out =
      "<h2>Memory</h2>\n<table>" +
      html_row({"rank", "device", "host pool", "checkpoint copy", "resident set"}, "th");
  constexpr std::size_t most = 64;
  for (std::size_t r = 0; r < std::min(most, d.predicted_bytes.size()); ++r) {
    const auto bytes = [&](const std::vector<std::int64_t>& values) {
      return r < values.size() ? format_bytes(double(values[r])) : std::string("-");
    };
    out += html_row(
        {std::to_string(r), bytes(d.predicted_bytes), bytes(d.host_bytes), bytes(d.copy_bytes),
         bytes(run.rows.empty() ? std::vector<std::int64_t>{} : run.rows.back().peak_bytes)},
        "td");
  }
  out += "</table>\n";
  if (d.predicted_bytes.size() > most)
    out += fmt::format("<p class=\"note\">The first {} of {} ranks.</p>\n", most,
                       d.predicted_bytes.size());
  return out;
}

std::string details(const Run& run, const Summary& s) {
  std::string out;
  if (!run.description.ended.empty())
    out += fmt::format("<p class=\"note\">Ended: {}</p>\n", escaped(run.description.ended));
  out += samples(run) + times(s) + timelines(run, s);
  if (s.stages.empty())
    out +=
        "<p class=\"note\">With output.trace = true a run that ends keeps its last step task "
        "by task, and this page shows where its time went.</p>\n";
  out += fmt::format("<h2>Plan</h2>\n{}<pre>{}</pre>\n", stages_picture(run.plan),
                     escaped(plan::table(run.plan)));
  out += memory(run);
  return out + fmt::format(
                   "<h2>Deck</h2>\n<details><summary>as it was run</summary><pre>{}</pre>"
                   "</details>\n",
                   escaped(run.description.deck_text));
}

}  // namespace

std::string html(std::span<const Run> runs) {
  std::string names;
  for (const Run& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  std::string out = fmt::format("<h1>{}</h1>\n<table>", escaped(names)) + html_row(columns, "th");
  std::vector<Summary> summaries;
  for (const Run& run : runs) {
    summaries.push_back(summary(run));
    out += html_row(cells(run, summaries.back()), "td");
  }
  out += "</table>\n";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::vector<std::string> advice = hints(runs[i], summaries[i]);
    if (advice.empty()) continue;
    out += runs.size() == 1 ? "<h2>Findings</h2>\n<ul>"
                            : fmt::format("<h2>Findings in {}</h2>\n<ul>", escaped(runs[i].name));
    for (const std::string& hint : advice) out += fmt::format("<li>{}</li>\n", escaped(hint));
    out += "</ul>\n";
  }
  out += "<h2>Step by step</h2>\n" + charts(runs);
  if (runs.size() == 1)
    out += happenings(runs[0]) + details(runs[0], summaries[0]);
  else
    for (std::size_t i = 0; i < runs.size(); ++i)
      out += fmt::format("<h1>{}</h1>\n", escaped(runs[i].name)) + details(runs[i], summaries[i]);
  return page(names, out);
}

std::string text(std::span<const Run> runs, std::size_t room) {
  Table table(columns);
  std::string rest;
  for (const Run& run : runs) {
    const Summary s = summary(run);
    table.add(cells(run, s));
    Table time(time_header());
    for (std::vector<std::string>& row : time_rows(s)) time.add(std::move(row));
    if (!s.stages.empty())
      rest += fmt::format("\nlast step time of {}\n{}", run.name, time.text(room));
    for (const std::string& hint : hints(run, s)) rest += fmt::format("{}: {}\n", run.name, hint);
    for (const Mark& mark : marks(run)) rest += fmt::format("{}: {}\n", run.name, mark.text);
    Table answers(sample_columns);
    for (const io::SampleRow& row : shown_samples(run).rows)
      answers.add(sample_cells(row, std::max<std::size_t>(40, room / 2)));
    if (!run.samples.empty())
      rest += fmt::format("\nsamples of {}\n{}", run.name, answers.text(room));
    if (!run.description.ended.empty())
      rest += fmt::format("{}: ended: {}\n", run.name, run.description.ended);
  }
  return wrapped(table.text(room) + rest, room);
}

}  // namespace brume::report
