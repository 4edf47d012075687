/// @file Measures collectives, messages and copies.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench.hpp"
#include "chain.hpp"
#include "hardware/profile.hpp"
#include "profiler/profiler.hpp"

namespace brume::profiler {

/// All groups of a size work at once, as in training; `group` is null on ranks that are left over.
struct Group {
  int nodes = 1;
  int ranks_per_node = 1;
  std::unique_ptr<comm::Communicator> group;
};

/// Cuts the ranks into groups of `ranks` consecutive ones that span whole nodes or lie within one.
/// Collective over `world`.
///
/// @return  nodes = 0 when there is no such group
Group make_group(comm::Communicator& world, int ranks, int ranks_per_node);

/// Ranks with the same place on all nodes. Collective over `world`.
Group make_group_across(comm::Communicator& world, int ranks_per_node);

/// A transfer with peers for `Bench::seconds`: a rank on which it fails alone would leave them
/// waiting, so whatever it throws becomes Error(network), which ends the job.
Work with_peers(const std::string& name, const Work& transfer);

/// Collectives of each group size, and of one rank of each node, up to `block_bytes`, in a chain;
/// messages up to `stream_bytes`.
std::vector<hardware::LinkRow> measure_links(Bench& bench, Chain& chain,
                                             const std::vector<int>& groups, int ranks_per_node,
                                             std::int64_t block_bytes, std::int64_t stream_bytes);

/// Copies of up to `most_bytes` between the host's memory and the device's.
std::vector<hardware::CopyRow> measure_copies(Bench& bench, std::int64_t most_bytes);

/// Bytes of a device's memory that are gone beside plans, for each rank that shares it: what the
/// driver, kernels with their workspaces, and as many groups as training has take once they have
/// worked, with up to `block_bytes`. Stages with more neighbours than two take more. 0 on hosts.
std::int64_t measure_reserved(Bench& bench, int ranks_per_node, std::int64_t block_bytes);

/// Writes and reads of up to `most_bytes`, by all ranks of a node to its disk.
void measure_disk(Bench& bench, const std::string& scratch, std::int64_t most_bytes,
                  std::vector<hardware::CopyRow>& rows);

}  // namespace brume::profiler
