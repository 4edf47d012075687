/// @file The command `profile`: times of this cluster, measured and saved.
#include "all_ranks.hpp"
#include "comm/agree.hpp"
#include "kernels/narrow.hpp"
#include "planning.hpp"
#include "profiles.hpp"
#include "verbs.hpp"

namespace brume::app {

int profile(const ProfileOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& world) {
    const deck::Deck deck = load_deck(world, session.ranks_per_node(), options.deck, options.sets);
    kernels::allow_tf32(deck.training.tf32);
    const hardware::Profile measured = measure_profile(
        world, session.ranks_per_node(), deck, model::config(deck.model, deck.training.precision),
        purpose_of(options.purpose));
    comm::together(world, [&] {
      if (world.rank() == 0) hardware::save_profile(measured, options.output);
    });
    return 0;
  });
}

}  // namespace brume::app
