/// @file What a run decides before it takes memory: deck, data, checkpoint to go on from, plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/session.hpp"
#include "data/sampler.hpp"
#include "deck/deck.hpp"
#include "hardware/machine.hpp"
#include "io/checkpoint.hpp"
#include "io/run_lock.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "sample_prompts.hpp"
#include "verbs.hpp"
#include "weights.hpp"

namespace brume::app {

/// The results of the preparation; all but the lock are the same on all ranks of the job.
struct Prepared {
  deck::Deck deck;
  model::Config model;
  std::int64_t steps = 0;                   ///< of the whole training
  std::int64_t last_step = 0;               ///< at which this run ends
  std::optional<data::Sampler> train_data;  ///< always there
  std::optional<data::Sampler> valid_data;
  std::string data_text;              ///< what the samples are, as checkpoints say it
  std::unique_ptr<io::RunLock> lock;  ///< of rank 0, unless nothing will be written
  std::optional<io::CheckpointInfo> resume;
  std::optional<FirstWeights> first_weights;  ///< of a new training, where they are not random
  std::unique_ptr<interop::PretrainedWeights> first_adapter;  ///< a new one's; null: random
  std::unique_ptr<SamplePrompts> sample_prompts;              ///< null: none
  hardware::Cluster cluster;
  std::optional<hardware::Machine> machine;  ///< always there
  plan::Plan plan;
  bool searched = false;  ///< the plan, and so it has been shown already
};

/// How long a rank may neither compute nor read nor hear of others, while there are no steps [s].
double still_limit_s(const deck::Deck& deck);

/// The model with the share of attention that isolated documents leave in the deck's data, where
/// these can be read.
model::Config isolated(model::Config model, const deck::Deck& deck);

/// A token file, and the key of the deck or command line that names it, for errors.
struct NamedTokens {
  const char* key;
  std::string path;
};

/// Reads all token files through to check them: each on one rank, and those that an earlier job of
/// this user read, and that are as they were then, on none. Collective over `job`.
/// @throws AgreedError(input)
data::TokenChecks check_tokens(const std::vector<NamedTokens>& files, const deck::Deck& deck,
                               const model::Config& model, comm::Communicator& job);

/// The windows of data.train, in the order that the deck asks for. Files that are not known are
/// read through. @throws Error(input)
data::Sampler open_training(const deck::Deck& deck, const model::Config& model,
                            const data::TokenChecks& known);

/// The windows of a token file that weights are judged by: the first ones of an order that is the
/// same for all trainings, so that their losses can be compared, and is spread over the file.
/// @param key  of the deck or command line, for errors  @throws Error(input)
data::Sampler open_validation(const std::string& path, const char* key, const deck::Deck& deck,
                              const model::Config& model, const data::TokenChecks& known);

/// Reads, measures and searches what `options` leave open. Collective over `job`, all its ranks.
/// @throws AgreedError
Prepared prepare(const RunOptions& options, comm::Session& session, comm::Communicator& job);

}  // namespace brume::app
