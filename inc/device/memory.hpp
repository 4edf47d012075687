/// @file Memory tiers of one rank: one block per tier, taken once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace brume::device {

/// The kinds of a rank's memory. On hosts both are the host's; with a device, `host` is pinned
/// memory that the device reaches too.
enum class Tier : std::uint8_t { device, host };

/// A block of memory, aligned to 256 bytes, on hosts to 4096; really there once it is made.
class Memory {
 public:
  Memory() = default;
  /// Takes memory of the calling thread's device (use_device), or of the host.
  /// @throws Error(resource) when the system does not give the bytes; the message names them
  explicit Memory(std::int64_t bytes, Tier tier = Tier::device);

  std::byte* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    Tier tier;
    void operator()(std::byte* block) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::int64_t bytes_ = 0;
};

/// Host memory that is left now, of this node and of what a batch system or a container gives of it
/// by control groups [bytes]; -1: not known.
std::int64_t available_bytes();
/// Host memory of this node, or what a batch system or a container gives of it, whatever is used of
/// it now [bytes]; -1: not known.
std::int64_t installed_bytes();
/// Bytes that this process may still map under its limit (ulimit -v); without a limit the largest
/// number.
std::int64_t address_space_left();
/// @throws Error(resource) where `bytes` and what libraries and threads map exceed that
void require_address_space(std::int64_t bytes);
std::int64_t resident_bytes();       ///< resident set of this process now [bytes]
std::int64_t peak_resident_bytes();  ///< its maximum so far [bytes]

/// Gives memory that was freed back to the system and starts peak_resident_bytes() anew, where the
/// system allows it: what planning took is then not counted against training.
void release_unused();

/// This node's processors and the part of them that this process may use; part of a profile's key.
struct Processor {
  std::string name;
  int sockets = 1;
  int numa_nodes = 1;
  int cores = 1;                 ///< cores this process may run on
  int given_cores = 1;           ///< cores that the system lets processes like it be bound to
  int node_cores = 1;            ///< cores of the node
  std::int64_t cache_bytes = 0;  ///< outermost caches of the node together; 0: unknown
  std::string allowed = {};      ///< the node's hardware threads that it may run on: "0-3,8"
};
Processor this_processor();

/// Says how many ranks of the node may run on the very same cores as this process: 1 before that.
void share_cores(int ranks);

/// Cores one rank computes with when `ranks_per_node` share a node: an equal part of the cores that
/// it may run on, and no more than an equal part of the node.
///
/// @param sharing  ranks that may run on the same cores, `cores`
int threads_per_rank(const Processor& processor, int ranks_per_node, int sharing);
int threads_per_rank(int ranks_per_node);  ///< threads of this process, as `share_cores` decides

/// First of these cores for the rank in place `node_rank` of its node; -1 where the batch system
/// has bound the rank already, or ranks outnumber cores.
int first_core(int ranks_per_node, int node_rank);

/// Keeps the calling thread, and threads it starts later, on the node's cores
/// [first_core, first_core + cores), counted so that neighbours share caches.
///
/// @return  false where the node has no such cores or does not give them: the thread stays free
bool bind_this_thread(int first_core, int cores);

/// Keeps the calling thread on cores like `bind_this_thread`, and gives it back those it had at the
/// end. A first_core of -1 leaves it free.
class BoundThread {
 public:
  BoundThread(int first_core, int cores);
  ~BoundThread();
  BoundThread(const BoundThread&) = delete;
  BoundThread& operator=(const BoundThread&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;  ///< null: it was not bound
};

}  // namespace brume::device
