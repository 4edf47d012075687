#include "transfers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "device/scratch_file.hpp"

namespace brume::profiler {

using hardware::CopyKind, hardware::LinkKind;

namespace {

constexpr std::int64_t most_link_bytes = std::int64_t{64} << 20;
constexpr std::int64_t most_copy_bytes = std::int64_t{32} << 20;

/// `count` sizes from `least` to `most`, each the same factor larger than the one before.
std::vector<std::int64_t> sizes(std::int64_t least, std::int64_t most, int count) {
  if (most <= least) return {most};
  std::vector<std::int64_t> all;
  for (int i = 0; i < count; ++i)
    all.push_back(
        std::llround(double(least) * std::pow(double(most) / double(least), i / (count - 1.0))));
  return all;
}

/// Elements of about `bytes` that cut into `parts` equal parts.
std::int64_t elements_of(std::int64_t bytes, int parts) {
  return round_up(ceil_div(bytes, sizeof(float)), parts);
}

/// Measures one kind of link at several sizes: `call` gets the values to transfer.
///
/// @param chain  null: in a loop by itself only
template <typename Call>
void measure_sizes(Bench& bench, Chain* chain, LinkKind kind, const Group& at, int parts,
                   const std::vector<std::int64_t>& bytes, Operands& operands, Call call,
                   std::vector<hardware::LinkRow>& rows) {
  for (std::int64_t size : bytes) {
    const std::int64_t elements = elements_of(size, parts);
    const std::string name = fmt::format("{} of {} x {} ranks, {} bytes", hardware::name(kind),
                                         at.nodes, at.ranks_per_node, elements * 4);
    const std::int64_t turns = ceil_div(bench.turn_bytes(), size), row_bytes = elements * 4;
    std::span<float> values;
    const auto prepare = [&] {
      operands.restart();
      values = operands.zeros(turns * elements);  // sums of zeros stay finite however often made
    };
    if (!bench.prepared(name, prepare)) continue;
    const Work transfer = [&, turn = std::int64_t{0}]() mutable {
      call(*at.group, values.subspan(std::size_t(turn * elements), std::size_t(elements)));
      turn = (turn + 1) % turns;
    };
    const Work mine = at.group ? with_peers(name, transfer) : Work();
    auto time_s = bench.seconds(name, mine);
    if (time_s && chain) time_s = chain->seconds(name, mine, *time_s);
    if (time_s) rows.push_back({kind, at.nodes, at.ranks_per_node, row_bytes, *time_s});
  }
}

void measure_collectives(Bench& bench, Chain& chain, const Group& at, std::int64_t block_bytes,
                         Operands& operands, std::vector<hardware::LinkRow>& rows) {
  using comm::Communicator;
  const auto bytes = sizes(4096, std::min(block_bytes, most_link_bytes), 5);
  const int ranks = at.nodes * at.ranks_per_node;
  measure_sizes(
      bench, &chain, LinkKind::all_reduce, at, ranks, bytes, operands,
      [](Communicator& group, std::span<float> values) { group.all_reduce(values); }, rows);
  measure_sizes(
      bench, &chain, LinkKind::reduce_scatter, at, ranks, bytes, operands,
      [](Communicator& group, std::span<float> values) { group.reduce_scatter(values); }, rows);
  measure_sizes(
      bench, &chain, LinkKind::all_gather, at, ranks, bytes, operands,
      [](Communicator& group, std::span<float> values) { group.all_gather(values); }, rows);
}

/// Messages to and fro between the two ranks of each pair; a row is one way.
void measure_messages(Bench& bench, const Group& pair, std::int64_t stream_bytes,
                      Operands& operands, std::vector<hardware::LinkRow>& rows) {
  const auto there_and_back = [](comm::Communicator& group, std::span<float> values) {
    if (group.rank() == 0) {
      group.send(values, 1);
      group.recv(values, 1);
    } else {
      group.recv(values, 0);
      group.send(values, 0);
    }
  };
  const std::size_t before = rows.size();
  measure_sizes(bench, nullptr, LinkKind::send, pair, 1,
                sizes(4096, std::min(stream_bytes, most_link_bytes), 4), operands, there_and_back,
                rows);
  for (std::size_t i = before; i < rows.size(); ++i) rows[i].time_s /= 2.0;
}

/// A group for the memory that ranks compute in; null where the colour is negative.
std::unique_ptr<comm::Communicator> split(comm::Communicator& world, int colour) {
  auto host = world.split(colour, world.rank());
  return host ? comm::device_group(std::move(host)) : nullptr;
}

/// Pairs of ranks with the same place on neighbouring nodes.
Group make_pair_across(comm::Communicator& world, int ranks_per_node) {
  const int nodes = world.size() / ranks_per_node;
  const int node = world.rank() / ranks_per_node, local = world.rank() % ranks_per_node;
  const bool left_over = node / 2 * 2 + 1 >= nodes;
  return {2, 1, split(world, left_over ? -1 : node / 2 * ranks_per_node + local)};
}

}  // namespace

Work with_peers(const std::string& name, const Work& transfer) {
  return [=] {
    try {
      transfer();
    } catch (const std::exception& error) {
      throw Error(Failure::network, "profile: {}: {}", name, error.what());
    }
  };
}

Group make_group(comm::Communicator& world, int ranks, int ranks_per_node) {
  const bool within = ranks <= ranks_per_node;
  if (ranks < 2 || ranks > world.size() || (!within && ranks % ranks_per_node != 0))
    return {.nodes = 0, .ranks_per_node = 0, .group = nullptr};
  const int space = within ? std::min(ranks_per_node, world.size()) : world.size();
  const int first = world.rank() / space * space;  // of the node, or of the job
  const int index = (world.rank() - first) / ranks;
  const int end = std::min(first + space, world.size());
  const bool left_over = first + (index + 1) * ranks > end;
  return {within ? 1 : ranks / ranks_per_node, within ? ranks : ranks_per_node,
          split(world, left_over ? -1 : first + index)};
}

Group make_group_across(comm::Communicator& world, int ranks_per_node) {
  const int nodes = world.size() / ranks_per_node;
  const bool left_over = world.rank() >= nodes * ranks_per_node;
  return {nodes, 1, split(world, left_over ? -1 : world.rank() % ranks_per_node)};
}

std::vector<hardware::LinkRow> measure_links(Bench& bench, Chain& chain,
                                             const std::vector<int>& groups, int ranks_per_node,
                                             std::int64_t block_bytes, std::int64_t stream_bytes) {
  std::vector<hardware::LinkRow> rows;
  Operands operands;
  for (int ranks : groups) {
    const Group group = make_group(bench.world(), ranks, ranks_per_node);
    if (group.nodes > 0) measure_collectives(bench, chain, group, block_bytes, operands, rows);
  }
  const bool several_nodes = bench.world().size() >= 2 * ranks_per_node;
  if (several_nodes && ranks_per_node > 1)
    measure_collectives(bench, chain, make_group_across(bench.world(), ranks_per_node), block_bytes,
                        operands, rows);
  if (const Group pair = make_group(bench.world(), 2, ranks_per_node); pair.nodes == 1)
    measure_messages(bench, pair, stream_bytes, operands, rows);
  if (several_nodes)
    measure_messages(bench, make_pair_across(bench.world(), ranks_per_node), stream_bytes, operands,
                     rows);
  return rows;
}

std::vector<hardware::CopyRow> measure_copies(Bench& bench, std::int64_t most_bytes) {
  std::vector<hardware::CopyRow> rows;
  Operands on_device, on_host(device::Tier::host);
  for (std::int64_t size : sizes(std::int64_t{64} << 10, std::min(most_bytes, most_copy_bytes), 4))
    for (const CopyKind kind : {CopyKind::copy_in, CopyKind::copy_out}) {
      const std::string name = fmt::format("{} of {} bytes", hardware::name(kind), size);
      std::span<float> from, to;
      const auto prepare = [&] {
        on_device.restart();
        on_host.restart();
        from = on_device.values<float>(elements_of(size, 1));
        to = on_host.values<float>(elements_of(size, 1));
        if (kind == CopyKind::copy_in) std::swap(from, to);
      };
      if (!bench.prepared(name, prepare)) continue;
      const auto bytes = std::int64_t(from.size_bytes());
      const auto time_s = bench.seconds(name, [&] { device::copy(to.data(), from.data(), bytes); });
      if (time_s) rows.push_back({kind, bytes, *time_s});
    }
  return rows;
}

namespace {

/// Makes each kind of collective, of few values and of all: NCCL connects ranks for each algorithm,
/// and takes other ones for short messages.
void sum_and_gather(comm::Communicator& group, std::span<float> few, std::span<float> all) {
  for (const std::span<float> values : {few, all}) {
    group.all_reduce(values);
    group.reduce_scatter(values);
    group.all_gather(values);
  }
}

/// Passes values on in a circle: like a stage each rank has two neighbours. For messages NCCL has
/// other buffers than for collectives.
void pass_on(comm::Communicator& group, std::span<float> values) {
  const int rank = group.rank(), ranks = group.size();
  if (ranks == 1) return;
  const auto send = [&] { group.send(values, (rank + 1) % ranks); };
  const auto receive = [&] { group.recv(values, (rank + ranks - 1) % ranks); };
  // Even ranks send first, so that nobody waits in a circle.
  rank % 2 == 0 ? send() : receive();
  rank % 2 == 0 ? receive() : send();
}

}  // namespace

std::int64_t measure_reserved(Bench& bench, int ranks_per_node, std::int64_t block_bytes) {
  // As many as a training may have: tp, dp, shards, replicas, world; and one for messages each way.
  std::array<std::unique_ptr<comm::Communicator>, 5> collectives;
  std::array<std::unique_ptr<comm::Communicator>, 2> messages;
  Operands operands;
  const bool on_device = device::on_device();
  std::array<double, 1> reserved{};
  const auto work = [&] {
    if (!on_device) return;
    const auto elements = [&](std::int64_t bytes) {
      return elements_of(std::min({bytes, block_bytes, most_link_bytes}), bench.world().size());
    };
    const std::span<float> all = operands.zeros(elements(most_link_bytes));
    const std::span<float> few = all.first(std::size_t(elements(4096)));
    for (const auto& group : collectives) sum_and_gather(*group, few, all);
    for (const auto& group : messages) pass_on(*group, few);
    device::finish();
    const device::Description device = device::describe_device();
    const int sharing = std::max<int>(1, int(ceil_div(ranks_per_node, device.on_node)));
    reserved[0] =
        double(device.memory_bytes - device.free_bytes) / sharing - double(operands.bytes());
  };
  if (on_device) {
    for (auto& group : collectives) group = split(bench.world(), 0);
    for (auto& group : messages) group = split(bench.world(), 0);
  }
  if (!bench.prepared("memory of libraries", work)) return 0;
  bench.world().all_reduce(reserved, comm::Reduction::max);
  return std::int64_t(reserved[0]);
}

void measure_disk(Bench& bench, const std::string& scratch, std::int64_t most_bytes,
                  std::vector<hardware::CopyRow>& rows) {
  Operands operands(device::Tier::host);
  for (std::int64_t size : sizes(std::int64_t{256} << 10, std::min(most_bytes, most_copy_bytes), 3))
    for (const CopyKind kind : {CopyKind::disk_write, CopyKind::disk_read}) {
      const std::string name = fmt::format("{} of {} bytes", hardware::name(kind), size);
      std::optional<device::ScratchFile> file;
      std::span<float> values;
      const auto prepare = [&] {
        operands.restart();
        values = operands.values<float>(elements_of(size, 1));
        file.emplace(scratch, std::int64_t(values.size_bytes()));
        file->write(0, std::as_bytes(values));
      };
      if (!bench.prepared(name, prepare)) continue;
      const auto time_s = bench.seconds(name, [&] {
        if (kind == CopyKind::disk_read)
          file->read(0, std::as_writable_bytes(values));
        else
          file->write(0, std::as_bytes(values));
      });
      if (time_s) rows.push_back({kind, std::int64_t(values.size_bytes()), *time_s});
    }
}

}  // namespace brume::profiler
