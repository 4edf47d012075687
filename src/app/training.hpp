/// @file The training itself: memory, steps, checkpoints and results of one rank.
#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator.hpp"
#include "comm/session.hpp"
#include "prepare.hpp"
#include "signals.hpp"
#include "verbs.hpp"

namespace brume::app {

/// Predicts, and unless it is a dry run takes memory, trains, and writes results and checkpoints.
/// Collective over `crew`, the ranks of the plan in its order.
///
/// @param start  of the process, from which --max-minutes counts
/// @return       0, or Failure::stopped when a request or the time ended it early
/// @throws AgreedError
int train(const RunOptions& options, const Prepared& prepared, comm::Session& session,
          comm::Communicator& crew, Signals& signals, std::chrono::steady_clock::time_point start);

}  // namespace brume::app
