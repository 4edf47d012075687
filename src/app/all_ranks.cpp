#include "all_ranks.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"

namespace brume::app {

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
    return body(session, *world);
  } catch (const comm::AgreedError& error) {
    if (log::leads()) log::error("brume: {}", error.what());
    return int(error.failure());
  } catch (const Error& error) {
    return leave(error.failure(), error.what());
  } catch (const std::exception& error) {
    return leave(Failure::bug, error.what());
  }
}

}  // namespace brume::app
