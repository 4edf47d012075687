/// @file Conversion between decks, profiles and plans and the search by Mist's counting.
#pragma once

#include "deck/deck.hpp"
#include "mist/tuner.hpp"

namespace brume::mist {

/// @param profile  times of operators; has to outlive the job
/// @throws Error(input) when Mist cannot count the model or the profile lacks links
Job job_of(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
           const hardware::Profile& profile, bool plain_attention);

/// Values that the lists allow; empty: tp in powers of two up to a node, microbatches 1, 2 and 4.
Space space_of(const deck::Deck& deck);

/// The plan's text form.
plan::Plan plan_of(const Case& mist);

}  // namespace brume::mist
