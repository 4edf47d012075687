#include "engine/stragglers.hpp"

#include <algorithm>
#include <utility>

#include "base/statistics.hpp"
#include "schedule/account.hpp"

namespace brume::engine {
namespace {

using schedule::Channel, schedule::own_channels;

/// Of the time that a rank's longest channel works: shorter ones hold nobody up.
constexpr double worth_a_word = 0.1;

/// [ranks][own channels] seconds.
class Table {
 public:
  explicit Table(int ranks) : values_(own_channels.size() * std::size_t(ranks), 0.0) {}

  std::span<double> of(int rank) {
    return std::span(values_).subspan(own_channels.size() * std::size_t(rank), own_channels.size());
  }
  /// Each rank gets what the others know. Collective.
  void share(comm::Communicator& world) { world.all_reduce(values_, comm::Reduction::max); }

 private:
  std::vector<double> values_;
};

double lower_quartile(std::vector<double> values) {
  const auto quarter = values.begin() + std::ssize(values) / 4;
  std::ranges::nth_element(values, quarter);
  return *quarter;
}

}  // namespace

Stragglers::Stragglers(const plan::Plan& plan) : named_(std::size_t(plan.devices())) {
  for (int rank = 0; rank < plan.devices(); ++rank)
    stage_of_.push_back(plan::stage_index(plan, rank));
}

std::vector<Straggler> Stragglers::add(const BusyTimes& busy_s, double iteration_s,
                                       comm::Communicator& world) {
  for (std::size_t c = 0; c < busy_s.size(); ++c) sum_[c] += busy_s[c];
  ++steps_;
  time_s_ += iteration_s;
  if (time_s_ < block_s) return {};
  for (double& s : sum_) s /= steps_;
  blocks_.push_back(std::exchange(sum_, {}));
  steps_ = 0;
  time_s_ = 0.0;
  if (blocks_.size() < window) return {};

  Table typical_s(world.size()), lower_s(world.size());
  for (std::size_t c = 0; c < own_channels.size(); ++c) {
    std::vector<double> times;
    for (const BusyTimes& block : blocks_) times.push_back(block[std::size_t(own_channels[c])]);
    typical_s.of(world.rank())[c] = median(times);
    lower_s.of(world.rank())[c] = lower_quartile(times);
  }
  blocks_.erase(blocks_.begin(), blocks_.begin() + every);
  typical_s.share(world);
  lower_s.share(world);

  std::vector<Straggler> found;
  for (int rank = 0; rank < world.size(); ++rank)
    for (std::size_t c = 0; c < own_channels.size(); ++c) {
      std::vector<double> peers;
      for (int other = 0; other < world.size(); ++other)
        if (other != rank && stage_of_[other] == stage_of_[rank])
          peers.push_back(typical_s.of(other)[c]);
      bool& named = named_[rank][std::size_t(own_channels[c])];
      if (peers.empty() || named) continue;
      const double peers_s = median(peers), at_least_s = lower_s.of(rank)[c];
      named = at_least_s > excess * peers_s &&
              at_least_s > worth_a_word * std::ranges::max(typical_s.of(rank));
      if (named) found.push_back({rank, own_channels[c], typical_s.of(rank)[c], peers_s});
    }
  return found;
}

}  // namespace brume::engine
