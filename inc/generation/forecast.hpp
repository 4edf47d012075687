/// @file Predicts how long a model generates: passes as the scheduler makes them, priced.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "engine/generator.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::generation {

/// Lengths of a prompt and of its answer.
struct Request {
  int prompt_tokens = 1;
  int answer_tokens = 1;
};

/// Requests of these mean lengths. The i-th has between half and one and a half times as many
/// tokens of each kind, by low-discrepancy sequences: the mean is exact within 1 / count.
std::vector<Request> requests(int count, int prompt_tokens, int answer_tokens);

/// Seconds of passes over one copy of a model.
///
/// A pass is padded to the next of engine::pass_lengths, whose Program is simulated without
/// attention. Attention is priced by the keys that all tokens see together and those that are read:
///
///   pass_s = program_s(length) + attention_s(tokens, seen / tokens, read) + logits to host
class PassTimes {
 public:
  /// @param plan   of one copy, that engine::generating returned
  /// @param model  Config::generates()
  PassTimes(const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine);

  double seconds(const engine::GeneratorPass& pass) const;

 private:
  /// Attention of all layers.
  ///
  /// @param seen  keys that a token sees, in the mean
  /// @param read  keys of all sequences of the pass
  double attention_s(int tokens, double seen, double read) const;

  const plan::Plan plan_;
  const model::Config model_;
  const hardware::Machine& machine_;
  std::map<int, double> program_s_;  ///< seconds without attention, by length
  mutable std::map<std::tuple<int, int, int>, double> attention_s_;  ///< memory of attention_s
};

/// Predicted answers of one copy.
struct Forecast {
  double seconds = 0.0;        ///< until the last answer ends
  double first_token_s = 0.0;  ///< mean, from the pass that begins a prompt to the first token
  double token_s = 0.0;        ///< mean between two tokens of an answer
  double prompt_share = 0.0;   ///< share of the seconds in passes that compute prompts
  double mean_open = 0.0;      ///< sequences in a pass, in the mean over the seconds
  std::int64_t tokens = 0;     ///< tokens of answers
  std::int64_t computed = 0;   ///< tokens of passes
  std::int64_t preemptions = 0;
};

/// Runs the scheduler on requests that are all there at the beginning, without a model.
/// @throws Error(input) when the longest sequence does not fit in the cache
Forecast forecast(std::span<const Request> requests, const PassTimes& times,
                  const model::Config& model);

}  // namespace brume::generation
