#include "comm/session.hpp"

#include <mpi.h>

#include <array>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "comm/mpi_call.hpp"
#include "comm/mpi_communicator.hpp"

namespace brume::comm {

namespace {

void start_mpi() {
  int started = 0;
  check_mpi(MPI_Initialized(&started));
  require(!started, Failure::bug, "a process has one MPI session, this is a second one");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  // From here on a failure comes back as a code; groups made later inherit this.
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  require(
      provided == MPI_THREAD_MULTIPLE, Failure::network,
      "MPI gives thread level {}, MPI_THREAD_MULTIPLE ({}) is needed: channels communicate from "
      "threads of their own",
      provided, MPI_THREAD_MULTIPLE);
}

MpiCommunicator this_node() {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
  return MpiCommunicator(MpiGroup(node));
}

}  // namespace

Session::Session() {
  start_mpi();
  const MpiCommunicator node = this_node();
  ranks_per_node_ = node.size();
  node_rank_ = node.rank();
  double nodes = node_rank_ == 0 ? 1 : 0;
  world()->all_reduce(std::span(&nodes, 1), Reduction::sum);
  num_nodes_ = static_cast<int>(nodes);
}

Session::~Session() {
  heartbeat_.reset();
  MPI_Finalize();
}

std::unique_ptr<Communicator> Session::world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy));
  return std::make_unique<MpiCommunicator>(MpiGroup(copy));
}

void Session::watch_peers(double limit_s, std::function<void(const SilentRank&)> on_silence) {
  heartbeat_.emplace(limit_s, std::move(on_silence));
}

void Session::set_silence_limit(double limit_s) {
  if (heartbeat_) heartbeat_->set_limit(limit_s);
}

std::string Session::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length));
  const std::string_view version(text.data());
  return std::string(version.substr(0, version.find_first_of(",\n")));
}

}  // namespace brume::comm
