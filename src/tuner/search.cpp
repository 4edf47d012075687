#include "search.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace brume::tuner {
namespace {

constexpr std::size_t small_points = 400;  ///< so many GLPK settles in milliseconds
constexpr double glpk_seconds = 2.0;
constexpr std::size_t more_labels = 8;  ///< times as many where merged labels leave a doubt

/// Stable times of a pipeline's points within (over_s, below_s), in rising order.
std::vector<double> times_between(const Pipeline& pipeline, double over_s, double below_s) {
  std::vector<double> times;
  for (const auto& cells : pipeline.cells)
    for (const Cell& cell : cells)
      for (const Point& p : cell.points)
        if (p.stable_s > over_s && p.stable_s < below_s) times.push_back(p.stable_s);
  std::ranges::sort(times);
  times.erase(std::unique(times.begin(), times.end()), times.end());
  return times;
}

/// Whether a choice takes no longer than its bound says.
bool keeps(const Least& least) {
  double later_s = 0.0, sum_s = 0.0;
  for (auto stage = least.stages.rbegin(); stage != least.stages.rend(); ++stage) {
    sum_s = std::max(sum_s, stage->whole_s() + later_s);
    later_s += stage->stable_s;
  }
  return sum_s <= least.sum_s * (1.0 + sum_rounding);
}

}  // namespace

plan::Plan plan_of(const Question& question, const Frame& frame, const std::vector<Point>& stages) {
  plan::Plan plan{.global_batch = question.global_batch,
                  .microbatches = frame.microbatches,
                  .run_ahead = frame.run_ahead,
                  .stages = {}};
  int first_layer = 0;
  for (const Point& point : stages) {
    const Layout& mesh = frame.layouts[std::size_t(point.layout)];
    plan.stages.push_back({.first_layer = first_layer,
                           .layers = point.layers,
                           .nodes = mesh.nodes,
                           .devices_per_node = mesh.devices_per_node,
                           .microbatch = mesh.microbatch,
                           .dp = mesh.dp,
                           .tp = mesh.tp,
                           .zero_level = point.zero_level,
                           .ckpt_layers = point.ckpt_layers,
                           .weight_offload_ratio = point.ratios[0],
                           .grad_offload_ratio = point.ratios[1],
                           .optim_offload_ratio = point.ratios[2],
                           .act_offload_ratio = point.ratios[3],
                           .optim_disk_ratio = point.optim_disk_ratio(),
                           .act_disk_ratio = point.act_disk_ratio(),
                           .group = question.cluster.groups[std::size_t(mesh.group)].name});
    first_layer += point.layers;
  }
  return plan;
}

Searcher::Searcher(Question question, Grid& grid)
    : question_(std::move(question)), grid_(grid), axes_(question_.keys) {
  unbuilt_ = frames(question_.model, question_.global_batch, question_.cluster, question_.keys);
  std::ranges::reverse(unbuilt_);
}

void Searcher::build_frames() {
  for (; !unbuilt_.empty(); unbuilt_.pop_back())
    frames_.emplace_back(question_, grid_, axes_, unbuilt_.back());
}

// --- one interval --------------------------------------------------------------------------------

void Searcher::work_on(FrameSearch& candidate, Interval interval) {
  const double slowest_s = std::max(interval.over_s, candidate.fastest_stage_s());
  const double steady_s = (candidate.frame().microbatches - 1) * slowest_s;
  if (!interval.prices) {
    interval.prices = candidate.prices(interval.most_s);
    interval.bound_s =
        std::max(interval.bound_s, steady_s + interval.prices->sum_s * (1.0 - bound_rounding));
    candidate.open.push_back(interval);
    return;
  }
  const Pipeline pipeline = interval.limited ? candidate.limited_pipeline(interval.most_s)
                                             : candidate.unlimited_pipeline();
  const Least least = least_sum(pipeline, interval.most_s, known_s() - steady_s, *interval.prices,
                                interval.most_labels);
  ++programs_;
  if (least.sum_s == infinity) return;  // no choice at all
  interval.bound_s = std::max(interval.bound_s, steady_s + least.sum_s);
  if (interval.limited && !least.stages.empty()) return take(candidate, interval, pipeline, least);
  interval.limited = true;
  candidate.open.push_back(interval);
}

/// Keeps a choice. Where labels were merged, and the choice is not what they promised, the interval
/// stays open for a program of more labels.
void Searcher::take(FrameSearch& candidate, Interval interval, const Pipeline& pipeline,
                    const Least& least) {
  const bool fits = fits_host(pipeline, least.stages);
  if (!candidate.host_matters && !fits) {
    candidate.host_matters = true;
    candidate.fronts().count_host();
    candidate.open.push_back(interval);
    return;
  }
  if (fits || !least.merged) {
    const double iteration_s = iteration_time(least.stages, candidate.frame().microbatches);
    if (!candidate.best || iteration_s < candidate.best->iteration_s) {
      candidate.best = Choice{least.stages, iteration_s};
      candidate.confirmed = false;
    }
  }
  if (!least.merged || (fits && keeps(least)))
    return open_faster(candidate, interval, pipeline, least);
  interval.most_labels *= more_labels;
  candidate.open.push_back(interval);
}

/// What is left open beside a choice are slowest stages faster than its own.
void Searcher::open_faster(FrameSearch& candidate, const Interval& interval,
                           const Pipeline& pipeline, const Least& least) {
  const int steps = candidate.frame().microbatches - 1;
  const double slowest_s = std::ranges::max_element(least.stages, {}, &Point::stable_s)->stable_s;
  if (steps == 0) return;
  const std::vector<double> faster = times_between(pipeline, interval.over_s, slowest_s);
  if (faster.empty()) return;
  const auto open = [&](double over_s, double next_s, double most_s) {
    candidate.open.push_back({.over_s = over_s,
                              .most_s = most_s,
                              .bound_s = std::max(interval.bound_s, steps * next_s + least.sum_s),
                              .most_labels = interval.most_labels,
                              .limited = true,
                              .prices = interval.prices});
  };
  const auto middle = std::ranges::lower_bound(faster, (faster.front() + slowest_s) / 2.0);
  if (middle != faster.begin()) open(interval.over_s, faster.front(), *std::prev(middle));
  if (middle != faster.end())
    open(middle == faster.begin() ? interval.over_s : *std::prev(middle), *middle, faster.back());
}

// --- all frames ----------------------------------------------------------------------------------

Searcher::Front Searcher::most_promising() {
  Front front;
  for (FrameSearch& candidate : frames_)
    for (std::size_t i = 0; i < candidate.open.size(); ++i)
      if (candidate.open[i].bound_s < front.bound_s)
        front = {&candidate, i, candidate.open[i].bound_s};
  return front;
}

FrameSearch* Searcher::fastest() {
  FrameSearch* best = nullptr;
  for (FrameSearch& candidate : frames_)
    if (candidate.best && (!best || candidate.best->iteration_s < best->best->iteration_s))
      best = &candidate;
  return best;
}

double Searcher::known_s() const {
  double known_s = infinity;
  for (const FrameSearch& candidate : frames_)
    if (candidate.best) known_s = std::min(known_s, candidate.best->iteration_s);
  return known_s;
}

bool Searcher::done() const {
  return unbuilt_.empty() && std::ranges::all_of(frames_, [](const FrameSearch& frame) {
           return frame.open.empty() && !frame.best;
         });
}

double Searcher::bound_s() const {
  if (!unbuilt_.empty()) return 0.0;
  double bound_s = known_s();
  for (const FrameSearch& candidate : frames_)
    for (const Interval& interval : candidate.open) bound_s = std::min(bound_s, interval.bound_s);
  return bound_s;
}

std::optional<Found> Searcher::next() {
  try {
    build_frames();
    while (true) {
      const Front front = most_promising();
      FrameSearch* best = fastest();
      if (!best && !front.candidate) return std::nullopt;
      const double gap = std::max(question_.keys.gap, bound_rounding * 1e-3);
      if (best && front.bound_s >= best->best->iteration_s * (1.0 - gap)) {
        const double before_s = best->best->iteration_s;
        confirm(*best);
        if (best->best->iteration_s < before_s) continue;
        return found(*best, true);
      }
      question_.deadline.check();
      std::vector<Interval>& open = front.candidate->open;
      const Interval interval = open[front.interval];
      open.erase(open.begin() + std::ptrdiff_t(front.interval));
      try {
        work_on(*front.candidate, interval);
      } catch (const OutOfTime&) {
        open.push_back(interval);
        throw;
      }
    }
  } catch (const OutOfTime&) {
    FrameSearch* best = fastest();
    return best ? std::optional(found(*best, false)) : std::nullopt;
  }
}

Found Searcher::found(const FrameSearch& best, bool closed) const {
  std::size_t index = 0;
  while (&frames_[index] != &best) ++index;
  return {.plan = plan_of(question_, best.frame(), best.best->stages),
          .frame = index,
          .iteration_s = best.best->iteration_s,
          .bound_s = bound_s(),
          .confirmed = best.confirmed,
          .closed = closed};
}

/// Asks GLPK for a faster choice where the points that may be part of one are few.
void Searcher::confirm(FrameSearch& candidate) {
  const Frame& frame = candidate.frame();
  if (candidate.confirmed || frame.num_stages == 1 || frame.microbatches == 1) return;
  const double known_s = candidate.best->iteration_s;
  const int steps = frame.microbatches - 1;
  const double other_s = candidate.other_s();
  if (double(frame.num_stages) * double(frame.layouts.size()) > double(small_points)) return;
  const Pipeline all = candidate.limited_pipeline((known_s - other_s) / steps);
  Pipeline pipeline = candidate.empty_pipeline();
  std::size_t count = 0;
  for (std::size_t after = 0; after < all.cells.size(); ++after)
    for (const Cell& cell : all.cells[after]) {
      std::vector<Point>& points = pipeline.own.emplace_back();
      std::ranges::copy_if(cell.points, std::back_inserter(points), [&](const Point& p) {
        return steps * std::max(p.stable_s, candidate.fastest_stage_s()) +
                   std::max(other_s, p.whole_s()) <=
               known_s;
      });
      count += points.size();
      if (!points.empty())
        pipeline.cells[after].push_back(
            {cell.layout, cell.layers, std::span(points), cell.before, cell.after});
    }
  if (count > small_points) return;
  const Proof proof =
      solve_milp(pipeline, known_s, std::min(glpk_seconds, question_.deadline.left_s()));
  ++milp_solves_;
  if (proof.better)
    candidate.best = proof.better;
  else
    candidate.confirmed = proof.bound_s >= known_s * (1.0 - 1e-6);
}

void Searcher::strike(const Found& found, int stage) {
  FrameSearch& candidate = frames_[found.frame];
  const Point point = candidate.best->stages[std::size_t(stage)];
  candidate.fronts().strike(candidate.frame().num_stages - 1 - stage, point);
  // Without one of its strategies a frame is not faster than with it.
  double least_s = candidate.best->iteration_s;
  for (const Interval& interval : candidate.open) least_s = std::min(least_s, interval.bound_s);
  candidate.best.reset();
  candidate.confirmed = false;
  candidate.reopen(least_s);
}

void Searcher::drop(const Found& found) {
  frames_[found.frame].open.clear();
  frames_[found.frame].best.reset();
}

void Searcher::add_to(Search& statistics) const {
  for (const FrameSearch& candidate : frames_) {
    statistics.policies += candidate.fronts().strategies();
    statistics.feasible += candidate.fronts().feasible();
  }
  statistics.evaluations = grid_.evaluations();
  statistics.milp_solves += milp_solves_;
  statistics.dynamic_programs += programs_;
}

}  // namespace brume::tuner
