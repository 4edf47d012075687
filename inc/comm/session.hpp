/// @file MPI for the life of the process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/heartbeat.hpp"

namespace brume::comm {

/// Places of ranks that fill nodes one after the other. Nodes come in the order of their first
/// ranks; ranks of a node keep theirs.
///
/// @param node_of  [ranks] any number that a node's ranks share and others do not
/// @return         [ranks] the place of each
std::vector<int> places_by_node(const std::vector<int>& node_of);

/// Initialises MPI with MPI_THREAD_MULTIPLE and finalizes it; one per process.
class Session {
 public:
  /// @throws Error(network) when MPI cannot be started or does not give MPI_THREAD_MULTIPLE
  Session();
  ~Session();  ///< finalizes; after a failure that not all ranks share, abort() must come first
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// All ranks of the job, on a communicator of its own. They fill nodes in order, in whatever
  /// order the launcher has dealt them out: tensor parallelism stays within a node.
  std::unique_ptr<Communicator> world();

  int ranks_per_node() const { return ranks_per_node_; }  ///< ranks on this rank's node
  int node_rank() const { return node_rank_; }            ///< this rank's place on its node
  int num_nodes() const { return static_cast<int>(ranks_of_nodes_.size()); }
  /// Node of each rank, in rank order.
  const std::vector<int>& ranks_of_nodes() const { return ranks_of_nodes_; }

  /// Lets ranks listen to each other (see Heartbeat) until the session ends. Collective.
  void watch_peers(double limit_s, std::function<void(const SilentRank&)> on_silence,
                   std::function<void(const Standstill&)> on_still);
  void set_silence_limit(double limit_s);        ///< seconds after which a silent rank's job ends
  void set_doing(std::function<Doing()> doing);  ///< see Heartbeat

  /// Sets the phase of all ranks, and the longest time without progress in it [s] (see Heartbeat).
  void begin_phase(const std::string& doing, double still_limit_s);

  /// Ends all processes of the job, where MPI has started in this one. Any thread.
  static void abort(int exit_code);

  /// Waits on all ranks but 0: before MPI starts, ranks most likely fail alike, and mpirun ends all
  /// of them two seconds after the first.
  static void let_rank_0_speak();

  static std::string library_version();  ///< e.g. "Open MPI v4.1.4"

 private:
  int place_ = 0;  ///< among all ranks
  int ranks_per_node_ = 1;
  int node_rank_ = 0;
  std::vector<int> ranks_of_nodes_;
  std::optional<Heartbeat> heartbeat_;
};

}  // namespace brume::comm
