/// @file A deck with what follows from it.
#pragma once

#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "verbs.hpp"

namespace brume::app {

/// The deck of a verb that plans, its model, and the machine that it is for.
struct Given {
  explicit Given(const PlanOptions& options);

  deck::Deck deck;
  model::Config model;
  hardware::Machine machine;
  hardware::Cluster cluster;
};

}  // namespace brume::app
