#include "profiler/profiler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <future>
#include <limits>
#include <set>
#include <thread>

#include "base/host.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "bench.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "kernels/types.hpp"
#include "operators.hpp"
#include "overlap.hpp"
#include "pairs.hpp"
#include "transfers.hpp"

namespace brume::profiler {
namespace {

/// Sizes that the transfers of a search reach.
struct Sizes {
  std::int64_t block_bytes;   ///< the largest block's gradients
  std::int64_t stream_bytes;  ///< activations between stages
  std::int64_t
      copy_bytes;  ///< optimizer state of the largest block, or the widest saved activation
};

int largest_of(const std::vector<int>& numbers) {
  return numbers.empty() ? 1 : std::ranges::max(numbers);
}

/// The microbatches of all splits, each once, rising.
std::vector<int> microbatches(const Shapes& shapes) {
  std::set<int> found;
  for (const Split& split : shapes.splits) found.insert(split.microbatch);
  return {found.begin(), found.end()};
}

Sizes transfer_sizes(const model::Config& model, const Shapes& shapes) {
  const std::int64_t activation_bytes = model::activation_bytes(model.precision);
  const std::int64_t elements = largest_block_elements(model);
  const std::int64_t tokens = std::int64_t(largest_of(microbatches(shapes))) * model.padded_len();
  return {.block_bytes = model::grad_bytes * elements,
          .stream_bytes = activation_bytes * tokens * model.hidden_size,
          .copy_bytes = std::max(std::int64_t(model::optimizer_bytes(model) * double(elements)),
                                 activation_bytes * tokens * model.inner_size())};
}

/// Who measures, when, and beside how much other work, as rank 0 sees it: "4 ranks on node17,
/// 2024-05-01 12:00 UTC, after a minute with a load of 0.3".
std::string origin(comm::Communicator& world) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> when{};
  std::strftime(when.data(), when.size(), "%Y-%m-%d %H:%M UTC", &utc);
  std::array<double, 1> load{};
  const bool known = ::getloadavg(load.data(), 1) == 1;
  return comm::broadcast(
      world,
      fmt::format("{} ranks on {}, {}{}", world.size(), host_name(), when.data(),
                  known ? fmt::format(", after a minute with a load of {:.1f}", load[0]) : ""),
      0);
}

/// The widest product of a layer.
Product product(const model::Config& model, std::int64_t tokens) {
  return {.tokens = tokens,
          .inputs = model.hidden_size,
          .outputs = model.inner_size(),
          .precision = model.precision};
}

/// The share of what a node has left that operands may take: kernels need some, and others may work
/// there, too.
constexpr double memory_share = 0.5;

/// What each rank of a node may take, on the node that has least.
std::int64_t rank_bytes(Bench& bench) {
  std::array<double, 1> bytes{std::numeric_limits<double>::max()};
  if (const std::int64_t left = device::available_bytes(); !device::on_device() && left >= 0)
    bytes[0] = memory_share * double(left) / bench.node().size();
  bench.world().all_reduce(bytes, comm::Reduction::min);
  return std::int64_t(std::min(bytes[0], 1e18));
}

/// Says on rank 0 what is left out, and how long the rest takes where that is long.
/// @throws Error(input) where that is longer than `longest_s`
void announce(Bench& bench, const Chosen& chosen, const hardware::Profile& rates,
              double longest_s) {
  constexpr double long_s = 20.0, calls = 5.0;
  std::array<double, 1> time_s{};
  for (const Item& item : chosen.items) time_s[0] += calls * expected_s(item, rates);
  bench.world().all_reduce(time_s, comm::Reduction::max);
  const std::string length = fmt::format("measuring {} operators takes about {}",
                                         chosen.items.size(), format_seconds(time_s[0]));
  require(time_s[0] <= longest_s, Failure::input,
          "{}, and may take {}: name the machine to plan for by cluster.machine "
          "(for example dgx-a100-80), or what was measured there by cluster.profile",
          length, format_seconds(longest_s));
  if (bench.world().rank() != 0) return;
  if (chosen.left_out > 0)
    log::warn(
        "profile: {} shapes of operators need more memory than this node has for a rank, and "
        "are left out: their times will follow from those of smaller shapes",
        chosen.left_out);
  if (time_s[0] > long_s) log::info("profile: {}; a named cluster.profile takes none", length);
}

/// A product of at most so many tokens that takes about `time_s`, if it is not shorter.
Product product_within(double time_s, const model::Config& model, double most_tokens,
                       double flops_per_s) {
  const double token_flops = 2.0 * double(model.hidden_size) * double(model.inner_size());
  return product(model,
                 std::int64_t(std::clamp(time_s * flops_per_s / token_flops, 1.0, most_tokens)));
}

/// The middle microbatch's product beside the largest group's all-reduce and copies of activations.
std::vector<double> interference(Bench& bench, const hardware::ProfileKey& key,
                                 const model::Config& model, const Shapes& shapes,
                                 const Sizes& sizes, double flops_per_s) {
  constexpr std::int64_t least = 64 << 10, most = 4 << 20;
  constexpr double enough_s = 0.04;  // many times as long as a copy of 4 MiB
  const std::vector<int> all_sizes = microbatches(shapes);
  const int middle = all_sizes.empty() ? 1 : all_sizes[all_sizes.size() / 2];
  const Product beside =
      product_within(enough_s, model, double(middle) * double(model.padded_len()), flops_per_s);
  const Group all = make_group(bench.world(), largest_of(shapes.groups), key.ranks_per_node);
  return measure_interference(bench, {.product = beside,
                                      .reduce_bytes = std::clamp(sizes.block_bytes, least, most),
                                      .copy_bytes = std::clamp(sizes.stream_bytes, least, most),
                                      .group = all.group.get()});
}

/// A product that takes about as long as what lies between two transfers of a small layer.
Product short_product(const model::Config& model, const Shapes& shapes, double flops_per_s) {
  return product_within(1e-3, model,
                        double(largest_of(microbatches(shapes))) * double(model.padded_len()),
                        flops_per_s);
}

/// Measures work on channels, whose threads find their cores themselves.
void measure_transfers(Bench& bench, const hardware::ProfileKey& key, const model::Config& model,
                       const Shapes& shapes, const Sizes& sizes, hardware::Profile& profile) {
  profile.task_overhead_s = measure_hand_over(bench);
  const Product between = short_product(model, shapes, profile.flops_per_s);
  Chain chain(bench, between, profile.task_overhead_s);
  profile.links = measure_links(bench, chain, shapes.groups, key.ranks_per_node, sizes.block_bytes,
                                sizes.stream_bytes);
  profile.waits = measure_waits(bench, between, shapes.groups, key.ranks_per_node);
  profile.copies = measure_copies(bench, sizes.copy_bytes);
  if (shapes.scratch) measure_disk(bench, *shapes.scratch, sizes.copy_bytes, profile.copies);
}

/// Measures whatever works alone, once.
hardware::Profile measure_once(Bench& bench, const hardware::ProfileKey& key,
                               const model::Config& model, const Shapes& shapes, const Sizes& sizes,
                               const Chosen& chosen, bool first) {
  hardware::Profile profile;
  {
    const device::BoundThread bound = bench.bound();
    measure_rates(bench, model, profile);
    if (device::on_device())
      profile.host_updates_per_s = measure_host_updates(bench, model).value_or(0.0);
    if (first) announce(bench, chosen, profile, shapes.longest_s);
    profile.operators = measure_operators(bench, model, chosen.items, profile);
  }
  measure_transfers(bench, key, model, shapes, sizes, profile);
  return profile;
}

/// Measures in rounds: what slows a machine for a second or two is in one of them only. Long rounds
/// average by themselves.
hardware::Profile measure_rounds(Bench& bench, const hardware::ProfileKey& key,
                                 const model::Config& model, const Shapes& shapes,
                                 const Sizes& sizes, const Chosen& chosen) {
  constexpr int most_rounds = 3;
  constexpr double enough_s = 10.0;
  std::vector<hardware::Profile> rounds;
  std::array<double, 1> taken_s{};
  const double begin_s = now_s();
  while (std::ssize(rounds) < most_rounds && taken_s[0] < enough_s) {
    rounds.push_back(measure_once(bench, key, model, shapes, sizes, chosen, rounds.empty()));
    taken_s[0] = now_s() - begin_s;
    bench.world().all_reduce(taken_s, comm::Reduction::max);
    const hardware::Profile& last = rounds.back();
    bench.report(fmt::format("round {}: {}FLOP/s, {}/s, {} operators, {} links, {} copies",
                             rounds.size(), format_count(last.flops_per_s),
                             format_bytes(last.bytes_per_s), last.operators.size(),
                             last.links.size(), last.copies.size()));
  }
  return hardware::medians(rounds);
}

void find_slow_pairs(Bench& bench, hardware::Profile& profile) {
  profile.hosts = hosts(bench.world(), profile.key.ranks_per_node);
  profile.slow_pairs.clear();
  if (profile.hosts.empty()) return;
  profile.slow_pairs = measure_slow_pairs(bench, profile.key.ranks_per_node);
  bench.report(fmt::format("{} between {} nodes",
                           counted(std::int64_t(profile.slow_pairs.size()), "slow link"),
                           profile.hosts.size()));
}

hardware::Profile measure_here(comm::Communicator& world, const hardware::ProfileKey& key,
                               const hardware::Cluster& cluster, const model::Config& model,
                               const Shapes& shapes) {
  const std::string measured_by = origin(world);  // before there is work of its own
  const kernels::Runtime runtime(key.threads_per_rank);
  Bench bench(world, key.ranks_per_node, key.threads_per_rank);
  const Sizes sizes = transfer_sizes(model, shapes);
  const Limits limits{.memory_bytes = cluster.groups[0].memory_bytes,
                      .rank_bytes = rank_bytes(bench)};
  Chosen chosen;
  comm::together(world, [&] { chosen = choose_operators(model, shapes, limits); });
  hardware::Profile profile = measure_rounds(bench, key, model, shapes, sizes, chosen);
  profile.key = key;
  profile.origin = measured_by;
  profile.generation = shapes.splits.empty() && !shapes.passes.empty();
  find_slow_pairs(bench, profile);
  leave_out_slow_pairs(profile, int(profile.hosts.size()));
  profile.interference = interference(bench, key, model, shapes, sizes, profile.flops_per_s);
  bench.report("interference");
  // When all has worked once.
  profile.reserved_bytes = measure_reserved(bench, key.ranks_per_node, sizes.block_bytes);

  // All ranks plan with the same numbers, bit by bit.
  const std::string text = comm::broadcast(world, hardware::profile_schema().write(profile), 0);
  return hardware::profile_schema().read(deck::Document::parse(text, "measured profile"));
}

/// What libraries keep on a device for a thread goes with it: training finds it free.
hardware::Profile on_own_thread(comm::Communicator& world, int ranks_per_node,
                                const std::function<hardware::Profile()>& body) {
  std::promise<hardware::Profile> profile;
  std::thread([&] {
    try {
      device::use_device(world.rank() % ranks_per_node, world.size());
      profile.set_value(body());
    } catch (...) {
      profile.set_exception(std::current_exception());
    }
  }).join();
  return profile.get_future().get();
}

}  // namespace

hardware::Profile measure(comm::Communicator& world, const hardware::ProfileKey& key,
                          const hardware::Cluster& cluster, const model::Config& model,
                          const Shapes& shapes) {
  return on_own_thread(world, key.ranks_per_node,
                       [&] { return measure_here(world, key, cluster, model, shapes); });
}

std::vector<std::string> hosts(comm::Communicator& world, int ranks_per_node) {
  const std::vector<std::string> all = world.gather(host_name());
  std::array<double, 2> least_and_most{-double(ranks_per_node), double(ranks_per_node)};
  world.all_reduce(least_and_most, comm::Reduction::max);
  const int nodes = world.size() / ranks_per_node;
  std::vector<std::string> first;
  if (nodes < 3 || -least_and_most[0] < least_and_most[1]) return first;
  for (int node = 0; node < nodes; ++node)
    first.push_back(all[std::size_t(node) * std::size_t(ranks_per_node)]);
  return first;
}

void measure_slow_pairs(comm::Communicator& world, hardware::Profile& profile) {
  const kernels::Runtime runtime(profile.key.threads_per_rank);
  profile = on_own_thread(world, profile.key.ranks_per_node, [&] {
    Bench bench(world, profile.key.ranks_per_node, profile.key.threads_per_rank);
    hardware::Profile anew = profile;
    find_slow_pairs(bench, anew);
    return anew;
  });
}

}  // namespace brume::profiler
