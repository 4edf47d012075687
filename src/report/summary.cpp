#include "summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "io/metrics_log.hpp"

namespace brume::report {
namespace {

using schedule::Activity;

/// What a hint is about, as a share of an iteration.
using Hint = std::pair<double, std::string>;

constexpr double worth_a_hint = 0.05;

/// Activities before it are work of the device.
constexpr auto first_exposed = std::size_t(Activity::collective_tp);

/// What is exposed, and what may help.
std::pair<const char*, const char*> advice(Activity activity, const plan::Plan& plan) {
  switch (activity) {
    case Activity::collective_tp:
      return {"collectives of tensor parallelism", "a smaller tp avoids them"};
    case Activity::collective_dp:
      return {"collectives of data parallelism",
              "more microbatches per step, or a lower ZeRO level, hide them better"};
    case Activity::copying:
      return {"copies", "more device memory makes them fewer, larger microbatches hide them"};
    case Activity::messaging:
      return {"messages between stages",
              plan.order.run_ahead > 1 ? "fewer stages avoid them"
                                       : "run_ahead 2 may hide them, fewer stages avoid them"};
    case Activity::waiting:
      return {"waiting", plan.num_stages() > 1 ? "more microbatches fill the pipeline better"
                                               : "other work may hold the processors"};
    case Activity::computing:
    case Activity::recomputing:
    case Activity::updating: break;
  }
  return {"", ""};
}

schedule::Seconds seconds(const io::RankTimeline& timeline, double iteration_s) {
  std::vector<Activity> activities;
  for (const io::TracedTask& task : timeline.tasks) activities.push_back(task.activity);
  return schedule::seconds(activities, timeline.times, iteration_s);
}

double median_of(std::vector<double> values) {
  return values.empty() ? std::nan("") : median(values);
}

std::string would_give(const Change& change) {
  return fmt::format("{} would give {}", change.what, format_percent(change.gain));
}

/// What the planner found that relieves no stage in particular.
void add_changes(const Run& run, std::vector<Hint>& hints) {
  if (!run.changes) return;
  for (const Change& change : *run.changes)
    if (change.stage < 0)
      hints.emplace_back(change.gain, would_give(change) + ", by the times measured");
}

/// The stage that computes longest, beside the others.
void add_unequal_stages(const Run& run, const Summary& s, std::vector<Hint>& hints) {
  if (s.stages.size() < 2) return;
  const auto computing = [](const StageTimes& stage) {
    double sum_s = 0.0;
    for (std::size_t a = 0; a < first_exposed; ++a) sum_s += stage.measured[a];
    return sum_s;
  };
  const auto slowest = std::ranges::max_element(s.stages, {}, computing);
  double others_s = 0.0;
  for (const StageTimes& stage : s.stages) others_s += computing(stage);
  others_s = (others_s - computing(*slowest)) / double(s.stages.size() - 1);
  const double more = computing(*slowest) / others_s - 1.0;
  if (!(more > worth_a_hint)) return;
  std::string remedy = "fewer layers there may be faster";
  if (run.changes) {
    const auto relief = std::ranges::find(*run.changes, slowest->stage, &Change::stage);
    remedy = relief == run.changes->end() ? "one layer elsewhere would not be faster"
                                          : would_give(*relief);
  }
  hints.emplace_back(
      (computing(*slowest) - others_s) / s.last_measured_s,
      fmt::format("stage {} computes {:.0f} % longer than the others ({} against {}): {}",
                  slowest->stage, 100.0 * more, format_seconds(computing(*slowest)),
                  format_seconds(others_s), remedy));
}

/// What nothing hides.
void add_exposed(const plan::Plan& plan, const Summary& s, std::vector<Hint>& hints) {
  for (std::size_t k = first_exposed; k < schedule::num_activities; ++k) {
    const auto longest = std::ranges::max_element(
        s.stages, {}, [&](const StageTimes& stage) { return stage.measured[k]; });
    if (longest == s.stages.end()) continue;
    const double exposed_s = longest->measured[k];
    const double share = exposed_s / s.last_measured_s;
    if (!(share > worth_a_hint)) continue;
    const auto [what, helps] = advice(Activity(k), plan);
    hints.emplace_back(
        share, fmt::format("{}: {:.0f} % of the last step on stage {} ({}, predicted {}) while "
                           "nothing computes; {}",
                           what, 100.0 * share, longest->stage, format_seconds(exposed_s),
                           format_seconds(longest->predicted[k]), helps));
  }
}

}  // namespace

const io::RankTimeline* timeline_of(const std::vector<io::RankTimeline>& timelines, int rank) {
  const auto found = std::ranges::find(timelines, rank, &io::RankTimeline::rank);
  return found == timelines.end() ? nullptr : &*found;
}

double end_s(const std::vector<io::RankTimeline>& timelines) {
  double end = 0.0;
  for (const io::RankTimeline& timeline : timelines)
    for (const schedule::Span& time : timeline.times) end = std::max(end, time.end_s);
  return end;
}

Summary summary(const Run& run) {
  Summary s;
  s.loss = s.best_valid_loss = std::nan("");
  for (const io::EvaluationRow& row : run.evaluations)
    s.best_valid_loss = std::fmin(s.best_valid_loss, row.loss);
  std::vector<double> iterations, speeds;
  double all_s = 0.0;
  for (const io::Row& row : run.rows) {
    iterations.push_back(row.metrics.iteration_s);
    speeds.push_back(row.tokens_per_s);
    s.nothing_learned += row.metrics.nothing_learned;
    s.skipped += row.metrics.skipped && !row.metrics.nothing_learned;
    s.data_share += row.metrics.data_s;
    all_s += row.metrics.iteration_s;
  }
  if (all_s > 0.0) s.data_share /= all_s;
  if (!run.rows.empty()) {
    s.steps = run.rows.back().metrics.step + 1;
    s.loss = run.rows.back().metrics.loss;
    s.predicted_s = run.rows.back().predicted_s;
    std::vector<double> sorted = iterations;
    std::ranges::sort(sorted);
    s.slow_s = sorted[sorted.size() * 9 / 10];
  }
  s.measured_s = median_of(iterations);
  s.tokens_per_s = median_of(speeds);
  s.last_measured_s = end_s(run.trace.measured);
  s.last_predicted_s = end_s(run.trace.predicted);
  for (int stage = 0; stage < run.plan.pipeline_size(); ++stage) {
    const int rank = plan::first_rank(run.plan, stage);
    const io::RankTimeline* measured = timeline_of(run.trace.measured, rank);
    const io::RankTimeline* predicted = timeline_of(run.trace.predicted, rank);
    if (!measured || !predicted) continue;
    s.stages.push_back(
        {stage, seconds(*measured, s.last_measured_s), seconds(*predicted, s.last_predicted_s)});
  }
  return s;
}

std::vector<std::string> hints(const Run& run, const Summary& s) {
  std::vector<Hint> found;
  if (s.last_is_usual()) {
    add_unequal_stages(run, s, found);
    add_exposed(run.plan, s, found);
    add_changes(run, found);
  }
  if (s.ratio() > io::slow_ratio)
    found.emplace_back(1.0 - 1.0 / s.ratio(),
                       fmt::format("a step takes {:.2f} times as long as predicted: the "
                                   "profile may be of another or a quieter machine (`brume "
                                   "profile` measures again), or ranks share cores",
                                   s.ratio()));
  if (s.ratio() > 0.0 && s.ratio() < io::fast_ratio)
    found.emplace_back(1.0 - s.ratio(),
                       fmt::format("a step takes {:.2f} times as long as predicted: the "
                                   "profile may be of another or a busier machine (`brume "
                                   "profile` measures again), and another plan may be faster",
                                   s.ratio()));
  if (s.slow_s > unusual * s.measured_s)
    found.emplace_back(0.1 * (s.slow_s / s.measured_s - 1.0),
                       fmt::format("a tenth of the steps takes more than {}, {:.1f} times the "
                                   "usual one: look for other work on these nodes",
                                   format_seconds(s.slow_s), s.slow_s / s.measured_s));
  if (s.data_share > worth_a_hint)
    found.emplace_back(
        s.data_share,
        fmt::format("{:.0f} % of the time steps wait for their batches: put data on a "
                    "faster disk, or into fewer files",
                    100.0 * s.data_share));
  if (s.nothing_learned > 0)
    found.emplace_back(
        double(s.nothing_learned) / double(run.rows.size()),
        fmt::format("{} changed no weight, because no token of their batches is to be "
                    "learned: look at the prompts in data.train",
                    counted(s.nothing_learned, "step")));
  if (s.skipped > 0)
    found.emplace_back(double(s.skipped) / double(run.rows.size()),
                       fmt::format("{} changed no weight, because loss or gradient was not finite: "
                                   "lower training.optimizer.lr or raise warmup_steps",
                                   counted(s.skipped, "step")));
  std::ranges::stable_sort(found, std::ranges::greater{}, &Hint::first);
  std::vector<std::string> sentences;
  for (const Hint& hint : found)
    if (sentences.size() < 3) sentences.push_back(hint.second);
  return sentences;
}

}  // namespace brume::report
