#include "bench.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"

namespace brume::profiler {
namespace {

constexpr double window_s = 2e-3;  ///< of a rank that has a core for itself
constexpr double most_calls = 5000.0;

/// A longer call has averaged over more by itself.
int repetitions(double call_s) { return call_s < window_s ? 5 : call_s < 0.1 ? 3 : 1; }

/// Twice a rank's share of the caches, as far as that is worth its time to fill.
std::int64_t bytes_beyond_caches(int ranks_per_node) {
  constexpr std::int64_t least = 8 << 20, most = 128 << 20;
  if (device::on_device()) return most;
  return std::clamp(2 * device::this_processor().cache_bytes / ranks_per_node, least, most);
}

/// Mixes the bits of a number, cheaply and well enough for operands.
std::uint32_t scramble(std::uint32_t i) {
  i *= 0x9E3779B1u;
  return i ^ (i >> 15);
}

/// Sets values[i] = value(i % 2^20), which are generated once and copied from there on.
template <class Element, typename Value>
void repeat(std::span<Element> values, Value value) {
  if (values.empty()) return;
  std::vector<Element> pattern(std::min(values.size(), std::size_t{1} << 20));
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = value(std::uint32_t(i));
  const auto copy = [](Element* to, const Element* from, std::size_t count) {
    device::copy_now(to, from, std::int64_t(count * sizeof(Element)));
  };
  copy(values.data(), pattern.data(), pattern.size());
  for (std::size_t done = pattern.size(); done < values.size(); done *= 2)
    copy(values.data() + done, values.data(), std::min(done, values.size() - done));
}

}  // namespace

Bench::Bench(comm::Communicator& world, int ranks_per_node, int threads)
    : world_(world),
      threads_(threads),
      first_core_(device::first_core(ranks_per_node, world.rank() % ranks_per_node)),
      turn_bytes_(bytes_beyond_caches(ranks_per_node)),
      node_(world.split(world.rank() / ranks_per_node, world.rank())),
      stream_(device::make_stream()) {
  if (stream_) stream_->bind();
}

void Bench::compute_here() const {
  if (first_core_ >= 0) device::bind_this_thread(first_core_, threads_);
  kernels::use_threads(threads_);
}

void Bench::report(const std::string& what) {
  const double taken_s = now_s() - std::exchange(reported_s_, now_s());
  if (world_.rank() == 0) log::info("profile: {} in {}", what, format_seconds(taken_s));
}

bool Bench::attempt(const std::string& name, const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    if (error.failure() == Failure::network) throw;
    log::warn("profile: {} on rank {}: {}", name, world_.rank(), error.what());
  } catch (const std::exception& error) {
    log::warn("profile: {} on rank {}: {}", name, world_.rank(), error.what());
  }
  return false;
}

bool Bench::all(bool mine) {
  std::array<double, 1> fine{mine ? 1.0 : 0.0};
  world_.all_reduce(fine, comm::Reduction::min);
  return fine[0] > 0.0;
}

bool Bench::prepared(const std::string& name, const Work& prepare) {
  return all(attempt(name, prepare));
}

void Bench::agree(double start_s, std::span<double> ends_s) {
  std::vector<double> moments_s(ends_s.begin(), ends_s.end());
  moments_s.push_back(-start_s);  // its maximum is the earliest start
  node_->all_reduce(moments_s, comm::Reduction::max);
  for (std::size_t i = 0; i < ends_s.size(); ++i) ends_s[i] = moments_s[i] + moments_s.back();
  world_.all_reduce(ends_s, comm::Reduction::max);
}

std::optional<double> Bench::seconds(const std::string& name, const Work& work) {
  bool fine = true;
  const auto loop = [&](int calls) {
    for (int i = 0; work && i < calls && fine; ++i) fine = attempt(name, work);
    if (work && fine) fine = attempt(name, device::finish);
  };
  loop(1);
  world_.barrier();
  const double before_s = now_s();
  loop(1);
  // The fastest rank did not wait for a core; those that look on do not count.
  const double once_s = work ? now_s() - before_s : std::numeric_limits<double>::infinity();
  std::array<double, 2> agreed{once_s, fine ? 1.0 : 0.0};
  world_.all_reduce(agreed, comm::Reduction::min);
  if (agreed[1] == 0.0) return std::nullopt;
  const int calls = int(std::clamp(std::ceil(window_s / agreed[0]), 1.0, most_calls));

  std::vector<double> times_s;
  for (int i = 0; i < repetitions(agreed[0]); ++i) {
    world_.barrier();
    const double start_s = now_s();
    loop(calls);
    std::array<double, 1> end{now_s()};
    agree(start_s, end);
    times_s.push_back(end[0] / calls);
  }
  return all(fine) ? std::optional(median(times_s)) : std::nullopt;
}

Operands Operands::counted() {
  Operands operands;
  operands.counts_only_ = true;
  return operands;
}

template <class Element>
std::span<Element> Operands::take(std::int64_t count) {
  const std::int64_t bytes = std::max<std::int64_t>(count, 1) * std::int64_t(sizeof(Element));
  bytes_ += bytes;
  if (counts_only_) return {};
  if (next_ == slots_.size()) slots_.emplace_back();
  device::Memory& slot = slots_[next_++];
  if (slot.bytes() < bytes) {
    slot = {};  // the old block first: both need not fit at once
    slot = device::Memory(bytes, tier_);
  }
  return {reinterpret_cast<Element*>(slot.data()), std::size_t(count)};
}

template <class Storage>
std::span<Storage> Operands::values(std::int64_t count) {
  const std::span<Storage> values = take<Storage>(count);
  repeat(values, [](std::uint32_t i) { return float(std::int32_t(scramble(i))) * 0x1p-31f; });
  return values;
}

template std::span<float> Operands::values<float>(std::int64_t);
template std::span<bfloat16> Operands::values<bfloat16>(std::int64_t);
template std::span<float16> Operands::values<float16>(std::int64_t);

std::span<float> Operands::zeros(std::int64_t count) {
  const std::span<float> values = take<float>(count);
  repeat(values, [](std::uint32_t) { return 0.0f; });
  return values;
}

template <class Element>
std::span<Element> Operands::copy_of(std::span<const Element> values) {
  const std::span<Element> copy = take<Element>(std::int64_t(values.size()));
  if (!copy.empty())
    device::copy_now(copy.data(), values.data(), std::int64_t(values.size_bytes()));
  return copy;
}
template std::span<float> Operands::copy_of(std::span<const float>);
template std::span<std::int32_t> Operands::copy_of(std::span<const std::int32_t>);

std::span<std::int32_t> Operands::tokens(std::int64_t count, std::int64_t below) {
  const std::span<std::int32_t> values = take<std::int32_t>(count);
  repeat(values,
         [below](std::uint32_t i) { return std::int32_t(scramble(i) % std::uint64_t(below)); });
  return values;
}

}  // namespace brume::profiler
