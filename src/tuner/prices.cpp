#include "prices.hpp"

#include <algorithm>

namespace brume::tuner {
namespace {

constexpr int halvings = 30, sections = 40;
constexpr int rounds = 3;  ///< passes over several groups
constexpr double golden = 0.6180339887498949;

/// The bound under some prices, and the layers that the stages would take.
struct Cheapest {
  double sum_s;
  int layers = 0;
};

class Relaxation {
 public:
  Relaxation(const std::vector<StageClass>& stages, int num_layers, const std::vector<int>& devices,
             const Deadline& deadline)
      : stages_(stages), num_layers_(num_layers), devices_(devices), deadline_(deadline) {
    for (const StageClass& stage_class : stages)
      for (const Option& option : stage_class.options)
        longest_s_ = std::max(longest_s_, option.fill_s);
  }

  double longest_s() const { return longest_s_; }

  /// The best price of a layer.
  Prices with(const PerGroup<double>& device_s) const {
    double low = 0.0, high = longest_s_ + all_devices_s(device_s);
    Prices best{device_s, 0.0, ask(device_s, 0.0).sum_s};
    for (int i = 0; i < halvings; ++i) {
      deadline_.check();
      const double layer_s = (low + high) / 2.0;
      const Cheapest answer = ask(device_s, layer_s);
      if (answer.sum_s > best.sum_s) best = {device_s, layer_s, answer.sum_s};
      (answer.layers < num_layers_ ? low : high) = layer_s;
    }
    return best;
  }

 private:
  double all_devices_s(const PerGroup<double>& device_s) const {
    double sum_s = 0.0;
    for (std::size_t group = 0; group < devices_.size(); ++group)
      sum_s += device_s[group] * devices_[group];
    return sum_s;
  }

  Cheapest ask(const PerGroup<double>& device_s, double layer_s) const {
    Cheapest answer{layer_s * num_layers_ - all_devices_s(device_s)};
    for (const StageClass& stage_class : stages_) {
      double least_s = 0.0;
      int layers = 0;
      for (const Option& option : stage_class.options) {
        const double s =
            option.fill_s + device_s[option.group] * option.devices - layer_s * option.layers;
        if (layers > 0 && s >= least_s) continue;
        least_s = s;
        layers = option.layers;
      }
      answer.sum_s += stage_class.stages * least_s;
      answer.layers += stage_class.stages * layers;
    }
    return answer;
  }

  const std::vector<StageClass>& stages_;
  int num_layers_;
  const std::vector<int>& devices_;
  const Deadline& deadline_;
  double longest_s_ = 0.0;
};

/// Improves the price of one group's devices.
Prices improved(const Relaxation& relaxation, Prices best, std::size_t group) {
  const auto with = [&](double device_s) {
    PerGroup<double> prices = best.device_s;
    prices[group] = device_s;
    return relaxation.with(prices);
  };
  double low = 0.0, high = relaxation.longest_s();  // a device is worth no more
  Prices left = with(high - golden * (high - low));
  Prices right = with(low + golden * (high - low));
  for (int i = 0; i < sections; ++i) {
    for (const Prices& prices : {left, right})
      if (prices.sum_s > best.sum_s) best = prices;
    if (left.sum_s < right.sum_s) {
      low = left.device_s[group];
      left = right;
      right = with(low + golden * (high - low));
    } else {
      high = right.device_s[group];
      right = left;
      left = with(high - golden * (high - low));
    }
  }
  return best;
}

}  // namespace

Prices best_prices(const std::vector<StageClass>& stages, int num_layers,
                   const std::vector<int>& devices, const Deadline& deadline) {
  const Relaxation relaxation(stages, num_layers, devices, deadline);
  Prices best = relaxation.with({});
  for (int round = 0; round < (devices.size() == 1 ? 1 : rounds); ++round)
    for (std::size_t group = 0; group < devices.size(); ++group)
      best = improved(relaxation, best, group);
  return best;
}

}  // namespace brume::tuner
