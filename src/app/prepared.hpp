/// @file The results of the preparation of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/sampler.hpp"
#include "deck/deck.hpp"
#include "hardware/machine.hpp"
#include "io/checkpoint.hpp"
#include "io/run_lock.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "sample_prompts.hpp"
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

}  // namespace brume::app
