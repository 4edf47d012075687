/// @file What a run decides before it takes memory: deck, data, checkpoint to go on from, plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "comm/session.hpp"
#include "data/sampler.hpp"
#include "deck/deck.hpp"
#include "hardware/machine.hpp"
#include "io/checkpoint.hpp"
#include "io/run_lock.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "verbs.hpp"

namespace brume::app {

/// The results of the preparation; all but the lock are the same on all ranks of the job.
struct Prepared {
  deck::Deck deck;
  model::Config model;
  std::int64_t last_step = 0;
  std::optional<data::Sampler> train_data;  ///< always there
  std::optional<data::Sampler> valid_data;
  std::string data_text;              ///< what the samples are, as checkpoints say it
  std::unique_ptr<io::RunLock> lock;  ///< of rank 0, unless nothing will be written
  std::optional<io::CheckpointInfo> resume;
  hardware::Cluster cluster;
  std::optional<hardware::Machine> machine;  ///< always there
  plan::Plan plan;
  bool searched = false;  ///< the plan, and so it has been shown already
};

/// Reads, measures and searches what `options` leave open. Collective over `job`, all its ranks.
/// @throws AgreedError
Prepared prepare(const RunOptions& options, comm::Session& session, comm::Communicator& job);

}  // namespace brume::app
