#include "search.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "fronts.hpp"
#include "grid.hpp"
#include "node_order.hpp"
#include "state.hpp"
#include "tuner/progress.hpp"
#include "tuner/result.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {
namespace {

constexpr double worth_knowing = 0.003;       ///< relative, of the time of the fastest plan known
constexpr std::size_t searches_at_once = 16;  ///< whatever the number of threads
constexpr std::size_t searches_at_first = 2;  ///< until a plan is known
constexpr double about = 1.03;                ///< factor by which a step raises a bound
constexpr std::size_t least_waiting = 16;     ///< predicted plans of a state, if there are so many
constexpr std::size_t most_waiting = 256;

Bounds::key_type key(const PipelineConfig& config) {
  return {config.num_stages, config.microbatches, config.order.run_ahead};
}

}  // namespace

Searcher::Searcher(SearchInput input, WorkerPool& workers, std::vector<PipelineConfig> configs,
                   const Bounds& known)
    : input_(std::move(input)),
      workers_(workers),
      axes_(input_.keys),
      split_axes_(axes_.of_split_backwards()) {
  for (PipelineConfig& config : configs) {
    for (Layout& layout : config.layouts)
      layout.times = least_times(layout, input_.cluster, input_.machine);
    const bool splits = config.order.splits_backward();
    std::shared_ptr<Fronts>& fronts =
        fronts_[{config.microbatches, config.order.run_ahead, splits, config.layouts}];
    const Axes& axes = splits ? split_axes_ : axes_;
    if (!fronts) fronts = std::make_shared<Fronts>(axes, *input_.rows);
    const auto bound = known.find(key(config));
    searches_.emplace_back(input_, fronts, std::move(config),
                           bound == known.end() ? 0.0 : bound->second);
  }
}

/// The open configurations of about the least bound below `known_s`; at first those of one stage,
/// which are settled at once and show which others matter, and of fewest stages until a plan is
/// known. Where some have not begun, all of these.
std::vector<std::size_t> Searcher::most_promising(double known_s) const {
  const bool known = known_s < infinity;
  const auto rank = [&](std::size_t i) {
    const PipelineSearch& search = searches_[i];
    const int stages = search.config().num_stages;
    return std::tuple(known ? std::min(stages, 2) : stages, search.begun(), search.bound_s(), i);
  };
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < searches_.size(); ++i)
    if (searches_[i].open() && searches_[i].bound_s() < known_s) found.push_back(i);
  if (found.empty()) return found;
  std::ranges::sort(found, {}, rank);
  const auto [stages, begun, least_s, first] = rank(found[0]);
  const auto last = std::ranges::find_if(found, [&](std::size_t i) {
    const auto [other_stages, other_begun, bound_s, other] = rank(i);
    return other_stages != stages || other_begun != begun || (begun && bound_s > least_s * about);
  });
  found.erase(last, found.end());
  if (begun) found.resize(std::min(found.size(), known ? searches_at_once : searches_at_first));
  return found;
}

/// The first step of some configurations. Those that ask for the same times, as all do that share
/// fronts, go one after the other, so that threads do not wait for each other.
void Searcher::begin(const std::vector<std::size_t>& round) {
  std::map<std::pair<int, Layout>, std::vector<PipelineSearch*>> sharing;
  for (const std::size_t i : round) {
    const PipelineConfig& config = searches_[i].config();
    sharing[{config.microbatches, config.layouts[0]}].push_back(&searches_[i]);
  }
  std::vector<const std::vector<PipelineSearch*>*> groups;
  for (const auto& [times, searches] : sharing) groups.push_back(&searches);
  workers_.each(groups.size(), [&](std::size_t g, Grid& grid) {
    for (PipelineSearch* const search : *groups[g]) search->begin(grid);
  });
}

/// Prepares what the next step of some configurations asks for, positions of one class one after
/// the other.
void Searcher::prepare(const std::vector<std::size_t>& round, double known_s) {
  using Task = std::pair<PipelineSearch*, const PipelineSearch::Part*>;
  std::vector<const std::vector<PipelineSearch::Part>*> parts(round.size());
  for (std::size_t r = 0; r < round.size(); ++r) parts[r] = &searches_[round[r]].plan(known_s);
  std::map<std::pair<const Fronts*, Fronts::Class>, std::vector<Task>> by_class;
  for (std::size_t r = 0; r < round.size(); ++r) {
    PipelineSearch& search = searches_[round[r]];
    for (const PipelineSearch::Part& part : *parts[r])
      by_class[{&search.fronts(), Fronts::class_of(search.position(part))}].push_back(
          {&search, &part});
  }
  std::vector<const std::vector<Task>*> groups;
  for (const auto& [position, tasks] : by_class) groups.push_back(&tasks);
  workers_.each(groups.size(), [&](std::size_t g, Grid& grid) {
    for (const auto& [search, part] : *groups[g]) search->prepare(grid, *part);
  });
}

/// The next step of some configurations.
void Searcher::look_at(const std::vector<std::size_t>& round, double known_s) {
  if (!searches_[round[0]].begun()) return begin(round);
  prepare(round, known_s);
  std::vector<std::vector<Candidate>> found(round.size());
  const auto keep = [&] {
    for (std::size_t r = 0; r < round.size(); ++r) {
      searches_[round[r]].settle();
      for (Candidate& candidate : found[r]) candidates_.push_back({std::move(candidate), round[r]});
    }
  };
  try {
    workers_.each(round.size(),
                  [&](std::size_t r, Grid& grid) { found[r] = searches_[round[r]].work(grid); });
  } catch (const OutOfTime&) {
    keep();  // some are done
    throw;
  }
  keep();
}

bool Searcher::done(double known_s) const {
  return std::ranges::all_of(searches_, [&](const PipelineSearch& search) {
    return !search.open() || search.bound_s() >= known_s;
  });
}

double Searcher::bound_s() const {
  double bound_s = infinity;
  for (const PipelineSearch& search : searches_) bound_s = std::min(bound_s, search.bound_s());
  return bound_s;
}

Bounds Searcher::bounds() const {
  Bounds bounds;
  for (const PipelineSearch& search : searches_) {
    const auto known = bounds.try_emplace(key(search.config()), infinity).first;
    known->second = std::min(known->second, search.bound_s());
  }
  return bounds;
}

std::optional<Found> Searcher::next(double known_s) {
  const auto take = [&]() -> std::optional<Found> {
    const auto fastest = std::ranges::min_element(
        candidates_, {}, [](const Found& found) { return found.candidate.predicted_s; });
    if (fastest == candidates_.end()) return std::nullopt;
    Found found = std::move(*fastest);
    candidates_.erase(fastest);
    found.candidate.plan =
        on_best_nodes(std::move(found.candidate.plan), input_.model, input_.cluster, input_.machine,
                      workers_.threads(), input_.deadline);
    return found;
  };
  try {
    while (true) {
      double fastest_s = known_s;
      for (const Found& found : candidates_)
        fastest_s = std::min(fastest_s, found.candidate.predicted_s);
      // The sooner a faster plan is known, the fewer configurations matter.
      if (fastest_s < known_s * (1.0 - worth_knowing)) return take();
      const std::vector<std::size_t> round = most_promising(fastest_s);
      if (round.empty()) return take();
      input_.deadline.check();
      look_at(round, known_s);
      if (input_.progress) input_.progress->bound_s = bound_s();
      if (input_.keeper) input_.keeper->offer();
    }
  } catch (const OutOfTime&) {
    return take();
  }
}

void Searcher::exclude(const Found& found, int stage) {
  PipelineSearch& search = searches_[*found.search];
  const Point& point = found.candidate.stages[stage];
  const int after = search.config().num_stages - 1 - stage;
  search.exclude(after, point);
  excluded_.push_back({int(*found.search), after, numbers_of({point})});
  forget_candidates(*found.search);
}

void Searcher::take_less_memory(const Found& found, double share) {
  searches_[*found.search].take_less_memory(share);
  forget_candidates(*found.search);
}

/// Drops the other candidates of a configuration: they may hold the same strategy. It returns the
/// rest again.
void Searcher::forget_candidates(std::size_t search) {
  std::erase_if(candidates_, [&](const Found& other) { return other.search == search; });
}

SearcherState Searcher::state(double worth_s) const {
  SearcherState state{.steps = {}, .bounds_s = {}, .memory_errors = {}, .excluded = excluded_};
  for (const PipelineSearch& search : searches_) {
    using Step = SearcherState::Step;
    const bool nothing = search.holds_nothing();
    state.steps.push_back(nothing            ? Step::nothing
                          : !search.open()   ? Step::searched
                          : search.bounded() ? Step::bounded
                                             : Step::open);
    state.bounds_s.push_back(nothing ? 0.0 : search.bound_s());
    state.memory_errors.push_back(search.config().memory_error);
  }
  std::vector<const Found*> waiting;
  for (const Found& found : candidates_) waiting.push_back(&found);
  const auto predicted_s = [](const Found* found) { return found->candidate.predicted_s; };
  std::ranges::stable_sort(waiting, {}, predicted_s);
  for (const Found* found : waiting) {
    const std::size_t kept = state.waiting.size();
    if (kept >= most_waiting || (kept >= least_waiting && predicted_s(found) >= worth_s)) break;
    state.waiting.push_back(
        {int(*found->search), predicted_s(found), numbers_of(found->candidate.stages)});
  }
  return state;
}

void Searcher::restore(const SearcherState& state) {
  const std::size_t count = searches_.size();
  require(state.steps.size() == count && state.bounds_s.size() == count &&
              state.memory_errors.size() == count,
          Failure::input, "the state of the search has {} configurations, expected {}",
          state.steps.size(), count);
  for (const SearcherState::Excluded& one : state.excluded) {
    PipelineSearch& search = searches_[checked(one.config)];
    require(one.after < search.config().num_stages, Failure::input,
            "the state of the search excludes a strategy {} stages before the end of {}", one.after,
            search.config().num_stages);
    search.exclude(one.after, points_from(one.point, search.config(), 1)[0]);
    excluded_.push_back(one);
  }
  for (std::size_t i = 0; i < count; ++i) {
    using Step = SearcherState::Step;
    const bool nothing = state.steps[i] == Step::nothing;
    searches_[i].restore(nothing || state.steps[i] == Step::searched,
                         state.steps[i] == Step::bounded, nothing ? infinity : state.bounds_s[i],
                         state.memory_errors[i]);
  }
  for (const SearcherState::Waiting& one : state.waiting)
    candidates_.push_back(restored(one.config, one.points, one.predicted_s));
}

/// The number of a configuration in a state.
std::size_t Searcher::checked(int search) const {
  require(search >= 0 && search < std::ssize(searches_), Failure::input,
          "the state of the search has configuration {}, expected less than {}", search,
          searches_.size());
  return std::size_t(search);
}

Found Searcher::restored(int search, const std::vector<double>& points, double predicted_s) const {
  const PipelineConfig& config = searches_[checked(search)].config();
  std::vector<Point> stages = points_from(points, config, config.num_stages);
  plan::Plan plan = plan_of(input_, config, stages);
  plan::check(plan, input_.model, input_.cluster);
  return {{std::move(plan), std::move(stages), predicted_s}, std::size_t(search)};
}

bool Searcher::confirms(const Found& found) {
  PipelineSearch& search = searches_[*found.search];
  const std::optional<double> bound_s =
      search.confirm(workers_.grid(), found.candidate.predicted_s);
  if (bound_s) ++milp_solves_;
  return bound_s && *bound_s >= search.bound_s() * (1.0 - 1e-6);
}

void Searcher::add_to(Search& statistics) const {
  for (const auto& [key, fronts] : fronts_) {
    statistics.policies += fronts->strategies();
    statistics.feasible += fronts->feasible();
  }
  for (const PipelineSearch& search : searches_) statistics.dynamic_programs += search.programs();
  statistics.evaluations = workers_.evaluations();
  statistics.milp_solves += milp_solves_;
}

}  // namespace brume::tuner
