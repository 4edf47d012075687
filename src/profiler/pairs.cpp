#include "pairs.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>

#include "device/device.hpp"
#include "transfers.hpp"

namespace brume::profiler {
namespace {

constexpr int most_rounds = 63;
constexpr double noise = 1.1;  ///< times as long
constexpr std::int64_t message_elements = std::int64_t{1} << 18;

std::size_t index(int nodes, int first, int second) {
  return std::size_t(first) * std::size_t(nodes) + std::size_t(second);
}

/// Seconds of a message to a peer and back, at best of several.
double exchange_s(comm::Communicator& group, std::span<float> values, int peer) {
  constexpr int turns = 6;  // what the first one takes to get to know its peer does not count
  double least_s = infinity;
  for (int turn = 0; turn < turns; ++turn) {
    const double start_s = now_s();
    if (group.rank() < peer) {
      group.send(values, peer);
      group.recv(values, peer);
    } else {
      group.recv(values, peer);
      group.send(values, peer);
    }
    device::finish();
    least_s = std::min(least_s, now_s() - start_s);
  }
  return least_s;
}

}  // namespace

// All but the last node sit in a circle; in a round those meet whose numbers add up to the round's,
// and the one that is left meets the last node. With an odd number of nodes there is no last one.
int opponent(int nodes, int round, int node) {
  const int last = nodes - 1 + nodes % 2;  // an odd number
  const int alone = round * (last + 1) / 2 % last;
  const int other = node == last    ? alone
                    : node == alone ? last
                                    : (round - node % last + last) % last;
  return other < nodes ? other : node;
}

std::vector<hardware::SlowPair> slow_pairs(const std::vector<double>& times_s, int nodes) {
  std::vector<double> measured_s;
  for (const double time_s : times_s)
    if (time_s > 0.0) measured_s.push_back(time_s);
  if (measured_s.empty()) return {};
  std::ranges::sort(measured_s);
  const double usual_s = measured_s[(measured_s.size() - 1) / 4];
  std::vector<hardware::SlowPair> slow;
  for (int first = 0; first < nodes; ++first)
    for (int second = first + 1; second < nodes; ++second)
      if (const double times = times_s[index(nodes, first, second)] / usual_s; times > noise)
        slow.push_back({first, second, std::round(100.0 * times) / 100.0});
  return slow;
}

std::vector<hardware::SlowPair> measure_slow_pairs(Bench& bench, int ranks_per_node) {
  comm::Communicator& world = bench.world();
  const int nodes = world.size() / ranks_per_node;
  const Group across = make_group_across(world, ranks_per_node);
  Operands operands;
  std::span<float> values;
  if (!bench.prepared("links between nodes", [&] { values = operands.zeros(message_elements); }))
    return {};
  std::vector<double> times_s(std::size_t(nodes) * std::size_t(nodes), 0.0);
  const int rounds = rounds_of(nodes), measured = std::min(rounds, most_rounds);
  for (int i = 0; i < measured; ++i) {
    world.barrier();
    if (!across.group) continue;
    const int node = across.group->rank();
    const int peer = opponent(nodes, int(std::int64_t{i} * rounds / measured), node);
    if (peer == node) continue;
    with_peers("links between nodes", [&] {
      times_s[index(nodes, std::min(node, peer), std::max(node, peer))] =
          exchange_s(*across.group, values, peer);
    })();
  }
  world.all_reduce(times_s, comm::Reduction::max);
  return slow_pairs(times_s, nodes);
}

void leave_out_slow_pairs(hardware::Profile& profile, int nodes) {
  if (profile.slow_pairs.empty()) return;
  for (hardware::LinkRow& row : profile.links) {
    double slowest = 1.0;
    for (int first = 0; row.nodes > 1 && first + row.nodes <= nodes; first += row.nodes) {
      std::vector<int> group(std::size_t(row.nodes), 0);
      std::iota(group.begin(), group.end(), first);
      if (const auto* pair = hardware::slowest_pair(profile, group))
        slowest = std::max(slowest, pair->times);
    }
    row.time_s /= slowest;
  }
}

}  // namespace brume::profiler
