/// @file Sequences that ranks cannot cut evenly are padded after their last token.
#pragma once

#include <optional>

#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::plan {

/// The least number of tokens after each sequence with which all stages cut it evenly: cp ranks
/// into parts, or with gathered keys into 2 cp chunks, and tp ranks a part.
int padding(const Plan& plan, int seq_len);

/// The model with the padding of a plan.
model::Config padded(model::Config model, const Plan& plan);

/// A search of the degrees of cp that do not cut sequences evenly, with padded ones.
struct PaddedContexts {
  model::Config model;
  deck::SearchKeys search;  ///< `cp` lists these degrees
};

/// All sequences of a search have one length. The degrees of `cp` that it may try, but that do not
/// cut `seq_len`, need a longer one: the longest with less than 2 % of padding, or else the
/// shortest. None if each degree cuts `seq_len`.
std::optional<PaddedContexts> padded_contexts(const model::Config& model,
                                              const hardware::Cluster& cluster,
                                              const deck::SearchKeys& search);

}  // namespace brume::plan
