#include "pipeline.hpp"

#include <algorithm>

namespace brume::mist {
namespace {

/// A front under a threshold of t, ready to be asked for the least max(A, d) + t.
class Step {
 public:
  explicit Step(const MistFront& front) : front_(front) {
    double least_s = infinity;
    for (const Point& point : front)
      through_.push_back(least_s = std::min(least_s, point.stable_s + point.delta_s));
  }

  void limit(double slowest_s) {
    const auto beyond = std::ranges::upper_bound(front_, slowest_s, {}, &Point::stable_s);
    size_ = std::size_t(beyond - front_.begin());
  }

  /// The first point whose d hides behind A is the fastest of those; before it, d decides.
  double after(double a_s) const {
    const std::size_t hidden = first_hidden(a_s);
    const double exposed_s = hidden > 0 ? through_[hidden - 1] : infinity;
    return hidden < size_ ? std::min(exposed_s, a_s + front_[hidden].stable_s) : exposed_s;
  }

  const Point& point(double a_s) const {
    const std::size_t hidden = first_hidden(a_s);
    const double least_s = after(a_s);
    if (hidden < size_ && a_s + front_[hidden].stable_s <= least_s) return front_[hidden];
    return front_[std::ranges::find(through_, least_s) - through_.begin()];
  }

 private:
  std::size_t first_hidden(double a_s) const {
    std::size_t first = 0, count = size_;
    while (count > 0) {
      const std::size_t half = count / 2;
      if (front_[first + half].delta_s > a_s)
        first += half + 1, count -= half + 1;
      else
        count = half;
    }
    return first;
  }

  const MistFront& front_;
  std::vector<double> through_;  ///< least t + d up to a point
  std::size_t size_ = 0;
};

class Recursion {
 public:
  Recursion(const Shape& shape, const Fronts& fronts, double cutoff_s, Search& search)
      : shape_(shape), cutoff_s_(cutoff_s), search_(search) {
    for (const auto& of_stage : fronts) {
      steps_.emplace_back(of_stage.begin(), of_stage.end());
      for (const MistFront& front : of_stage)
        for (const Point& point : front) thresholds_.push_back(point.stable_s);
    }
    std::ranges::sort(thresholds_);
    thresholds_.erase(std::unique(thresholds_.begin(), thresholds_.end()), thresholds_.end());
    before_.assign(steps_.size() + 1, std::vector<double>(std::size_t(shape.num_layers) + 1));
    layers_ = std::vector<std::vector<int>>(steps_.size(),
                                            std::vector<int>(std::size_t(shape.num_layers) + 1));
  }

  Choice best();

 private:
  /// Thresholds above `low`, up to `high`; `filled_s` is A_S under the highest.
  struct Interval {
    std::ptrdiff_t low, high;
    double filled_s;
  };

  double threshold(std::ptrdiff_t i) const { return thresholds_[i]; }
  double run(double slowest_s);
  void run_stage(std::size_t stage, double slowest_s);
  void keep();

  const Shape& shape_;
  double cutoff_s_;
  Search& search_;
  std::vector<std::vector<Step>> steps_;     ///< [stage][layers - least layers]
  std::vector<double> thresholds_;           ///< of t
  std::vector<std::vector<double>> before_;  ///< A before [stage][layers used]
  std::vector<std::vector<int>> layers_;     ///< of [stage][layers used with it]
  Choice best_;
};

void Recursion::run_stage(std::size_t stage, double slowest_s) {
  const std::vector<double>& before = before_[stage];
  std::vector<double>& after = before_[stage + 1];
  std::ranges::fill(after, infinity);
  for (std::size_t k = 0; k < steps_[stage].size(); ++k) {
    Step& step = steps_[stage][k];
    step.limit(slowest_s);
    const std::size_t layers = std::size_t(shape_.least_layers) + k;
    for (std::size_t used = 0; used + layers < before.size(); ++used) {
      if (before[used] == infinity) continue;
      const double a_s = step.after(before[used]);
      if (a_s >= after[used + layers]) continue;
      after[used + layers] = a_s;
      layers_[stage][used + layers] = int(layers);
    }
  }
}

/// A_S when no stage takes longer; infinite when layers cannot add up.
double Recursion::run(double slowest_s) {
  ++search_.programs;
  std::ranges::fill(before_[0], infinity);
  before_[0][0] = -infinity;
  for (std::size_t stage = 0; stage < steps_.size(); ++stage) run_stage(stage, slowest_s);
  const double filled_s = before_.back().back();
  if (filled_s < infinity) keep();
  return filled_s;
}

/// Looks at the choice that the last run found.
void Recursion::keep() {
  Choice choice;
  choice.layers.resize(steps_.size());
  choice.stages.resize(steps_.size());
  auto used = std::size_t(shape_.num_layers);
  double slowest_s = 0.0;
  for (std::size_t stage = steps_.size(); stage-- > 0;) {
    choice.layers[stage] = layers_[stage][used];
    const auto k = std::size_t(choice.layers[stage] - shape_.least_layers);
    used -= std::size_t(choice.layers[stage]);
    choice.stages[stage] = steps_[stage][k].point(before_[stage][used]);
    slowest_s = std::max(slowest_s, choice.stages[stage].stable_s);
  }
  choice.iteration_s = before_.back().back() + (shape_.mist.microbatches - 1) * slowest_s;
  if (choice.iteration_s >= cutoff_s_) return;
  cutoff_s_ = choice.iteration_s;
  best_ = std::move(choice);
}

Choice Recursion::best() {
  if (thresholds_.empty()) return {};
  const std::ptrdiff_t highest = std::ssize(thresholds_) - 1;
  std::vector<Interval> open{{-1, highest, run(threshold(highest))}};
  while (!open.empty()) {
    const Interval i = open.back();
    open.pop_back();
    const double least_s = i.filled_s + (shape_.mist.microbatches - 1) * threshold(i.low + 1);
    if (least_s >= cutoff_s_ || i.high - i.low == 1) continue;
    const std::ptrdiff_t middle = i.low + (i.high - i.low) / 2;
    open.push_back({i.low, middle, run(threshold(middle))});
    open.push_back({middle, i.high, i.filled_s});
  }
  return best_;
}

}  // namespace

Choice choose(const Shape& shape, const Fronts& fronts, double cutoff_s, Search& search) {
  return Recursion(shape, fronts, cutoff_s, search).best();
}

}  // namespace brume::mist
