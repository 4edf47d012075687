#include "all_ranks.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "comm/device_group.hpp"
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
  const auto leave = [&](Failure failure, const char* what) {
    log::error("brume: {}", what);
    world->abort(int(failure));
    return int(failure);
  };
  try {
    use_devices(session, *world);
    return body(session, *world);
  } catch (const comm::AgreedError& error) {
    if (log::leads()) log::error("brume: {}", error.what());
    return int(error.failure());
  } catch (const std::exception& error) {
    const Error meant = error_of(error);
    return leave(meant.failure(), meant.what());
  }
}

}  // namespace brume::app
