#include "comm/session.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/mpi_call.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/watchdog.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"

namespace brume::comm {

namespace {

/// For the watchdog of MPI's start and end: a rank that is stopped or lost meanwhile keeps all
/// waiting, and nothing else is there that could end the job.
auto end_process(const char* missing) {
  return [missing](double silence_s) {
    Session::let_rank_0_speak();
    log::error("brume: MPI has not {} within {}: a rank was stopped, or a node is lost", missing,
               format_seconds(silence_s));
    std::_Exit(int(Failure::network));
  };
}

/// An Open MPI that was packed with the program lies beside it, in no folder that it was built for.
void find_packed_mpi() {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  const fs::path packed = program.parent_path().parent_path() / "libexec/openmpi";
  if (none || !fs::is_directory(packed, none)) return;
  ::setenv("OPAL_PREFIX", packed.c_str(), 0);
  ::setenv("PMIX_INSTALL_PREFIX", (packed / "pmix").c_str(), 0);
}

/// The number of ranks by the launcher's word; 0 without one.
int ranks_by_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* ranks = std::getenv(name)) return std::max(std::atoi(ranks), 0);
  return 0;
}

/// Also where a launcher gives no number.
bool may_have_peers() {
  const int ranks = ranks_by_launcher();
  return ranks > 1 || (ranks == 0 && std::getenv("PMIX_NAMESPACE") != nullptr);
}

/// How long all ranks may take until they have met [s]: thousands take minutes. Where no launcher
/// says how many there are, there may be as many.
double start_limit_s() {
  const int ranks = ranks_by_launcher();
  return ranks > 0 ? 40.0 + 0.1 * ranks : 300.0;
}

/// The verdict comes a second before the limit, because mpirun takes as long to end a job; short
/// limits leave no room for that.
double verdict_s(double limit_s) { return std::max(limit_s - 1.0, std::min(limit_s, 3.0)); }

void start_mpi() {
  find_packed_mpi();
  device::set_environment(may_have_peers());
  int started = 0;
  check_mpi(MPI_Initialized(&started));
  require(!started, Failure::bug, "a process has one MPI session, this is a second one");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  // A failure of MPI comes back as a code from here on; groups made later inherit this.
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  require(
      provided == MPI_THREAD_MULTIPLE, Failure::network,
      "MPI gives thread level {}, MPI_THREAD_MULTIPLE ({}) is needed: channels communicate from "
      "threads of their own",
      provided, MPI_THREAD_MULTIPLE);
}

/// What each rank says, by its number among all.
std::vector<int> gather_from_all(int mine) {
  int ranks = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
  std::vector<int> all(static_cast<std::size_t>(ranks));
  check_mpi(MPI_Allgather(&mine, 1, MPI_INT, all.data(), 1, MPI_INT, MPI_COMM_WORLD));
  return all;
}

/// Tells the device module how many ranks of the node may run on this process's cores.
void divide_cores(MpiCommunicator& node) {
  const std::string mine = device::this_processor().allowed;
  const std::vector<std::string> all = node.gather(mine);
  device::share_cores(static_cast<int>(std::ranges::count(all, mine)));
}

MpiCommunicator this_node() {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
  return MpiCommunicator(MpiGroup(node));
}

}  // namespace

std::vector<int> places_by_node(const std::vector<int>& node_of) {
  std::map<int, int> order;  // of nodes, by their first rank
  for (const int node : node_of) order.emplace(node, static_cast<int>(order.size()));
  std::vector<int> ranks(node_of.size()), places(node_of.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::stable_sort(
      ranks, {}, [&](int rank) { return order.at(node_of[static_cast<std::size_t>(rank)]); });
  for (std::size_t place = 0; place < ranks.size(); ++place)
    places[static_cast<std::size_t>(ranks[place])] = static_cast<int>(place);
  return places;
}

Session::Session() {
  const Watchdog watchdog(start_limit_s(), end_process("started"));
  start_mpi();
  MpiCommunicator node = this_node();
  ranks_per_node_ = node.size();
  node_rank_ = node.rank();
  int rank = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  double first_rank = rank;
  node.all_reduce(std::span(&first_rank, 1), Reduction::min);
  const std::vector<int> node_of = gather_from_all(static_cast<int>(first_rank));
  place_ = places_by_node(node_of)[static_cast<std::size_t>(rank)];
  std::map<int, int> ranks_of;  // each first rank's node
  for (const int node_number : node_of) ++ranks_of[node_number];
  for (const auto& [first, ranks] : ranks_of) ranks_of_nodes_.push_back(ranks);
  divide_cores(node);
}

Session::~Session() {
  heartbeat_.reset();
  std::optional<Watchdog> watchdog;
  try {
    watchdog.emplace(60.0, end_process("ended"));
  } catch (const std::exception&) {
    // Without a thread for it the end is not watched.
  }
  MPI_Finalize();
}

std::unique_ptr<Communicator> Session::world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, place_, &copy));
  return std::make_unique<MpiCommunicator>(MpiGroup(copy));
}

void Session::watch_peers(double limit_s, std::function<void(const SilentRank&)> on_silence,
                          std::function<void(const Standstill&)> on_still) {
  const Watchdog watchdog(start_limit_s(), end_process("started"));
  heartbeat_.emplace(place_, verdict_s(limit_s), std::move(on_silence), std::move(on_still));
}

void Session::set_silence_limit(double limit_s) {
  if (heartbeat_) heartbeat_->set_limit(verdict_s(limit_s));
}

void Session::set_doing(std::function<Doing()> doing) {
  if (heartbeat_) heartbeat_->set_doing(std::move(doing));
}

void Session::begin_phase(const std::string& doing, double still_limit_s) {
  std::vector<int> others;
  const int ranks = std::accumulate(ranks_of_nodes_.begin(), ranks_of_nodes_.end(), 0);
  for (int place = 0; place < ranks; ++place)
    if (place != place_) others.push_back(place);
  // All do the same, so who waits for any rank gets no further without all of them.
  set_doing([doing, others = std::move(others)] {
    return Doing{doing, waits().running > 0 ? others : std::vector<int>()};
  });
  if (heartbeat_) heartbeat_->set_still_limit(still_limit_s);
}

void Session::let_rank_0_speak() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name); rank != nullptr && std::atoi(rank) > 0)
      return std::this_thread::sleep_for(std::chrono::seconds(3));
}

void Session::abort(int exit_code) {
  int started = 0, finalized = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&finalized);
  if (started && !finalized) MPI_Abort(MPI_COMM_WORLD, exit_code);
}

std::string Session::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length));
  const std::string_view version(text.data());
  return std::string(version.substr(0, version.find_first_of(",\n")));
}

}  // namespace brume::comm
