#include "prices.hpp"

#include <algorithm>

namespace brume::tuner {
namespace {

constexpr int halvings = 30, sections = 40;
constexpr double golden = 0.6180339887498949;

/// The bound under some prices, and the layers that the stages would take.
struct Answer {
  double sum_s;
  int layers = 0;
};

class Relaxation {
 public:
  Relaxation(const std::vector<Alike>& stages, int num_layers, int devices)
      : stages_(stages), num_layers_(num_layers), devices_(devices) {
    for (const Alike& alike : stages)
      for (const Option& option : alike.options) longest_s_ = std::max(longest_s_, option.stable_s);
  }

  double longest_s() const { return longest_s_; }

  /// The best price of a layer.
  Prices with(double device_s) const {
    double low = 0.0, high = longest_s_ + device_s * devices_;
    Prices best{device_s, 0.0, ask(device_s, 0.0).sum_s};
    for (int i = 0; i < halvings; ++i) {
      const double layer_s = (low + high) / 2.0;
      const Answer answer = ask(device_s, layer_s);
      if (answer.sum_s > best.sum_s) best = {device_s, layer_s, answer.sum_s};
      (answer.layers < num_layers_ ? low : high) = layer_s;
    }
    return best;
  }

 private:
  Answer ask(double device_s, double layer_s) const {
    Answer answer{layer_s * num_layers_ - device_s * devices_};
    for (const Alike& alike : stages_) {
      double least_s = 0.0;
      int layers = 0;
      for (const Option& option : alike.options) {
        const double s = option.stable_s + device_s * option.devices - layer_s * option.layers;
        if (layers > 0 && s >= least_s) continue;
        least_s = s;
        layers = option.layers;
      }
      answer.sum_s += alike.stages * least_s;
      answer.layers += alike.stages * layers;
    }
    return answer;
  }

  const std::vector<Alike>& stages_;
  int num_layers_, devices_;
  double longest_s_ = 0.0;
};

}  // namespace

Prices best_prices(const std::vector<Alike>& stages, int num_layers, int devices) {
  const Relaxation relaxation(stages, num_layers, devices);
  double low = 0.0, high = relaxation.longest_s();  // a device is worth no more
  Prices best = relaxation.with(0.0);
  Prices left = relaxation.with(high - golden * (high - low));
  Prices right = relaxation.with(low + golden * (high - low));
  for (int i = 0; i < sections; ++i) {
    for (const Prices& prices : {left, right})
      if (prices.sum_s > best.sum_s) best = prices;
    if (left.sum_s < right.sum_s) {
      low = left.device_s;
      left = right;
      right = relaxation.with(low + golden * (high - low));
    } else {
      high = right.device_s;
      right = left;
      left = relaxation.with(high - golden * (high - low));
    }
  }
  return best;
}

}  // namespace brume::tuner
