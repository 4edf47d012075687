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
/// A pass is padded to the next of engine::pass_lengths, whose Programs are simulated without
/// attention. Attention is priced by the keys that all tokens see together and those that are read:
///
///   stage_s = program_s(stage, length) + layers attention_s(tokens, seen / tokens, read)
///   pass_s = sum of stage_s + logits to host, which belong to the last stage
class PassTimes {
 public:
  /// @param plan   of one copy, that engine::generating returned
  /// @param model  Config::generates()
  PassTimes(const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine);

  double seconds(const engine::GeneratorPass& pass) const;
  /// The seconds of each stage, one after the other.
  std::vector<double> stages(const engine::GeneratorPass& pass) const;
  int num_stages() const { return plan_.num_stages(); }

 private:
  /// Attention of a stage's layers.
  ///
  /// @param seen  keys that a token sees, in the mean
  /// @param read  keys of all sequences of the pass
  double attention_s(int stage, int tokens, double seen, double read) const;

  const plan::Plan plan_;
  const model::Config model_;
  const hardware::Machine& machine_;
  /// Seconds of each stage without attention, by length.
  std::map<int, std::vector<double>> program_s_;
  std::vector<int> like_;  ///< the first stage that has as many layers of each kind, and ranks
  mutable std::map<std::tuple<int, int, int, int>, double> attention_s_;  ///< its results
};

/// Passes of prompts by a plan of their own, whose keys go to the ranks' places in another plan.
///
///   change_s = copies of keys to and from messages + an all-to-all of blocks moved_block_bytes
///
/// Stages compute consecutive passes at once. A stage gives its stream on when the next one is
/// free.
class PromptTimes {
 public:
  /// @param prompts  of the plan of prompts
  /// @param blocks   of the prompts' cache
  /// @param from, to plans of one copy: of prompts, and of next tokens
  PromptTimes(const PassTimes& prompts, int blocks, const plan::Plan& from, const plan::Plan& to,
              const model::Config& model, const hardware::Machine& machine);

  const PassTimes& passes() const { return prompts_; }
  int blocks() const { return blocks_; }
  double change_s(std::size_t blocks) const;
  /// Bytes of a block that the busiest rank sends or gets.
  double block_bytes() const { return block_bytes_; }

 private:
  const PassTimes& prompts_;
  int blocks_;
  const hardware::Profile& profile_;
  int ranks_;
  double block_bytes_;
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
  // The rest is of phases apart.
  double prompts_s = 0.0;  ///< phases of prompts without the changes after them
  double changes_s = 0.0;
  double changes = 0.0;      ///< phases of prompts
  double moved_bytes = 0.0;  ///< keys that the busiest rank sent or got

  /// Takes so many times as many requests. Means stay.
  void scale(double factor);
};

/// Runs the scheduler on requests that are all there at the beginning, without a model.
///
/// @param prompts  phases are apart, and those of prompts have these times; null: together
/// @throws Error(input) when the longest sequence does not fit in the cache
Forecast forecast(std::span<const Request> requests, const PassTimes& times,
                  const model::Config& model, const PromptTimes* prompts = nullptr);

}  // namespace brume::generation
