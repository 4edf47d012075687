/// @file Collectives of `selftest`, whose results are counted that are wrong.
#include "selftest_collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "selftest_values.hpp"

namespace brume::app {
namespace {

template <typename Expected>
double wrong(std::span<const float> values, std::size_t first, Expected&& expected) {
  double count = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) count += values[i] != expected(first + i);
  return count;
}

/// Values where ranks compute, and a queue for the calling thread if that is on a device.
class Exchanged {
 public:
  explicit Exchanged(std::size_t count)
      : memory_(std::int64_t(count * sizeof(float))), stream_(device::make_stream()) {
    if (stream_) stream_->bind();
  }
  std::span<float> there() const {
    return {reinterpret_cast<float*>(memory_.data()), std::size_t(memory_.bytes()) / sizeof(float)};
  }
  void set(const std::vector<float>& values) const {
    device::copy_now(memory_.data(), values.data(), memory_.bytes());
  }
  void get(std::vector<float>& values) const {
    device::finish();
    device::copy_now(values.data(), memory_.data(), memory_.bytes());
  }

 private:
  device::Memory memory_;
  std::unique_ptr<device::Stream> stream_;
};

/// Counts wrong results: of all-reduce, reduce-scatter, all-gather, and messages in a ring.
std::vector<double> wrong_values(comm::Communicator& group, std::size_t part) {
  const int rank = group.rank(), ranks = group.size();
  const std::size_t first = part * std::size_t(rank);
  std::vector<float> values(part * std::size_t(ranks));
  const Exchanged exchanged(values.size());
  const std::span<float> there = exchanged.there();
  const auto set = [&](auto&& value) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(i);
    exchanged.set(values);
  };
  const auto mine = [&](std::size_t i) { return term(rank, i); };
  const auto sum = [&](std::size_t i) { return sum_of_terms(ranks, i); };
  std::vector<double> counts;

  set(mine);
  group.all_reduce(there);
  exchanged.get(values);
  counts.push_back(wrong(values, 0, sum));

  set(mine);
  group.reduce_scatter(there);
  exchanged.get(values);
  counts.push_back(wrong(std::span<const float>(values).subspan(first, part), first, sum));

  set([&](std::size_t i) { return i / part == std::size_t(rank) ? mark(rank, i) : -1.0f; });
  group.all_gather(there);
  exchanged.get(values);
  counts.push_back(wrong(values, 0, [&](std::size_t i) { return mark(int(i / part), i); }));

  // Even ranks send first, so that nobody waits in a circle.
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  set([&](std::size_t i) { return i < part ? mark(rank, i) : -1.0f; });
  const auto send = [&] { group.send(there.first(part), next); };
  const auto receive = [&] { group.recv(there.last(part), before); };
  rank % 2 == 0 ? send() : receive();
  rank % 2 == 0 ? receive() : send();
  exchanged.get(values);
  counts.push_back(wrong(std::span<const float>(values).last(part), 0,
                         [&](std::size_t i) { return mark(before, i); }));
  return counts;
}

}  // namespace

void check_collectives(comm::Communicator& world, int ranks_per_node) {
  const auto node = comm::device_group(world.split(world.rank() / ranks_per_node, world.rank()));
  const auto everyone = comm::device_group(world.split(0, world.rank()));
  Table table({"collective", "ranks", "values", "wrong"});
  double all_wrong = 0.0;
  for (comm::Communicator* group : {node.get(), everyone.get()}) {
    if (group->size() == 1 || (group == everyone.get() && node->size() == world.size())) continue;
    // Of each array a rank has two, of 16 MiB at most.
    constexpr std::size_t most_values = std::size_t{1} << 22;
    const std::size_t most_part =
        std::max<std::size_t>(1, most_values / std::size_t(group->size()));
    for (const std::size_t wanted : {std::size_t{1}, std::size_t{1000}, std::size_t{300'000}}) {
      const std::size_t part = std::min(wanted, most_part);
      std::vector<double> counts = wrong_values(*group, part);
      world.all_reduce(counts, comm::Reduction::sum);
      const std::size_t all = part * std::size_t(group->size());
      const std::pair<const char*, std::size_t> kinds[] = {
          {"all-reduce", all}, {"reduce-scatter", all}, {"all-gather", all}, {"messages", part}};
      for (std::size_t i = 0; i < counts.size(); ++i) {
        all_wrong += counts[i];
        table.add({kinds[i].first, std::to_string(group->size()), std::to_string(kinds[i].second),
                   fmt::format("{:.0f}", counts[i])});
      }
    }
  }
  if (world.rank() == 0 && world.size() > 1) fmt::print("{}\n", table.text());
  comm::together(world, [&] {
    require(all_wrong == 0.0, Failure::network,
            "selftest: {:.0f} values came out wrong: see the table; the network, its driver or "
            "the MPI library is broken",
            all_wrong);
  });
}

}  // namespace brume::app
