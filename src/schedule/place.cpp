#include "schedule/place.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace brume::schedule {
namespace {

constexpr std::int64_t alignment_bytes = 64;

std::int64_t slot_bytes(const Buffer& buffer) {
  return round_up(buffer.bytes + guard_bytes, alignment_bytes);
}

/// Transient buffers with the same life: placed as one, side by side.
struct Bundle {
  int first_task, last_task;
  std::int64_t bytes;
  std::int64_t offset;
  std::int64_t crowd;  ///< most bytes that live at once during its life

  bool meets(const Bundle& other) const {
    return first_task <= other.last_task && other.first_task <= last_task;
  }
  std::int64_t end() const { return offset + bytes; }
};

using Order = std::vector<int>;  ///< of bundles

/// Gives each bundle the lowest offset that is free during its whole life, in the given order.
/// @return the end of the last one
std::int64_t first_fit(std::vector<Bundle>& bundles, const Order& order, std::int64_t base) {
  std::vector<const Bundle*> placed;  // by offset
  placed.reserve(bundles.size());
  std::int64_t end = base;
  for (int id : order) {
    Bundle& bundle = bundles[std::size_t(id)];
    bundle.offset = base;
    for (const Bundle* other : placed) {
      if (!bundle.meets(*other)) continue;
      if (other->offset >= bundle.end()) break;
      bundle.offset = std::max(bundle.offset, other->end());
    }
    end = std::max(end, bundle.end());
    placed.insert(std::ranges::upper_bound(placed, bundle.offset, {}, &Bundle::offset), &bundle);
  }
  return end;
}

/// The shortest placement found so far, and the order that gave it.
struct Best {
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
  Order order;
  std::vector<Bundle> bundles;

  void offer(std::int64_t other_end, const Order& other, const std::vector<Bundle>& placed) {
    if (other_end >= end) return;
    end = other_end, order = other, bundles = placed;
  }
};

/// Tries the orders that are good for different kinds of plans, then changes the best of them.
/// Stops when there is nothing left to win.
Best place_bundles(std::vector<Bundle> bundles, std::int64_t base, std::int64_t live_bytes) {
  constexpr std::int64_t most_tries = 4000, most_work = 30'000'000;
  const auto good = [&](const Best& best) {
    return double(best.end) <= 1.005 * double(live_bytes);
  };
  using Key = std::pair<std::int64_t, std::int64_t>;
  using KeyOf = Key (*)(const Bundle&);
  // First what lives where memory is most crowded.
  const KeyOf keys[] = {
      [](const Bundle& b) { return Key(b.crowd, b.bytes); },
      [](const Bundle& b) { return Key(b.crowd, -b.first_task); },
      [](const Bundle& b) { return Key(b.crowd, b.last_task - b.first_task); },
      [](const Bundle& b) { return Key(b.bytes, 0); },
      [](const Bundle& b) { return Key(b.bytes * (b.last_task - b.first_task + 1), 0); },
      [](const Bundle& b) { return Key(b.last_task - b.first_task, 0); },
  };
  Best best;
  Order order(bundles.size());
  std::iota(order.begin(), order.end(), 0);
  for (const KeyOf key : keys) {
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](int id) { return key(bundles[std::size_t(id)]); });
    best.offer(first_fit(bundles, order, base), order, bundles);
    if (good(best)) return best;
  }
  // Then again and again the bundle that ends last chooses earlier.
  std::mt19937 random(1);
  const auto count = std::int64_t(bundles.size());
  const std::int64_t tries = std::min(most_tries, most_work / (count * count));
  order = best.order;
  bundles = best.bundles;
  for (std::int64_t i = 0; i < tries && !good(best); ++i) {
    const auto last =
        std::ranges::max_element(order, {}, [&](int id) { return bundles[std::size_t(id)].end(); });
    const auto position = std::uint64_t(last - order.begin());
    std::rotate(order.begin() + std::ptrdiff_t(random() % (position + 1)), last, last + 1);
    best.offer(first_fit(bundles, order, base), order, bundles);
  }
  return best;
}

/// Places the transient buffers `ids` behind `base`. @return the end of the last one
std::int64_t place_transient(std::vector<Buffer>& buffers, const std::vector<int>& ids,
                             std::int64_t base, const std::vector<std::int64_t>& live) {
  if (ids.empty()) return base;
  const std::int64_t live_bytes = *std::max_element(live.begin(), live.end());
  std::map<std::pair<int, int>, int> by_life;
  std::vector<Bundle> bundles;
  for (int id : ids) {
    Buffer& buffer = buffers[std::size_t(id)];
    const auto [entry, fresh] =
        by_life.try_emplace({buffer.first_task, buffer.last_task}, int(bundles.size()));
    if (fresh)
      bundles.push_back({buffer.first_task, buffer.last_task, 0, 0,
                         *std::max_element(live.begin() + buffer.first_task,
                                           live.begin() + buffer.last_task + 1)});
    Bundle& bundle = bundles[std::size_t(entry->second)];
    buffer.offset = bundle.bytes;  // within the bundle, until the bundle has its own
    bundle.bytes += slot_bytes(buffer);
  }
  const Best best = place_bundles(std::move(bundles), base, live_bytes);
  for (int id : ids) {
    Buffer& buffer = buffers[std::size_t(id)];
    const int bundle = by_life.at({buffer.first_task, buffer.last_task});
    buffer.offset += best.bundles[std::size_t(bundle)].offset;
  }
  return best.end;
}

/// Sum at each task of what the live buffers of one tier take, by `size`.
template <typename Size>
std::vector<std::int64_t> live_bytes(const Program& program, Tier tier, Size&& size) {
  std::vector<std::int64_t> change(program.tasks.size() + 1, 0);
  std::int64_t always = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.tier != tier) continue;
    if (buffer.persistent) {
      always += size(buffer);
    } else if (buffer.first_task >= 0) {
      change[std::size_t(buffer.first_task)] += size(buffer);
      change[std::size_t(buffer.last_task) + 1] -= size(buffer);
    }
  }
  change[0] += always;
  std::partial_sum(change.begin(), change.end(), change.begin());
  change.resize(std::max<std::size_t>(1, program.tasks.size()));
  return change;
}

// --- link
// -----------------------------------------------------------------------------------------

/// Who touched a range of bytes: the last writer, and since then the last reader on each channel.
struct Touched {
  std::int64_t end;
  int writer = -1;
  std::array<int, num_channels> readers;
};

/// The bytes of one tier, cut where accesses begin and end.
class Bytes {
 public:
  /// Calls `visit` with the record of each part of [first, end), which it may change.
  template <typename Visit>
  void touch(std::int64_t first, std::int64_t end, Visit&& visit) {
    split(first);
    split(end);
    auto at = parts_.lower_bound(first);
    while (first < end) {
      if (at == parts_.end() || at->first > first) {  // never touched so far
        const std::int64_t gap_end = at == parts_.end() ? end : std::min(end, at->first);
        Touched fresh{.end = gap_end, .readers = {}};
        fresh.readers.fill(-1);
        at = parts_.emplace_hint(at, first, fresh);
      }
      visit(at->second);
      first = at->second.end;
      ++at;
    }
  }

 private:
  void split(std::int64_t where) {
    auto after = parts_.upper_bound(where);
    if (after == parts_.begin()) return;
    auto part = std::prev(after);
    if (part->first == where || part->second.end <= where) return;
    Touched tail = part->second;
    part->second.end = where;
    parts_.emplace_hint(after, where, tail);
  }
  std::map<std::int64_t, Touched> parts_;  ///< by first byte
};

/// For each channel the last task known to be done.
using Clock = std::array<int, num_channels>;

void merge(Clock& clock, const Clock& other) {
  for (int c = 0; c < num_channels; ++c)
    clock[std::size_t(c)] = std::max(clock[std::size_t(c)], other[std::size_t(c)]);
}

}  // namespace

std::pair<std::int64_t, std::int64_t> touched_bytes(const Buffer& buffer, const Operand& operand,
                                                    int task) {
  if (!buffer.persistent && buffer.first_task == task)
    return {buffer.offset, buffer.offset + buffer.bytes + guard_bytes};
  const std::int64_t first = buffer.offset + operand.first_byte;
  const bool reaches_end = operand.first_byte + operand.bytes == buffer.bytes;
  return {first, first + operand.bytes + (reaches_end ? guard_bytes : 0)};
}

void place(Program& program) {
  for (int t = 0; t < num_tiers; ++t) {
    const Tier tier = Tier(t);
    const std::vector<std::int64_t> live =
        live_bytes(program, tier, [](const Buffer& buffer) { return buffer.bytes; });
    program.live_peak_bytes[std::size_t(t)] = *std::max_element(live.begin(), live.end());
    if (tier == Tier::device)
      for (std::size_t i = 0; i < program.tasks.size(); ++i) {
        std::int64_t& peak = program.tasks[i].backward_pass ? program.live_peak_backward_bytes
                                                            : program.live_peak_forward_bytes;
        peak = std::max(peak, live[i]);
      }

    std::int64_t end = 0;
    std::vector<int> transient;
    for (std::size_t id = 0; id < program.buffers.size(); ++id) {
      Buffer& buffer = program.buffers[id];
      if (buffer.tier != tier) continue;
      if (!buffer.persistent) {
        if (buffer.first_task >= 0) transient.push_back(int(id));
        continue;
      }
      buffer.offset = end;
      end += slot_bytes(buffer);
    }
    program.arena_bytes[std::size_t(t)] =
        place_transient(program.buffers, transient, end, live_bytes(program, tier, slot_bytes));
  }
}

void link(Program& program, bool overlap) {
  std::array<Bytes, num_tiers> bytes;
  std::vector<Clock> done(program.tasks.size());  ///< what is done once the task is done
  Clock last{};                                   ///< last task of each channel so far
  last.fill(-1);
  for (std::size_t id = 0; id < program.tasks.size(); ++id) {
    Task& task = program.tasks[id];
    const auto mine = std::size_t(task.channel);
    std::vector<int> needed;
    for (const Operand& operand : task.operands) {
      const Buffer& buffer = program.buffers[std::size_t(operand.buffer)];
      const auto [first, end] = touched_bytes(buffer, operand, int(id));
      bytes[std::size_t(buffer.tier)].touch(first, end, [&](Touched& touched) {
        if (touched.writer >= 0) needed.push_back(touched.writer);
        if (!operand.writes) {
          touched.readers[mine] = int(id);
          return;
        }
        for (int reader : touched.readers)
          if (reader >= 0) needed.push_back(reader);
        touched.readers.fill(-1);
        touched.writer = int(id);
      });
    }
    if (!overlap) {
      const bool computes = task.channel == Channel::compute;
      for (int c = 0; c < num_channels; ++c)
        if (computes != (Channel(c) == Channel::compute) && last[std::size_t(c)] >= 0)
          needed.push_back(last[std::size_t(c)]);
    }
    // Latest first: it usually implies the earlier ones.
    std::sort(needed.begin(), needed.end(), std::greater<>());
    Clock clock;
    clock.fill(-1);
    if (last[mine] >= 0) clock = done[std::size_t(last[mine])];
    task.waits.clear();
    for (int other : needed) {
      const auto channel = std::size_t(program.tasks[std::size_t(other)].channel);
      if (std::size_t(other) == id || clock[channel] >= other) continue;
      task.waits.push_back(other);
      merge(clock, done[std::size_t(other)]);
    }
    clock[mine] = int(id);
    done[id] = clock;
    last[mine] = int(id);
  }
}

}  // namespace brume::schedule
