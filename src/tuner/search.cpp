#include "search.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "fronts.hpp"
#include "grid.hpp"
#include "node_order.hpp"
#include "team.hpp"
#include "tuner/progress.hpp"
#include "tuner/result.hpp"

namespace brume::tuner {
namespace {

constexpr double worth_knowing = 0.003;     ///< relative, of the time of the fastest plan known
constexpr std::size_t frames_at_once = 16;  ///< whatever the number of threads
constexpr std::size_t frames_at_first = 2;  ///< until a plan is known
constexpr double about = 1.03;              ///< as much as a step raises a bound

Bounds::key_type key(const Frame& frame) {
  return {frame.num_stages, frame.microbatches, frame.run_ahead};
}

}  // namespace

Searcher::Searcher(Question question, Team& team, std::vector<Frame> frames, const Bounds& known)
    : question_(std::move(question)),
      team_(team),
      axes_(question_.keys),
      split_axes_(axes_.of_split_backwards()) {
  for (Frame& frame : frames) {
    for (Layout& layout : frame.layouts)
      layout.times = least_times(layout, question_.cluster, question_.machine);
    std::shared_ptr<Fronts>& fronts =
        fronts_[{frame.microbatches, frame.run_ahead, frame.zero_bubble, frame.layouts}];
    const Axes& axes = frame.zero_bubble ? split_axes_ : axes_;
    if (!fronts) fronts = std::make_shared<Fronts>(axes, *question_.rows);
    const auto bound = known.find(key(frame));
    frames_.emplace_back(question_, fronts, std::move(frame),
                         bound == known.end() ? 0.0 : bound->second);
  }
}

/// The open frames of about the least bound below `known_s`; at first those of one stage, which are
/// settled at once and show which others matter, and of fewest stages until a plan is known. Where
/// some have not begun, all of these.
std::vector<std::size_t> Searcher::most_promising(double known_s) const {
  const bool known = known_s < infinity;
  const auto rank = [&](std::size_t i) {
    const FrameSearch& frame = frames_[i];
    const int stages = frame.frame().num_stages;
    return std::tuple(known ? std::min(stages, 2) : stages, frame.begun(), frame.bound_s(), i);
  };
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < frames_.size(); ++i)
    if (frames_[i].open() && frames_[i].bound_s() < known_s) found.push_back(i);
  if (found.empty()) return found;
  std::ranges::sort(found, {}, rank);
  const auto [stages, begun, least_s, first] = rank(found[0]);
  const auto last = std::ranges::find_if(found, [&](std::size_t i) {
    const auto [other_stages, other_begun, bound_s, other] = rank(i);
    return other_stages != stages || other_begun != begun || (begun && bound_s > least_s * about);
  });
  found.erase(last, found.end());
  if (begun) found.resize(std::min(found.size(), known ? frames_at_once : frames_at_first));
  return found;
}

/// The first step of some frames. Those that ask for the same times, as all do that share fronts,
/// go one after the other, so that threads do not wait for each other.
void Searcher::begin(const std::vector<std::size_t>& round) {
  std::map<std::pair<int, Layout>, std::vector<FrameSearch*>> sharing;
  for (const std::size_t i : round) {
    const Frame& frame = frames_[i].frame();
    sharing[{frame.microbatches, frame.layouts[0]}].push_back(&frames_[i]);
  }
  std::vector<const std::vector<FrameSearch*>*> groups;
  for (const auto& [times, frames] : sharing) groups.push_back(&frames);
  team_.each(groups.size(), [&](std::size_t g, Grid& grid) {
    for (FrameSearch* const frame : *groups[g]) frame->begin(grid);
  });
}

/// Prepares what the next step of some frames asks for, seats that are alike one after the other.
void Searcher::prepare(const std::vector<std::size_t>& round, double known_s) {
  using Task = std::pair<FrameSearch*, const FrameSearch::Part*>;
  std::vector<const std::vector<FrameSearch::Part>*> parts(round.size());
  for (std::size_t r = 0; r < round.size(); ++r) parts[r] = &frames_[round[r]].plan(known_s);
  std::map<std::pair<const Fronts*, Fronts::Alike>, std::vector<Task>> alike;
  for (std::size_t r = 0; r < round.size(); ++r) {
    FrameSearch& frame = frames_[round[r]];
    for (const FrameSearch::Part& part : *parts[r])
      alike[{&frame.fronts(), Fronts::alike(frame.seat(part))}].push_back({&frame, &part});
  }
  std::vector<const std::vector<Task>*> groups;
  for (const auto& [seat, tasks] : alike) groups.push_back(&tasks);
  team_.each(groups.size(), [&](std::size_t g, Grid& grid) {
    for (const auto& [frame, part] : *groups[g]) frame->prepare(grid, *part);
  });
}

/// The next step of some frames.
void Searcher::look_at(const std::vector<std::size_t>& round, double known_s) {
  if (!frames_[round[0]].begun()) return begin(round);
  prepare(round, known_s);
  std::vector<std::vector<Offer>> found(round.size());
  team_.each(round.size(),
             [&](std::size_t r, Grid& grid) { found[r] = frames_[round[r]].work(grid); });
  for (std::size_t r = 0; r < round.size(); ++r) {
    frames_[round[r]].settle();
    for (Offer& offer : found[r]) offers_.push_back({std::move(offer), round[r]});
  }
}

bool Searcher::done(double known_s) const {
  return std::ranges::all_of(frames_, [&](const FrameSearch& frame) {
    return !frame.open() || frame.bound_s() >= known_s;
  });
}

double Searcher::bound_s() const {
  double bound_s = infinity;
  for (const FrameSearch& frame : frames_) bound_s = std::min(bound_s, frame.bound_s());
  return bound_s;
}

Bounds Searcher::bounds() const {
  Bounds bounds;
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
    found.offer.plan =
        on_best_nodes(std::move(found.offer.plan), question_.model, question_.cluster,
                      question_.machine, team_.threads(), question_.deadline);
    return found;
  };
  try {
    while (true) {
      double fastest_s = known_s;
      for (const Found& found : offers_) fastest_s = std::min(fastest_s, found.offer.predicted_s);
      // The sooner a faster plan is known, the fewer frames matter.
      if (fastest_s < known_s * (1.0 - worth_knowing)) return take();
      const std::vector<std::size_t> round = most_promising(fastest_s);
      if (round.empty()) return take();
      question_.deadline.check();
      look_at(round, known_s);
      if (question_.progress) question_.progress->bound_s = bound_s();
    }
  } catch (const OutOfTime&) {
    return take();
  }
}

void Searcher::strike(const Found& found, int stage) {
  FrameSearch& frame = frames_[found.frame];
  frame.strike(frame.frame().num_stages - 1 - stage, found.offer.stages[std::size_t(stage)]);
  forget_offers(found.frame);
}

void Searcher::take_less_memory(const Found& found, double share) {
  frames_[found.frame].take_less_memory(share);
  forget_offers(found.frame);
}

/// What a frame offered beside may hold the same strategy; what does not is offered again.
void Searcher::forget_offers(std::size_t frame) {
  std::erase_if(offers_, [&](const Found& other) { return other.frame == frame; });
}

bool Searcher::confirms(const Found& found) {
  FrameSearch& frame = frames_[found.frame];
  const std::optional<double> bound_s = frame.confirm(team_.grid(), found.offer.predicted_s);
  if (bound_s) ++milp_solves_;
  return bound_s && *bound_s >= frame.bound_s() * (1.0 - 1e-6);
}

void Searcher::add_to(Search& statistics) const {
  for (const auto& [key, fronts] : fronts_) {
    statistics.policies += fronts->strategies();
    statistics.feasible += fronts->feasible();
  }
  for (const FrameSearch& frame : frames_) statistics.dynamic_programs += frame.programs();
  statistics.evaluations = team_.evaluations();
  statistics.milp_solves += milp_solves_;
}

}  // namespace brume::tuner
