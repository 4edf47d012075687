#include "job.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"

namespace brume::engine {

std::string need(const std::string& node, std::int64_t bytes) {
  return fmt::format("{} {}", bytes, node);
}

std::int64_t bytes_of_node(const std::string& node, const std::vector<std::string>& needs) {
  std::int64_t sum = 0;
  for (const std::string& text : needs)
    if (const std::size_t space = text.find(' '); text.substr(space + 1) == node)
      sum += std::stoll(text.substr(0, space));
  return sum;
}

namespace {

/// Refuses before any rank has taken memory: each block alone would fit in what a node has left.
void require_on_node(comm::Communicator& world, const schedule::Arenas& bytes,
                     std::int64_t beside_bytes) {
  const auto of = [&](schedule::Tier tier) { return bytes[std::size_t(tier)]; };
  const std::int64_t mine = of(schedule::Tier::host) +
                            (device::on_device() ? 0 : of(schedule::Tier::device)) + beside_bytes;
  const std::int64_t left = device::available_bytes();
  const std::int64_t all = bytes_of_node(host_name(), world.gather(need(host_name(), mine)));
  if (log::leads())
    log::debug("memory: this node's ranks need {} of host memory together, {} are left",
               format_bytes(double(all)), format_bytes(double(left)));
  comm::together(world, [&] {
    require(left < 0 || all <= left, Failure::resource,
            "this node's ranks need {} of host memory together, but it, or this job's part of it, "
            "has {} left: lower cluster.memory_gib or cluster.host_memory_gib, or start fewer "
            "ranks on a node",
            format_bytes(double(all)), format_bytes(double(left)));
    device::require_address_space(mine);
  });
}

}  // namespace

Arena reserve(const schedule::Arenas& bytes, const Settings& settings, comm::Communicator& world) {
  std::optional<Arena> arena;
  require_on_node(world, bytes, settings.beside_bytes);
  comm::together(world, [&] { arena.emplace(bytes, settings.scratch); });
  return std::move(*arena);
}

void leave(comm::Communicator& world, const std::string& doing, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    const Error meant = error_of(error);
    log::error("brume: {}: {}", doing, meant.what());
    world.abort(int(meant.failure()));
  }
}

}  // namespace brume::engine
