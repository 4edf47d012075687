/// @file The losses of pairs of answers, of which one is preferred: a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace brume::engine {

enum class PreferenceLoss { sigmoid, ipo };
/// @throws Error(input) for a name that none of them has
PreferenceLoss preference_loss(std::string_view name);

/// The loss of a pair whose chosen answer c and rejected answer r have the log-probabilities lp
/// and, by the initial weights, ref [nats], and n tokens:
///
///   d_c = lp_c - ref_c,  d_r = lp_r - ref_r,  h = beta (d_c - d_r)
///   sigmoid  -(1 - e) log sigmoid(h) - e log sigmoid(-h), e = label_smoothing
///            (DPO, Rafailov et al. 2023; e: cDPO, Mitchell 2023)
///   ipo      (d_c / n_c - d_r / n_r - 1 / (2 beta))^2
///            (Azar et al. 2023, eq. 17; per token, as in TRL)
struct Preference {
  double beta = 0.1;
  PreferenceLoss loss = PreferenceLoss::sigmoid;
  double label_smoothing = 0.0;
};

/// Log-probability of a sequence's answer, by the weights as they are and by the initial ones
/// [nats], and its number of tokens.
struct SequenceScore {
  double policy = 0.0, reference = 0.0;
  std::int64_t tokens = 0;
};

struct PreferenceResult {
  double loss = 0.0;      ///< mean over the pairs
  double accuracy = 0.0;  ///< share of the pairs with h > 0
  double margin = 0.0;    ///< mean of h
  /// Derivatives of `loss` by the negative log-probability of each sequence.
  std::vector<double> factors = {};
};

/// @param sequences  2 i and 2 i + 1 are the chosen and the rejected answer of pair i; at least one
/// @throws Error(bug) for an odd number, or none
PreferenceResult prefer(const Preference& preference, std::span<const SequenceScore> sequences);

}  // namespace brume::engine
