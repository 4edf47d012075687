/// @file Angles of rotary positions.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config.hpp"

namespace brume::model {

namespace {

double yarn_magnitude(double factor, double scale) {
  return 1.0 + 0.1 * scale * std::log(std::max(1.0, factor));
}

}  // namespace

double RopeScaling::magnitude() const {
  if (kind != Kind::yarn) return 1.0;
  if (attention_factor > 0.0) return attention_factor;
  return mscale > 0.0 && mscale_all_dim > 0.0
             ? yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
             : yarn_magnitude(factor, 1.0);
}

double RopeScaling::latent_score_factor() const {
  if (kind != Kind::yarn || mscale_all_dim == 0.0) return 1.0;
  const double magnitude = yarn_magnitude(factor, mscale_all_dim);
  return magnitude * magnitude;
}

namespace {

/// A windowed layer may have a base of its own, without scaling.
bool has_own_angles(const Config& m, LayerKind kind) {
  return kind.window && m.window_rope_theta > 0.0;
}

/// The share of each pair's frequency that yarn leaves alone: 1 up to the pair with beta_fast turns
/// in original_seq_len, 0 from that with beta_slow turns on.
std::vector<double> kept_by_yarn(const RopeScaling& scaling, double theta, int turned) {
  const auto pair_with = [&](double turns) {
    return turned * std::log(scaling.original_seq_len / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(theta));
  };
  double low = pair_with(scaling.beta_fast), high = pair_with(scaling.beta_slow);
  if (scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, turned - 1.0);
  if (low == high) high += 0.001;
  std::vector<double> kept;
  for (int i = 0; i < turned / 2; ++i)
    kept.push_back(1.0 - std::clamp((i - low) / (high - low), 0.0, 1.0));
  return kept;
}

/// The same of llama3, by turns.
std::vector<double> kept_by_llama3(const RopeScaling& scaling, const std::vector<double>& plain) {
  std::vector<double> kept;
  for (const double frequency : plain) {
    const double turns = scaling.original_seq_len * frequency / (2.0 * std::numbers::pi);
    kept.push_back(std::clamp(
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor),
        0.0, 1.0));
  }
  return kept;
}

}  // namespace

double rope_magnitude(const Config& m, LayerKind kind) {
  return has_own_angles(m, kind) ? 1.0 : m.rope_scaling.magnitude();
}

std::vector<double> rope_frequencies(const Config& m, LayerKind kind) {
  const bool own = has_own_angles(m, kind);
  const RopeScaling scaling = own ? RopeScaling{} : m.rope_scaling;
  const double theta = own ? m.window_rope_theta : m.rope_theta;
  std::vector<double> frequencies;
  for (int i = 0; i < m.rotary_dim() / 2; ++i)
    frequencies.push_back(std::pow(theta, -2.0 * i / m.rotary_dim()));
  std::vector<double> kept(frequencies.size(), 0.0);  // share left alone
  switch (scaling.kind) {
    case RopeScaling::Kind::none: return frequencies;
    case RopeScaling::Kind::linear: break;
    case RopeScaling::Kind::llama3: kept = kept_by_llama3(scaling, frequencies); break;
    case RopeScaling::Kind::yarn: kept = kept_by_yarn(scaling, theta, m.rotary_dim()); break;
  }
  for (std::size_t i = 0; i < kept.size(); ++i)
    frequencies[i] = kept[i] * frequencies[i] + (1.0 - kept[i]) * frequencies[i] / scaling.factor;
  return frequencies;
}

}  // namespace brume::model
