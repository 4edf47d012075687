#include "schedule/pack.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "skyline.hpp"
#include "spread.hpp"
#include "taken.hpp"

namespace brume::schedule {
namespace {

// Steps of a nanosecond or a few: the bounds on effort.
constexpr std::int64_t most_skyline_steps = 60'000'000, most_climb_steps = 60'000'000;
constexpr std::size_t most_known_parcels = 4'000'000;  ///< a hundred megabytes
constexpr std::int64_t worth_bytes = 64 << 10;         ///< fewer are not worth any effort
constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

using Order = std::vector<int>;  ///< of parcels
using Offsets = std::vector<std::int64_t>;

/// Parcels, who meets whom, and the best offsets so far.
class Packer {
 public:
  Packer(std::span<const Parcel> parcels, std::int64_t beside_bytes, const Deadline& deadline);

  bool done() const { return best_end_ <= good_end_; }
  /// Such an end is good, too.
  void accept(std::int64_t end) { good_end_ = std::max(good_end_, end); }
  const Offsets& best() const { return best_; }
  std::int64_t best_end() const { return best_end_; }
  void try_orders();
  void try_skylines();
  void climb();

 private:
  const Parcel& at(int id) const { return parcels_[id]; }
  std::int64_t end(int id) const { return offset_[id] + at(id).bytes; }
  std::span<const int> neighbours(int id) const {
    const std::size_t first = first_[id];
    return std::span(meets_).subspan(first, first_[std::size_t(id) + 1] - first);
  }
  std::size_t count_meetings() const;
  void find_neighbours();
  void take(int id, std::int64_t offset);
  std::int64_t free_among_neighbours(int id);
  void choose(int id);
  void begin_fit(const Order& order, std::size_t from);
  void try_order(const Order& order);
  std::int64_t first_fit(const Order& order, std::size_t from, std::int64_t most_over);
  std::vector<int> blamed() const;
  Order by_offset() const;

  std::span<const Parcel> parcels_;
  const Deadline& deadline_;
  std::vector<int> meets_;           ///< neighbours of all parcels, one after the other; if needed
  std::vector<std::size_t> first_;   ///< where each one's begin
  std::vector<std::int64_t> crowd_;  ///< [parcel] most bytes that live at once during its life
  std::int64_t good_end_ = 0;        ///< nothing left to win
  Offsets offset_;                   ///< -1: not placed
  bool crowded_ = false;             ///< most parcels meet so many that it is faster to look at all
  Taken taken_;                      ///< by all that are placed, where crowded
  /// Else where each that the next one meets begins and ends.
  std::vector<std::pair<std::int64_t, std::int64_t>> met_;
  std::int64_t steps_ = 0;  ///< of first fit
  std::int64_t best_end_ = unlimited;
  Offsets best_;
};

Packer::Packer(std::span<const Parcel> parcels, std::int64_t beside_bytes, const Deadline& deadline)
    : parcels_(parcels), deadline_(deadline), offset_(parcels.size(), -1) {
  const int tasks = std::ranges::max_element(parcels, {}, &Parcel::last_task)->last_task + 1;
  std::vector<std::int64_t> live(std::size_t(tasks) + 1, 0);
  for (const Parcel& p : parcels) {
    live[p.first_task] += p.bytes;
    live[std::size_t(p.last_task) + 1] -= p.bytes;
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  const Largest largest(live);
  for (const Parcel& p : parcels) crowd_.push_back(largest.within(p.first_task, p.last_task));
  const std::int64_t live_bytes = *std::ranges::max_element(live);
  good_end_ =
      live_bytes + std::max(worth_bytes, std::int64_t(0.005 * double(live_bytes + beside_bytes)));
  constexpr std::size_t sorting = 40;  // to sort one takes as long as to look at so many
  crowded_ = parcels.size() * parcels.size() < sorting * count_meetings();
  if (!crowded_) find_neighbours();
}

/// The sum over all parcels of the number of others that they meet.
std::size_t Packer::count_meetings() const {
  std::vector<int> ends;
  for (const Parcel& p : parcels_) ends.push_back(p.last_task);
  std::ranges::sort(ends);
  std::size_t apart = 0;  // pairs
  for (const Parcel& p : parcels_)
    apart += std::size_t(std::ranges::lower_bound(ends, p.first_task) - ends.begin());
  return parcels_.size() * (parcels_.size() - 1) - 2 * apart;
}

void Packer::find_neighbours() {
  Order by_first(parcels_.size());
  std::iota(by_first.begin(), by_first.end(), 0);
  std::ranges::stable_sort(by_first, {}, [&](int id) { return at(id).first_task; });
  std::vector<int> alive;
  const auto each_pair = [&](auto&& body) {
    alive.clear();
    for (int id : by_first) {
      deadline_.check();
      std::erase_if(alive, [&](int other) { return at(other).last_task < at(id).first_task; });
      for (int other : alive) body(std::size_t(id), std::size_t(other));
      alive.push_back(id);
    }
  };
  first_.assign(parcels_.size() + 1, 0);
  each_pair([&](std::size_t id, std::size_t other) { ++first_[id + 1], ++first_[other + 1]; });
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  meets_.resize(first_.back());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  each_pair([&](std::size_t id, std::size_t other) {
    meets_[next[id]++] = int(other);
    meets_[next[other]++] = int(id);
  });
}

/// The same, from those alone that it meets.
std::int64_t Packer::free_among_neighbours(int id) {
  met_.clear();
  for (int other : neighbours(id))
    if (const std::int64_t begin = offset_[other]; begin >= 0) met_.emplace_back(begin, end(other));
  steps_ += std::int64_t(neighbours(id).size() + 4 * met_.size());
  std::ranges::sort(met_);
  std::int64_t free = 0;
  for (const auto& [begin, end] : met_) {
    if (begin >= free + at(id).bytes) break;
    free = std::max(free, end);
    ++steps_;
  }
  return free;
}

void Packer::take(int id, std::int64_t offset) {
  offset_[id] = offset;
  if (crowded_) taken_.add(offset, at(id));
}

void Packer::choose(int id) {
  deadline_.check();
  take(id, crowded_ ? taken_.first_free(at(id), steps_) : free_among_neighbours(id));
}

/// Forgets the places of parcels from position `from` on.
void Packer::begin_fit(const Order& order, std::size_t from) {
  taken_.clear();
  for (std::size_t i = 0; i < from; ++i) take(order[i], offset_[order[i]]);
  for (std::size_t i = from; i < order.size(); ++i) offset_[order[i]] = -1;
}

/// Places all parcels in an order; gives up at the best end so far.
void Packer::try_order(const Order& order) {
  begin_fit(order, 0);
  std::int64_t top = 0;
  for (const int id : order) {
    choose(id);
    top = std::max(top, end(id));
    if (top >= best_end_) return;
  }
  best_end_ = top;
  best_ = offset_;
}

/// Places parcels from position `from` on once more.
/// @return how far parcels end above the good end, summed; gives up above `most_over`
std::int64_t Packer::first_fit(const Order& order, std::size_t from, std::int64_t most_over) {
  begin_fit(order, from);
  std::int64_t over = 0, top = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i >= from) choose(order[i]);
    top = std::max(top, end(order[i]));
    over += std::max<std::int64_t>(0, end(order[i]) - good_end_);
    if (over > most_over) return over;
  }
  if (top < best_end_) {
    best_end_ = top;
    best_ = offset_;
  }
  return over;
}

/// Orders that are good for different kinds of plans: first what lives where memory is most
/// crowded.
void Packer::try_orders() {
  using Key = std::pair<std::int64_t, std::int64_t>;
  const auto length = [&](int id) { return at(id).last_task - at(id).first_task; };
  const auto crowd = [&](int id) { return crowd_[id]; };
  const std::function<Key(int)> keys[] = {
      [&](int id) { return Key(crowd(id), at(id).bytes); },
      [&](int id) { return Key(crowd(id), -at(id).first_task); },
      [&](int id) { return Key(crowd(id), length(id)); },
      [&](int id) { return Key(at(id).bytes, 0); },
      [&](int id) { return Key(at(id).bytes * (length(id) + 1), 0); },
      [&](int id) { return Key(length(id), 0); },
  };
  Order order(parcels_.size());
  std::iota(order.begin(), order.end(), 0);
  for (const auto& key : keys) {
    std::ranges::stable_sort(order, std::greater<>(), key);
    try_order(order);
    if (done()) return;
  }
}

/// Skylines of many tastes; what comes out is pressed down by first fit.
void Packer::try_skylines() {
  std::mt19937 random(1);
  const auto up_to = [&](double most) { return most * double(random()) / double(random.max()); };
  Skyline skyline(parcels_);
  while (!done() && skyline.steps() < most_skyline_steps) {
    deadline_.check();
    Taste taste{.length = up_to(2.0),
                .bytes = up_to(1.0),
                .aligned = up_to(2.0),
                .late = up_to(2.0) - 1.0,
                .noise = std::vector<double>(parcels_.size())};
    const double noise = up_to(0.5);
    for (double& of_one : taste.noise) of_one = up_to(noise);
    auto offsets = skyline.build(taste, best_end_ - 1);
    if (!offsets) continue;
    offset_ = *std::move(offsets);
    try_order(by_offset());
  }
}

Order Packer::by_offset() const {
  Order order(parcels_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int id) { return offset_[id]; });
  return order;
}

/// Those that end above the good end, and what they stand on.
std::vector<int> Packer::blamed() const {
  std::vector<int> found;
  std::vector<char> seen(parcels_.size(), 0);
  const auto add = [&](int id) {
    if (!std::exchange(seen[id], 1)) found.push_back(id);
  };
  for (int id = 0; id < int(parcels_.size()); ++id)
    if (end(id) > good_end_) add(id);
  for (std::size_t i = 0; i < found.size(); ++i)
    for (int other : neighbours(found[i]))
      if (end(other) == offset_[found[i]]) add(other);
  return found;
}

/// Again and again one of those to blame chooses at another turn; what does not get worse is kept.
void Packer::climb() {
  std::mt19937 random(1);
  if (crowded_) find_neighbours();
  offset_ = best_;
  Order order = by_offset();
  std::int64_t over = first_fit(order, 0, unlimited);
  std::vector<int> chain = blamed();
  for (steps_ = 0; !done() && steps_ < most_climb_steps;) {
    const auto position = std::ranges::find(order, chain[random() % chain.size()]) - order.begin();
    const auto target =
        random() % 2 == 0
            ? std::ptrdiff_t(random() % std::uint64_t(position + 1))
            : std::ranges::find(order, chain[random() % chain.size()]) - order.begin();
    steps_ += std::int64_t(order.size());
    if (target == position) continue;
    Order other = order;
    const auto begin = other.begin();
    if (target < position)
      std::rotate(begin + target, begin + position, begin + position + 1);
    else
      std::rotate(begin + position, begin + position + 1, begin + target + 1);
    Offsets before = offset_;
    const auto from = std::size_t(std::min(position, target));
    if (const std::int64_t now = first_fit(other, from, over); now <= over) {
      over = now;
      order = std::move(other);
      chain = blamed();
    } else {
      offset_ = std::move(before);
    }
  }
}

}  // namespace

std::int64_t pack(std::span<Parcel> parcels, std::int64_t beside_bytes, Effort effort,
                  const Deadline& deadline) {
  if (parcels.empty()) return 0;
  Packer packer(parcels, beside_bytes, deadline);
  packer.accept(effort.enough_bytes);
  packer.try_orders();
  if (effort.tight && !packer.done()) packer.try_skylines();
  if (effort.tight && !packer.done()) packer.climb();
  for (std::size_t i = 0; i < parcels.size(); ++i) parcels[i].offset = packer.best()[i];
  if (std::ranges::any_of(parcels, &Parcel::moves)) spread(parcels, packer.best_end(), deadline);
  return packer.best_end();
}

bool Packings::Known::is_of(std::span<const Parcel> others, std::int64_t beside,
                            Effort wanted) const {
  return beside_bytes == beside && effort == wanted &&
         std::ranges::equal(parcels, others, &Parcel::is_like);
}

std::int64_t Packings::pack(std::span<Parcel> parcels, std::int64_t beside_bytes, Effort effort,
                            const Deadline& deadline) {
  if (effort.tight && effort.enough_bytes > 0) {
    Effort first_fit = effort;
    first_fit.tight = false;
    const std::int64_t end = pack(parcels, beside_bytes, first_fit, deadline);
    if (end <= effort.enough_bytes) return end;
  }
  std::size_t hash = 0;
  for (const Parcel& p : parcels)
    for (const std::int64_t number :
         {std::int64_t{p.first_task}, std::int64_t{p.last_task}, p.bytes})
      hash = hash_with(hash, std::size_t(number));
  {
    const std::lock_guard lock(mutex_);
    for (auto [at, end] = known_.equal_range(hash); at != end; ++at)
      if (at->second.is_of(parcels, beside_bytes, effort)) {
        std::ranges::copy(at->second.parcels, parcels.begin());
        return at->second.end;
      }
  }
  const std::int64_t end = schedule::pack(parcels, beside_bytes, effort, deadline);
  const std::lock_guard lock(mutex_);
  if (num_parcels_ > most_known_parcels) {
    known_.clear();
    num_parcels_ = 0;
  }
  num_parcels_ += parcels.size();
  known_.emplace(hash, Known{beside_bytes, effort, {parcels.begin(), parcels.end()}, end});
  return end;
}

}  // namespace brume::schedule
