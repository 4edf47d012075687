/// @file Measures which pairs of nodes exchange messages slowly.
#pragma once

#include <string>
#include <vector>

#include "bench.hpp"
#include "hardware/profile.hpp"

namespace brume::profiler {

/// Rounds in which each of some nodes meets each other one once.
inline int rounds_of(int nodes) { return nodes - 1 + nodes % 2; }
/// Whom a node meets in a round: itself, where it has nobody to meet.
int opponent(int nodes, int round, int node);

/// Those pairs that take longer than most by more than noise, by how many times: more than a tenth
/// longer than the time that a quarter of all pairs do not reach.
/// @param times_s  [s] [node, node] of a message; 0: not measured, and where the first is not the
///                 lower one
std::vector<hardware::SlowPair> slow_pairs(const std::vector<double>& times_s, int nodes);

/// Sends messages to and fro between each two nodes, in rounds in which all nodes have one to meet;
/// of more than 64 nodes in 63 of their rounds. Collective over the bench's world.
std::vector<hardware::SlowPair> measure_slow_pairs(Bench& bench, int ranks_per_node);

/// Makes rows of groups over several nodes what they would be without slow pairs, which held the
/// groups up that were measured: consecutive nodes, the slowest group of all.
void leave_out_slow_pairs(hardware::Profile& profile, int nodes);

}  // namespace brume::profiler
