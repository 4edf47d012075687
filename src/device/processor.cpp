#include "device/memory.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>

#include <hwloc.h>

#include "base/error.hpp"

namespace brume::device {

namespace {

struct FreeTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, FreeTopology>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  require(hwloc_topology_init(&topology) == 0, Failure::resource, "hwloc does not start");
  Topology owner(topology);
  // The node's own size, whatever part of it the batch system gives to this job.
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  require(hwloc_topology_load(topology) == 0, Failure::resource,
          "hwloc cannot read this node's topology");
  return owner;
}

/// The cores with at least one hardware thread in `allowed`.
int count_cores(hwloc_topology_t topology, hwloc_const_bitmap_t allowed) {
  int cores = 0;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr) {
    cores += hwloc_bitmap_intersects(core->cpuset, allowed) ? 1 : 0;
  }
  // Some virtual machines show hardware threads but no cores.
  if (core == nullptr && cores == 0) cores = hwloc_bitmap_weight(allowed);
  return cores;
}

/// The hardware threads of a set, as the system numbers them: "0-3,8".
std::string text(hwloc_const_bitmap_t set) {
  char* written = nullptr;
  if (hwloc_bitmap_list_asprintf(&written, set) < 0) return "";
  const std::unique_ptr<char, decltype(&std::free)> owner(written, std::free);
  return written;
}

std::atomic<int> ranks_on_these_cores = 1;

/// Bytes of the node's outermost caches, or 0 where none is known.
std::int64_t cache_bytes(hwloc_topology_t topology) {
  std::int64_t bytes = 0;
  for (const hwloc_obj_type_t level : {HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
    hwloc_obj_t cache = nullptr;
    while ((cache = hwloc_get_next_obj_by_type(topology, level, cache)) != nullptr)
      bytes += std::int64_t(cache->attr->cache.size);
    if (bytes > 0) break;
  }
  return bytes;
}

std::string model_name(hwloc_topology_t topology) {
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  const char* name = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : nullptr;
  return name ? name : "unknown processor";
}

}  // namespace

Processor this_processor() {
  const Topology topology = load_topology();
  const hwloc_const_bitmap_t node = hwloc_topology_get_topology_cpuset(topology.get());
  const Bitmap bound(hwloc_bitmap_dup(node));
  // A process of which the system says nothing is taken as unbound.
  if (hwloc_get_cpubind(topology.get(), bound.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(bound.get(), node);
  }
  const auto count = [&](hwloc_obj_type_t type) {
    return std::max(1, hwloc_get_nbobjs_by_type(topology.get(), type));
  };
  return {
      .name = model_name(topology.get()),
      .sockets = count(HWLOC_OBJ_PACKAGE),
      .numa_nodes = count(HWLOC_OBJ_NUMANODE),
      .cores = count_cores(topology.get(), bound.get()),
      .given_cores = count_cores(topology.get(), hwloc_topology_get_allowed_cpuset(topology.get())),
      .node_cores = count_cores(topology.get(), node),
      .cache_bytes = cache_bytes(topology.get()),
      .allowed = text(bound.get())};
}

void share_cores(int ranks) { ranks_on_these_cores = ranks; }

int threads_per_rank(const Processor& processor, int ranks_per_node, int sharing) {
  return std::max(1, std::min(processor.cores / sharing, processor.node_cores / ranks_per_node));
}

int threads_per_rank(int ranks_per_node) {
  return threads_per_rank(this_processor(), ranks_per_node, ranks_on_these_cores);
}

int first_core(int ranks_per_node, int node_rank) {
  const Processor processor = this_processor();
  const bool bound = processor.cores < processor.node_cores;
  return bound || ranks_per_node > processor.node_cores
             ? -1
             : node_rank * threads_per_rank(ranks_per_node);
}

bool bind_this_thread(int first_core, int cores) {
  const Topology topology = load_topology();
  const Bitmap set(hwloc_bitmap_alloc());
  for (int c = first_core; c < first_core + cores; ++c) {
    const hwloc_obj_t core = hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_CORE, unsigned(c));
    if (core == nullptr) return false;
    hwloc_bitmap_or(set.get(), set.get(), core->cpuset);
  }
  return hwloc_set_cpubind(topology.get(), set.get(), HWLOC_CPUBIND_THREAD) == 0;
}

struct BoundThread::Before {
  Topology topology = load_topology();
  Bitmap cores{hwloc_bitmap_alloc()};
};

BoundThread::BoundThread(int first_core, int cores) {
  if (first_core < 0) return;
  auto before = std::make_unique<Before>();
  if (hwloc_get_cpubind(before->topology.get(), before->cores.get(), HWLOC_CPUBIND_THREAD) == 0 &&
      bind_this_thread(first_core, cores))
    before_ = std::move(before);
}

BoundThread::~BoundThread() {
  if (before_)
    hwloc_set_cpubind(before_->topology.get(), before_->cores.get(), HWLOC_CPUBIND_THREAD);
}

}  // namespace brume::device
