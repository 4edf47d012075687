/// @file Search spaces of plans that another trainer can run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::interop {

/// The plans that another trainer has its like for.
struct TrainerSpace {
  std::vector<deck::SearchKeys> searches;  ///< searches that cover the space together
  /// The nearest plan whose stages are alike in what that trainer has one number for. It needs no
  /// more device memory.
  std::function<plan::Plan(plan::Plan)> nearest;
};

/// The part of the deck's search that the trainer of `search.trainer` can run.
///
/// @throws Error(input) naming the key whose list holds nothing that the trainer has
TrainerSpace trainer_space(const deck::Deck& deck, const model::Config& model,
                           const hardware::Cluster& cluster);

/// Differences of another trainer from a plan that it trains: it keeps the outputs of norms and
/// activation functions of each layer that it does not recompute; a plan's layers recompute them
/// unless they are stored. Its settings also lack the order of the nodes.
///
/// @param trainer  its name
/// @return         a sentence; "" where there is nothing to say
std::string untold(const plan::Plan& plan, const std::string& trainer);

/// Checks that the trainer of `search.trainer` can run the plan.
/// @throws Error(input) naming the knob or the key that it has nothing like
void check_for_trainer(const deck::Deck& deck, const model::Config& model, const plan::Plan& plan);

}  // namespace brume::interop
