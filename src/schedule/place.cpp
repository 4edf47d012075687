#include "schedule/place.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "schedule/pack.hpp"

namespace brume::schedule {
namespace {

constexpr std::int64_t line_bytes = 64;
constexpr std::int64_t page_bytes = 4096;  ///< what a disk reads and writes without a detour

std::int64_t slot_bytes(const Buffer& buffer, std::int64_t alignment_bytes) {
  return round_up(buffer.bytes + guard_bytes, alignment_bytes);
}

std::int64_t persistent_alignment(Tier tier) {
  return tier == Tier::disk ? page_bytes : line_bytes;
}

/// What the disk takes from host memory or brings there begins at pages, as on the disk itself.
bool uses_disk(const Program& program) {
  return std::ranges::any_of(program.tasks,
                             [](const Task& task) { return task.channel == Channel::disk; });
}

bool computes(const Task& task) { return task.channel == Channel::compute; }

bool is_received_stream(const Program& program, const Buffer& buffer) {
  return buffer.content == Content::stream &&
         program.task(buffer.first_task).operation == Operation::recv;
}

std::vector<LastTasks> last_tasks(const Program& program) {
  std::vector<LastTasks> last(program.buffers.size());
  for (std::size_t id = 0; id < program.tasks.size(); ++id)
    for (const Operand& operand : program.tasks[id].operands) {
      LastTasks& of_buffer = last[std::size_t(operand.buffer)];
      (computes(program.tasks[id]) ? of_buffer.compute : of_buffer.transfer) = int(id);
    }
  return last;
}

/// Places the transient buffers `ids` behind `base`; those with the same life as one, side by side.
/// @param last  of each buffer, where they are spread
/// @return      the end of the last one
std::int64_t place_transient(Program& program, const std::vector<int>& ids,
                             const std::vector<LastTasks>& last, std::int64_t base,
                             std::int64_t alignment_bytes, Effort effort, Spread spread,
                             const Deadline& deadline, Packings& packings) {
  std::map<std::pair<int, int>, int> by_life;
  std::vector<Parcel> parcels;
  const auto parcel_of = [&](const Buffer& buffer) -> Parcel& {
    const auto [entry, fresh] =
        by_life.try_emplace({buffer.first_task, buffer.last_task}, int(parcels.size()));
    if (fresh) parcels.push_back({buffer.first_task, buffer.last_task, 0});
    return parcels[entry->second];
  };
  for (int id : ids) {
    Buffer& buffer = program.buffers[id];
    Parcel& parcel = parcel_of(buffer);
    buffer.offset = base + parcel.bytes;  // the parcel's own offset is added below
    parcel.bytes += slot_bytes(buffer, alignment_bytes);
    if (spread == Spread::none) continue;
    parcel.moves = spread == Spread::all || is_received_stream(program, buffer);
    parcel.computed = computes(program.task(buffer.first_task));
    const LastTasks& of_buffer = last[id];
    parcel.last = {std::max(parcel.last.compute, of_buffer.compute),
                   std::max(parcel.last.transfer, of_buffer.transfer)};
  }
  effort.enough_bytes = std::max<std::int64_t>(0, effort.enough_bytes - base);
  const std::int64_t bytes = packings.pack(parcels, base, effort, deadline);
  for (int id : ids) {
    Buffer& buffer = program.buffers[id];
    buffer.offset += parcel_of(buffer).offset;
  }
  return base + bytes;
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
      change[buffer.first_task] += size(buffer);
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
  for (int c = 0; c < num_channels; ++c) clock[c] = std::max(clock[c], other[c]);
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

Arenas persistent_bytes(const Program& program) {
  Arenas bytes{};
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.persistent) continue;
    std::int64_t& end = bytes[std::size_t(buffer.tier)];
    end = std::max(end, buffer.offset + slot_bytes(buffer, persistent_alignment(buffer.tier)));
  }
  return bytes;
}

void place(Program& program, const Placing& how, const Deadline& deadline, Packings* packings) {
  Packings own;
  if (!packings) packings = &own;
  const bool pages = uses_disk(program);
  const std::vector<LastTasks> last =
      how.spread == Spread::none ? std::vector<LastTasks>() : last_tasks(program);
  for (int t = 0; t < num_tiers; ++t) {
    const Tier tier = Tier(t);
    const std::int64_t alignment = tier != Tier::device && pages ? page_bytes : line_bytes;
    const std::vector<std::int64_t> live =
        live_bytes(program, tier, [](const Buffer& buffer) { return buffer.bytes; });
    program.live_peak_bytes[t] = *std::max_element(live.begin(), live.end());
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
      end += slot_bytes(buffer, persistent_alignment(tier));
    }
    end = round_up(end, transient.empty() ? 1 : alignment);
    program.arena_bytes[t] =
        place_transient(program, transient, last, end, alignment, {how.tight, how.enough[t]},
                        how.spread, deadline, *packings);
  }
}

void link(Program& program, bool overlap) {
  std::array<Bytes, num_tiers> bytes;
  std::vector<Clock> done(program.tasks.size());  ///< what is done once the task is done
  Clock last{};                                   ///< last task of each channel so far
  last.fill(-1);
  std::vector<int> needed;
  for (std::size_t id = 0; id < program.tasks.size(); ++id) {
    Task& task = program.tasks[id];
    const auto mine = std::size_t(task.channel);
    needed.clear();
    for (const Operand& operand : task.operands) {
      const Buffer& buffer = program.buffer(operand);
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
      for (int c = 0; c < num_channels; ++c)
        if (computes(task) != (Channel(c) == Channel::compute) && last[c] >= 0)
          needed.push_back(last[c]);
    }
    // Latest first: it usually implies the earlier ones.
    std::sort(needed.begin(), needed.end(), std::greater<>());
    Clock clock;
    clock.fill(-1);
    if (last[mine] >= 0) clock = done[last[mine]];
    task.waits.clear();
    for (int other : needed) {
      const auto channel = std::size_t(program.task(other).channel);
      if (std::size_t(other) == id || clock[channel] >= other) continue;
      task.waits.push_back(other);
      merge(clock, done[other]);
    }
    clock[mine] = int(id);
    done[id] = clock;
    last[mine] = int(id);
  }
}

}  // namespace brume::schedule
