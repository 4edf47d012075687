/// @file A group of ranks that communicate. Two kinds: MPI processes, or threads of one process.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/narrow.hpp"

namespace brume::comm {

enum class Reduction { sum, min, max };

/// Storage of weights, activations and gradients.
using Values = std::variant<std::span<float>, std::span<bfloat16>, std::span<float16>>;
using ConstValues =
    std::variant<std::span<const float>, std::span<const bfloat16>, std::span<const float16>>;

/// Every call blocks its thread until the caller's memory may be used again, spinning for
/// microseconds only: ranks may outnumber cores. All calls but send and recv are collective over
/// the group and must be made in the same order by all its ranks. One thread at a time per
/// communicator; different communicators may be used by different threads at once.
///
/// Reductions take the ranks in order, x_0 + x_1 + ..., for every value alike: the result has the
/// same bits on all ranks, from run to run, for any length of message and for both kinds of
/// communicator. Of values of 16 bits fp32 sums are made, and rounded once.
///
/// @throws Error(network) when the transport fails or the job is being aborted
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The carrier between hosts' memories: "Open MPI v4.1.4", or "threads" of one process.
  virtual std::string transport() const = 0;

  virtual void barrier() = 0;
  virtual void all_reduce(Values values) = 0;                                  ///< sum, in place
  virtual void all_reduce(std::span<double> values, Reduction reduction) = 0;  ///< works in place

  /// Sums `values` over the ranks; this rank gets part `rank` of `size` equal parts, in place: the
  /// other parts are undefined afterwards. There must be a multiple of size() values.
  virtual void reduce_scatter(Values values) = 0;

  /// Part `rank` of `size` equal parts is this rank's contribution; afterwards all parts are
  /// filled.
  virtual void all_gather(Values values) = 0;

  /// Sends each rank its part of `out` and fills `in` with a part from each rank. Parts follow each
  /// other in rank order; a part may be empty. Bytes move unchanged, whatever their storage. `out`
  /// and `in` must not overlap.
  ///
  /// @param out_bytes  [size()] length of the part to each rank; their sum is that of `out`
  /// @param in_bytes   [size()] length of the part from each rank; their sum is that of `in`. Each
  ///                   is the length that the other rank sends; that of this rank's own part too.
  /// @throws Error(bug) if lengths do not add up, or another rank sends fewer bytes
  virtual void all_to_all(std::span<const std::byte> out, std::span<const std::size_t> out_bytes,
                          std::span<std::byte> in, std::span<const std::size_t> in_bytes) = 0;

  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;

  /// Each rank gives a text of any length; every rank gets all of them, in rank order.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;

  /// The same, but `root` alone gets them; the others get nothing.
  virtual std::vector<std::string> gather_at(const std::string& mine, int root) = 0;

  /// Messages of a pair of ranks arrive in the order they were sent; recv's count must be send's.
  /// A send may wait for its recv.
  virtual void send(ConstValues values, int peer) = 0;
  virtual void recv(Values values, int peer) = 0;

  /// Splits the group; ranks of one colour form a new one, ordered by `key`. A negative colour
  /// gives no group (null). The new group has a transport of its own: its messages never meet
  /// others.
  virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;

  /// Ends the whole job at once from any thread, for failures that nobody can agree on any more.
  virtual void abort(int exit_code) = 0;
};

/// Broadcasts a text of any length from `root`. Collective over `comm`.
std::string broadcast(Communicator& comm, std::string text, int root);

/// Runs `body` on `size` ranks that are threads of this process, and waits for them.
///
/// When one rank throws or aborts, the others leave their pending calls with Error(network), and
/// the first exception is rethrown here.
void run_local(int size, const std::function<void(Communicator&)>& body);

}  // namespace brume::comm
