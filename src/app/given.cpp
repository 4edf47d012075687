#include "given.hpp"

#include <utility>

#include "planning.hpp"
#include "prepare.hpp"
#include "profiles.hpp"

namespace brume::app {

Given::Given(const PlanOptions& options)
    : deck(load_deck(options.deck, options.sets)),
      model(model::config(deck.model, deck.training.precision)),
      machine(obtain_machine_alone(deck, model, purpose_of(options.purpose))),
      cluster(hardware::cluster(deck.cluster)) {
  if (purpose_of(options.purpose) == Purpose::training) model = isolated(std::move(model), deck);
  if (!deck.analysis.mist()) cluster = hardware::usable(std::move(cluster), machine);
}

}  // namespace brume::app
