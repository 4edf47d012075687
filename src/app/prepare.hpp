/// @file What a run decides before it takes memory: deck, data, checkpoint to go on from, plan.
#pragma once

#include "comm/communicator.hpp"
#include "comm/session.hpp"
#include "deck/deck.hpp"
#include "prepared.hpp"
#include "training_data.hpp"
#include "verbs.hpp"

namespace brume::app {

/// How long a rank may neither compute nor read nor hear of others, while there are no steps [s].
double still_limit_s(const deck::Deck& deck);

/// Reads, measures and searches what `options` leave open. Collective over `job`, all its ranks.
/// @throws AgreedError
Prepared prepare(const RunOptions& options, comm::Session& session, comm::Communicator& job);

}  // namespace brume::app
