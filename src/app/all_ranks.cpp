#include "all_ranks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "comm/device_group.hpp"
#include "deck/deck.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "version.hpp"

namespace brume::app {
namespace {

/// How long nothing may move where no verb says more [s]: big files on their way to a disk.
constexpr double patience_s = 600.0;

/// Hash of this process's program.
std::uint64_t program_hash() {
  constexpr std::int64_t most_bytes = std::int64_t{1} << 30;
  const Bytes program = read_file("/proc/self/exe", Failure::storage, most_bytes, Links::follow);
  return XXH3_64bits(program.data(), program.size());
}

/// Nodes may have programs for their processors, but on a node two are a mistake.
void require_one_program_a_node(comm::Communicator& world) {
  std::uint64_t mine = 0;
  comm::together(world, [&] { mine = program_hash(); });
  const std::vector<std::string> hosts = world.gather(host_name());
  const std::vector<std::string> hashes = world.gather(fmt::format("{:016x}", mine));
  std::map<std::string, std::size_t> first;  // rank of each host
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const std::size_t other = first.emplace(hosts[rank], rank).first->second;
    if (hashes[rank] != hashes[other])
      throw comm::AgreedError(Failure::input,
                              "ranks {} and {} on {} run two builds of brume: start the same file",
                              other, rank, hosts[rank]);
  }
}

/// Gives each rank its device, where this build's ranks compute on devices.
void use_devices(const comm::Session& session, comm::Communicator& world) {
  device::Description device;
  comm::together(world, [&] {
    device::use_device(session.node_rank(), world.size());
    device = device::describe_device();
  });
  if (device.name.empty()) return;
  const std::string transport = comm::device_transport(world);
  if (log::leads())
    log::info("{}, on {}, which communicate through {}", counted(world.size(), "rank"), device.name,
              transport);
}

/// Launchers bind ranks to cores before they know of threads: Open MPI one or two ranks of a node
/// to a core each, where a device's eight channels then take turns and a host's other cores idle.
void warn_of_binding(const comm::Session& session) {
  const int part = device::this_processor().given_cores / session.ranks_per_node();
  const int own = device::threads_per_rank(session.ranks_per_node());
  if (log::leads() && own < part)
    log::warn(
        "each rank is bound to {} of the {} cores that are its part of this node: start by mpirun "
        "--bind-to none, or by srun --cpus-per-task={}",
        own, part, part);
}

/// "; ranks 0, 1 and 7 more wait for it, rank 0 in stage 1, ..."; nothing where nobody said so.
std::string who_waits(const std::vector<comm::WaitingRank>& waiting) {
  if (waiting.empty()) return {};
  constexpr std::size_t most = 8;
  std::vector<int> ranks;
  for (const comm::WaitingRank& one : waiting) ranks.push_back(one.rank);
  const std::size_t more = ranks.size() - std::min(ranks.size(), most);
  ranks.resize(ranks.size() - more);
  return fmt::format("; {} {}{} for it, rank {} in {}", waiting.size() == 1 ? "rank" : "ranks",
                     fmt::join(ranks, ", "),
                     more > 0            ? fmt::format(" and {} more wait", more)
                     : ranks.size() == 1 ? " waits"
                                         : " wait",
                     waiting.front().rank, waiting.front().doing);
}

[[noreturn]] void end_job() {
  comm::Session::abort(int(Failure::network));
  std::_Exit(int(Failure::network));
}

/// Of ranks that fail alike one is enough to say so.
void let_rank_0_end_job(int rank) {
  if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
}

void end_silence(const comm::SilentRank& peer) {
  log::error(
      "brume: rank {} on {} has sent no heartbeat for {}: it was stopped, or its node is lost{}{}",
      peer.rank, peer.host, format_seconds(peer.silence_s),
      peer.doing.empty() ? "" : "; its last activity was " + peer.doing, who_waits(peer.waiting));
  end_job();
}

void end_standstill(const comm::Standstill& rank) {
  let_rank_0_end_job(rank.rank);  // where all stand before the same file
  log::error("brume: rank {} on {} made no progress for {} in {}: {}", rank.rank, host_name(),
             format_seconds(rank.still_s), rank.doing,
             rank.waits ? "all ranks wait for each other"
                        : "a file system or a device does not respond. Raise "
                          "training.heartbeat_timeout_s to wait longer");
  end_job();
}

int number(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

/// Whether a launcher tells MPI of the other ranks, by any of the ways that there are.
bool is_introduced() {
  return std::ranges::any_of(
      std::array{"PMIX_NAMESPACE", "PMI_FD", "PMI_RANK", "OMPI_COMM_WORLD_SIZE"},
      [](const char* variable) { return std::getenv(variable) != nullptr; });
}

/// Where MPI does not know of the launcher each of its processes believes to be the only rank, or
/// ends with a page of its own words.
void refuse_lone_copies(int ranks) {
  if (ranks > 1) return;
  struct Launcher {
    const char *copies, *place;  ///< variables
    std::string better;
  };
  const std::string own = "the mpirun of " + comm::Session::library_version();
  for (const Launcher& launcher :
       {Launcher{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun --mpi=pmix, or by mpirun"},
        Launcher{"PMI_SIZE", "PMI_RANK", own},
        Launcher{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", own}}) {
    const int copies = number(launcher.copies);
    if (copies < 2) continue;
    log::start(number(launcher.place), copies, log::verbose());  // one of them speaks for all
    throw comm::AgreedError(
        Failure::input,
        "{} processes were started, but each is an MPI job of its own. Start them with {}", copies,
        launcher.better);
  }
}

/// MPI and its helpers end in their own ways where they cannot start a thread, so it is tried
/// before whether as many may be had. @throws std::system_error
void try_threads() {
  constexpr int of_mpi = 8;
  std::mutex gate;
  std::vector<std::jthread> threads;
  const std::lock_guard closed(gate);  // it opens before the threads are waited for
  for (int i = 0; i < of_mpi; ++i)
    threads.emplace_back([&gate] { const std::lock_guard open(gate); });
}

/// Of this process, without the program's own name.
std::string command_line() {
  std::ifstream words("/proc/self/cmdline");
  words.exceptions(std::ios::badbit);  // a lack of memory would else end the line early
  std::string text = "brume", word;
  std::getline(words, word, '\0');
  while (std::getline(words, word, '\0')) text += " " + word;
  return text;
}

}  // namespace

int on_all_ranks(const std::function<int(comm::Session&, comm::Communicator&)>& body) {
  std::optional<comm::Session> session;
  std::unique_ptr<comm::Communicator> world;
  try {
    device::require_address_space(0);  // or MPI ends in its own ways
    try_threads();
    if (!is_introduced()) refuse_lone_copies(1);
    session.emplace().watch_peers(deck::TrainingKeys{}.silence_limit_s, end_silence,
                                  end_standstill);
    session->begin_phase("its work", patience_s);
    world = session->world();
    log::start(world->rank(), world->size(), log::verbose());
    refuse_lone_copies(world->size());
    comm::require_same(*world, "is",
                       fmt::format("brume {} of sources {}", BRUME_VERSION, sources_id));
    require_one_program_a_node(*world);
    comm::require_same(*world, "was started by", command_line());
    use_devices(*session, *world);
    warn_of_binding(*session);
    return body(*session, *world);
  } catch (const comm::AgreedError& error) {
    if (log::leads()) log::error("brume: {}", error.what());
    return int(error.failure());
  } catch (const std::exception& error) {
    const Error meant = error_of(error);
    if (!world) comm::Session::let_rank_0_speak();
    // Resources mostly end for all ranks at once.
    if (world && meant.failure() == Failure::resource) let_rank_0_end_job(world->rank());
    log::error("brume: {}", meant.what());
    comm::Session::abort(int(meant.failure()));
    return int(meant.failure());
  }
}

}  // namespace brume::app
