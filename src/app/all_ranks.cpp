#include "all_ranks.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "comm/device_group.hpp"
#include "deck/deck.hpp"
#include "device/device.hpp"

namespace brume::app {
namespace {

/// Gives each rank its device, where this build's ranks compute on devices.
void use_devices(const comm::Session& session, comm::Communicator& world) {
  device::Description device;
  comm::together(world, [&] {
    device::use_device(session.node_rank());
    device = device::describe_device();
  });
  if (device.name.empty()) return;
  const std::string transport = comm::device_transport(world);
  if (log::leads())
    log::info("{} ranks, on {}, which communicate through {}", world.size(), device.name,
              transport);
}

}  // namespace

int on_all_ranks(const std::function<int(comm::Session&, comm::Communicator&)>& body) {
  comm::Session session;
  const auto world = session.world();
  log::start(world->rank(), world->size(), log::verbose());
  session.watch_peers(deck::TrainingKeys{}.silence_limit_s, [&](const comm::SilentRank& peer) {
    log::error(
        "brume: rank {} on {} has given no sign of life for {}: it was stopped, or its node is "
        "lost",
        peer.rank, peer.host, format_seconds(peer.silence_s));
    world->abort(int(Failure::network));
  });
  try {
    use_devices(session, *world);
    return body(session, *world);
  } catch (const comm::AgreedError& error) {
    if (log::leads()) log::error("brume: {}", error.what());
    return int(error.failure());
  } catch (const std::exception& error) {
    const Error meant = error_of(error);
    log::error("brume: {}", meant.what());
    world->abort(int(meant.failure()));
    return int(meant.failure());
  }
}

}  // namespace brume::app
