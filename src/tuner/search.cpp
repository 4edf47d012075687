#include "search.hpp"

#include <algorithm>
#include <utility>

namespace brume::tuner {
namespace {

constexpr double worth_knowing = 0.003;  ///< relative, of the time of the fastest plan known

Bounds::key_type key(const Frame& frame) {
  return {frame.num_stages, frame.microbatches, frame.run_ahead};
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
    const std::string& group = question.cluster.groups[std::size_t(mesh.group)].name;
    plan::Stage& stage = plan.stages.emplace_back(stage_of(mesh, group));
    stage.first_layer = first_layer;
    point.apply_to(stage);
    first_layer += point.layers;
  }
  return plan;
}

Searcher::Searcher(Question question, Grid& grid, Bounds known)
    : question_(std::move(question)), grid_(grid), axes_(question_.keys), known_(std::move(known)) {
  unbuilt_ = frames(question_.model, question_.global_batch, question_.cluster, question_.keys);
  std::ranges::reverse(unbuilt_);
}

void Searcher::build_frames() {
  for (; !unbuilt_.empty(); unbuilt_.pop_back()) {
    const Frame& frame = unbuilt_.back();
    std::shared_ptr<Fronts>& fronts = fronts_[{frame.microbatches, frame.run_ahead, frame.layouts}];
    if (!fronts) fronts = std::make_shared<Fronts>(grid_, axes_, *question_.rows);
    frames_.emplace_back(question_, grid_, fronts, frame);
    if (const auto known = known_.find(key(frame)); known != known_.end())
      frames_.back().raise_bound(known->second);
  }
}

/// The open frame of the least bound below `known_s`; at first those of one stage, which are
/// settled at once and show which others matter.
FrameSearch* Searcher::most_promising(double known_s) {
  FrameSearch* best = nullptr;
  const auto rank = [](const FrameSearch& frame) {
    return std::pair(frame.frame().num_stages > 1, frame.bound_s());
  };
  for (FrameSearch& frame : frames_)
    if (frame.open() && frame.bound_s() < known_s && (!best || rank(frame) < rank(*best)))
      best = &frame;
  return best;
}

bool Searcher::done(double known_s) const {
  return unbuilt_.empty() && std::ranges::all_of(frames_, [&](const FrameSearch& frame) {
           return !frame.open() || frame.bound_s() >= known_s;
         });
}

double Searcher::bound_s() const {
  if (!unbuilt_.empty()) return 0.0;
  double bound_s = infinity;
  for (const FrameSearch& frame : frames_) bound_s = std::min(bound_s, frame.bound_s());
  return bound_s;
}

Bounds Searcher::bounds() const {
  Bounds bounds;
  if (!unbuilt_.empty()) return bounds;
  for (const FrameSearch& frame : frames_) {
    const auto known = bounds.try_emplace(key(frame.frame()), infinity).first;
    known->second = std::min(known->second, frame.bound_s());
  }
  return bounds;
}

std::optional<Found> Searcher::next(double known_s) {
  const auto take = [&]() -> std::optional<Found> {
    const auto fastest = std::ranges::min_element(
        offers_, {}, [](const Found& found) { return found.offer.predicted_s; });
    if (fastest == offers_.end()) return std::nullopt;
    Found found = std::move(*fastest);
    offers_.erase(fastest);
    return found;
  };
  try {
    build_frames();
    while (true) {
      double fastest_s = known_s;
      for (const Found& found : offers_) fastest_s = std::min(fastest_s, found.offer.predicted_s);
      // The sooner a faster plan is known, the fewer frames matter.
      if (fastest_s < known_s * (1.0 - worth_knowing)) return take();
      FrameSearch* frame = most_promising(fastest_s);
      if (!frame) return take();
      question_.deadline.check();
      const auto index = std::size_t(
          std::ranges::find_if(frames_, [&](const FrameSearch& other) { return &other == frame; }) -
          frames_.begin());
      for (Offer& offer : frame->work(known_s)) offers_.push_back({std::move(offer), index});
      if (question_.progress) question_.progress->bound_s = bound_s();
    }
  } catch (const OutOfTime&) {
    return take();
  }
}

void Searcher::strike(const Found& found, int stage) {
  FrameSearch& frame = frames_[found.frame];
  frame.strike(frame.frame().num_stages - 1 - stage, found.offer.stages[std::size_t(stage)]);
  // What it offered beside may hold the same strategy; what does not is offered again.
  std::erase_if(offers_, [&](const Found& other) { return other.frame == found.frame; });
}

bool Searcher::confirms(const Found& found) {
  FrameSearch& frame = frames_[found.frame];
  const std::optional<double> bound_s = frame.confirm(found.offer.predicted_s);
  if (bound_s) ++milp_solves_;
  return bound_s && *bound_s >= frame.bound_s() * (1.0 - 1e-6);
}

void Searcher::add_to(Search& statistics) const {
  for (const auto& [key, fronts] : fronts_) {
    statistics.policies += fronts->strategies();
    statistics.feasible += fronts->feasible();
  }
  for (const FrameSearch& frame : frames_) statistics.dynamic_programs += frame.programs();
  statistics.evaluations = grid_.evaluations();
  statistics.milp_solves += milp_solves_;
}

}  // namespace brume::tuner
