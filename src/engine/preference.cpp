#include "engine/preference.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace brume::engine {

PreferenceLoss preference_loss(std::string_view name) {
  if (name == "sigmoid") return PreferenceLoss::sigmoid;
  require(name == "ipo", Failure::input, "'{}' is no loss of pairs", name);
  return PreferenceLoss::ipo;
}

namespace {

/// -log sigmoid(x)
double softplus_of_negative(double x) {
  return std::log1p(std::exp(-std::abs(x))) + std::max(-x, 0.0);
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// A loss and its derivatives by the log-probabilities of the chosen and of the rejected answer.
struct PairLoss {
  double loss, by_chosen, by_rejected;
};

PairLoss loss_of_pair(const Preference& p, double chosen, double rejected, const SequenceScore& c,
                      const SequenceScore& r) {
  if (p.loss == PreferenceLoss::ipo) {
    const double n_c = double(c.tokens), n_r = double(r.tokens);
    const double off = chosen / n_c - rejected / n_r - 0.5 / p.beta;
    return {off * off, 2.0 * off / n_c, -2.0 * off / n_r};
  }
  const double h = p.beta * (chosen - rejected), e = p.label_smoothing;
  const double slope = p.beta * (e * sigmoid(h) - (1.0 - e) * sigmoid(-h));
  return {(1.0 - e) * softplus_of_negative(h) + e * softplus_of_negative(-h), slope, -slope};
}

}  // namespace

PreferenceResult prefer(const Preference& preference, std::span<const SequenceScore> sequences) {
  require(!sequences.empty() && sequences.size() % 2 == 0, Failure::bug, "pairs of {} sequences",
          sequences.size());
  PreferenceResult result;
  const double pairs = double(sequences.size()) / 2.0;
  for (std::size_t i = 0; i < sequences.size(); i += 2) {
    const SequenceScore &c = sequences[i], &r = sequences[i + 1];
    const double chosen = c.policy - c.reference, rejected = r.policy - r.reference;
    const PairLoss pair = loss_of_pair(preference, chosen, rejected, c, r);
    result.loss += pair.loss / pairs;
    result.accuracy += (chosen > rejected ? 1.0 : 0.0) / pairs;
    result.margin += preference.beta * (chosen - rejected) / pairs;
    result.factors.insert(result.factors.end(),
                          {-pair.by_chosen / pairs, -pair.by_rejected / pairs});
  }
  return result;
}

}  // namespace brume::engine
