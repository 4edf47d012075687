/// @file Between decks, profiles and plans and the search by Mist's counting.
#pragma once

#include "deck/deck.hpp"
#include "tuner/mist.hpp"

namespace brume::tuner {

/// @param profile  times of operators; has to outlive the job
/// @throws Error(input) when Mist cannot count the model or the profile lacks links
MistJob mist_job(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
                 const hardware::Profile& profile, bool plain_attention);

/// What the lists allow; empty: tp in powers of two up to a node, microbatches 1, 2 and 4.
MistSpace mist_space(const deck::Deck& deck);

/// The plan's text form.
plan::Plan mist_plan(const analyzer::MistCase& mist);

}  // namespace brume::tuner
