#include "fronts.hpp"

#include <algorithm>
#include <cmath>

#include "base/numbers.hpp"
#include "mist/stage.hpp"

namespace brume::mist {
namespace {

/// Stages that differ in nothing but their microbatches in flight.
struct Role {
  Place place;  ///< with the fewest in flight
  int most_earlier = 0;
};

struct Kept {
  Point point;
  int earlier = 0;  ///< most microbatches in flight that it leaves room for
};

std::vector<Role> roles_of(int num_stages) {
  const int last = num_stages - 1;
  if (num_stages == 1) return {{{true, true, 0}, 0}};
  std::vector<Role> roles{{{true, false, last}, last}, {{false, true, 0}, 0}};
  if (num_stages > 2) roles.push_back({{false, false, 1}, last - 1});
  return roles;
}

std::size_t role_of(int stage, int num_stages) {
  if (stage == 0) return 0;
  return stage == num_stages - 1 ? 1 : 2;
}

/// Collects what fits and may be part of a plan faster than the cutoff.
class Collector {
 public:
  Collector(const Shape& shape, const Space& space, double cutoff_s)
      : shape_(shape),
        space_(space),
        cutoff_s_(cutoff_s * (1.0 + 1e-9)),  // sums in another order
        roles_(roles_of(shape.num_stages)),
        shape_mib_(usable_mib(shape.mist.hardware) * (1.0 - 1e-12)) {
    const int after_first = shape.mist.microbatches - 1;
    if (after_first > 0) slowest_s_ = (cutoff_s_ - shape.compute_s) / after_first;
    candidates_.resize(roles_.size());
    for (auto& of_role : candidates_)
      of_role.resize(std::size_t(shape.most_layers - shape.least_layers + 1));
  }

  /// Takes up strategies with these t. Whether stages with them can be fast enough.
  bool begin(const StageTime& time) {
    most_layers_ = shape_.least_layers - 1;
    while (most_layers_ < shape_.most_layers &&
           least_stable_s(time, most_layers_ + 1) <= slowest_s_)
      ++most_layers_;
    return most_layers_ >= shape_.least_layers;
  }

  void add(int strategy, const StageTime& time, const StageMemory& memory) {
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      usable_mib_ = shape_mib_ / memory.margin(roles_[r].place);
      for (int layers = shape_.least_layers; layers <= most_layers_; ++layers)
        add(strategy, time, memory, layers, r);
    }
  }

  Fronts fronts(Search& search);

 private:
  /// t is linear in the recomputed layers between the first one and all but one.
  static double least_stable_s(const StageTime& time, int layers) {
    double least_s = infinity;
    for (const int c : {0, std::min(1, layers), layers - 1, layers})
      least_s = std::min(least_s, time.stable_s(layers, c));
    return least_s;
  }

  void add(int strategy, const StageTime& time, const StageMemory& memory, int layers,
           std::size_t role);

  int earlier(const StageMemory& memory, int layers, int recomputed, const Role& role) const {
    const Peaks peaks = memory.peaks(layers, recomputed, role.place);
    const double left_mib = usable_mib_ - std::max(peaks.forward, peaks.backward);
    if (left_mib < role.place.earlier * peaks.each_earlier) return -1;
    return int(std::min(double(role.most_earlier), left_mib / peaks.each_earlier));
  }

  int first_that_fits(const StageMemory& memory, int layers, const Role& role) const {
    int least = 1;
    for (int beyond = layers; least < beyond;) {
      const int middle = (least + beyond) / 2;
      if (earlier(memory, layers, middle, role) < 0)
        least = middle + 1;
      else
        beyond = middle;
    }
    return least;
  }

  bool allowed(int layers, int recomputed) const {
    if (space_.recompute == Recompute::none) return recomputed == 0;
    if (recomputed == layers) return true;
    if (space_.recompute == Recompute::all) return false;
    return recomputed == 0 || recomputed != layers - 1 || space_.recompute_all_but_one;
  }

  const Shape& shape_;
  const Space& space_;
  double cutoff_s_;
  double slowest_s_ = infinity;  ///< t of a stage
  std::vector<Role> roles_;
  double shape_mib_;         ///< what a stage may need
  double usable_mib_ = 0.0;  ///< the same without the margin of strategy and role
  int most_layers_ = 0;      ///< with which the strategies at hand are fast enough
  std::vector<std::vector<std::vector<Kept>>> candidates_;  ///< [role][layers]
};

/// Memory falls with each recomputed layer. Between the first one and all but one, time is linear
/// in them: where it rises, the fewest that leave room for as many microbatches are enough.
void Collector::add(int strategy, const StageTime& time, const StageMemory& memory, int layers,
                    std::size_t r) {
  const Role& role = roles_[r];
  const auto offer = [&](int recomputed, int in_flight) {
    if (in_flight < 0 || !allowed(layers, recomputed)) return;
    const Time at = time.at(layers, recomputed, role.place);
    const double least_s = shape_.mist.microbatches * at.stable_s + at.delta_s;
    if (at.stable_s > slowest_s_ || least_s > cutoff_s_) return;
    candidates_[r][layers - shape_.least_layers].push_back(
        {{at.stable_s, at.delta_s, strategy, recomputed}, in_flight});
  };
  const int of_all = earlier(memory, layers, layers, role);
  if (of_all < 0) return;
  offer(layers, of_all);
  offer(0, earlier(memory, layers, 0, role));

  const bool dearer =
      time.stable[1].inner >= time.stable[0].inner && time.delta[1].inner >= time.delta[0].inner;
  int most = -1;
  for (int c = first_that_fits(memory, layers, role); c < layers; ++c) {
    if (dearer && most == role.most_earlier) break;
    const int in_flight = earlier(memory, layers, c, role);
    if (dearer && in_flight <= most) continue;
    offer(c, in_flight);
    most = in_flight;
  }
}

MistFront front(const std::vector<Kept>& by_time, int earlier) {
  MistFront front;
  double least_s = infinity;
  for (const Kept& candidate : by_time) {
    if (candidate.earlier < earlier || candidate.point.delta_s >= least_s) continue;
    least_s = candidate.point.delta_s;
    front.push_back(candidate.point);
  }
  return front;
}

Fronts Collector::fronts(Search& search) {
  for (auto& of_role : candidates_)
    for (auto& of_layers : of_role) {
      search.candidates += std::int64_t(of_layers.size());
      std::ranges::sort(of_layers, [](const Kept& a, const Kept& b) {
        return std::pair(a.point.stable_s, a.point.delta_s) <
               std::pair(b.point.stable_s, b.point.delta_s);
      });
    }
  Fronts fronts(std::size_t(shape_.num_stages));
  for (int stage = 0; stage < shape_.num_stages; ++stage)
    for (const auto& of_layers : candidates_[role_of(stage, shape_.num_stages)])
      fronts[stage].push_back(front(of_layers, shape_.num_stages - 1 - stage));
  return fronts;
}

}  // namespace

std::vector<Strategy> strategies_of(const Shape& shape, const Space& space) {
  std::vector<Strategy> all;
  Strategy s = shape.stage.strategy;
  for (const int level : space.zero_levels) {
    if (level > 1 && s.dp == 1) continue;
    s.shard_optimizer = level >= 1;
    s.shard_grads = level >= 2;
    s.shard_weights = level >= 3;
    for (const double grads : space.offload_grads)
      for (const double weights : space.offload_weights) {
        if (weights > 0.0 && grads == 0.0) continue;
        for (const double saved : space.offload_saved)
          for (const double optimizer : space.offload_optimizer) {
            s.offload_grads = grads;
            s.offload_weights = weights;
            s.offload_saved = saved;
            s.offload_optimizer = optimizer;
            all.push_back(s);
          }
      }
  }
  return all;
}

Fronts find_fronts(const Shape& shape, const Space& space, const std::vector<Strategy>& strategies,
                   double cutoff_s, Search& search) {
  Collector collector(shape, space, cutoff_s);
  StageTimer timer(shape.mist, shape.stage);
  Stage stage = shape.stage;
  bool may_win = false;
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    Strategy like_before = stage.strategy;
    like_before.offload_optimizer = strategies[i].offload_optimizer;
    const bool same_stable = i > 0 && shape.mist.microbatches > 1 && like_before == strategies[i];
    if (same_stable && !may_win) continue;
    stage.strategy = strategies[i];
    const StageTime& time = timer.of(stage.strategy);
    ++search.strategies;
    if (!same_stable) may_win = collector.begin(time);
    if (may_win) collector.add(int(i), time, StageMemory(shape.mist, stage));
  }
  return collector.fronts(search);
}

}  // namespace brume::mist
