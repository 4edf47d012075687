/// @file Scaling of rotary angles.
#pragma once

namespace brume::model {

/// How rotary angles are stretched for sequences longer than those of an earlier training.
struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1.0;            ///< linear: of all frequencies; llama3, yarn: of the low ones
  double low_freq_factor = 1.0;   ///< llama3: turns within original_seq_len below which a frequency
  double high_freq_factor = 4.0;  ///< is divided whole, above which it is left alone
  int original_seq_len = 8192;
  double beta_fast = 32.0;        ///< yarn: turns above which a frequency is left alone
  double beta_slow = 1.0;         ///< and below which it is divided
  bool truncate = true;           ///< yarn: both ends of that range are whole numbers of pairs
  double attention_factor = 0.0;  ///< yarn: of cosines and sines; 0: by the numbers below
  double mscale = 0.0, mscale_all_dim = 0.0;  ///< yarn; 0: not given

  bool operator==(const RopeScaling&) const = default;

  /// Factor of cosines and sines, 1 but for yarn:
  ///
  ///   attention_factor, or m(mscale) / m(mscale_all_dim) where both are given, or m(1), with
  ///   m(s) = 1 + 0.1 s ln(factor)
  double magnitude() const;
  double latent_score_factor() const;  ///< m(mscale_all_dim)^2
};

}  // namespace brume::model
