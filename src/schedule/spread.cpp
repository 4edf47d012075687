#include "spread.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <vector>

namespace brume::schedule {
namespace {

/// The last users of bytes so far.
class LastUsers {
 public:
  explicit LastUsers(std::int64_t end) { users_[0] = {}, users_[end] = {}; }

  /// The last task that a parcel waits for if it begins at `first`; -1: none.
  int wait(const Parcel& parcel, std::int64_t first) const {
    int last = -1;
    const auto end = users_.lower_bound(first + parcel.bytes);
    for (auto at = std::prev(users_.upper_bound(first)); at != end; ++at)
      last = std::max({last, at->second.transfer, parcel.computed ? -1 : at->second.compute});
    return last;
  }
  void take(const Parcel& parcel) {
    const auto end = cut(parcel.end());
    users_.erase(cut(parcel.offset), end);
    users_[parcel.offset] = parcel.last;
  }
  /// Calls `visit` with each place in (first, end) where other users' bytes begin.
  template <typename Visit>
  void borders(std::int64_t first, std::int64_t end, Visit&& visit) const {
    for (auto at = users_.upper_bound(first); at != users_.end() && at->first < end; ++at)
      visit(at->first);
  }

 private:
  using Users = std::map<std::int64_t, LastTasks>;  ///< by first byte, up to the next one's
  Users::iterator cut(std::int64_t where) {
    const auto after = users_.upper_bound(where);
    return users_.try_emplace(where, std::prev(after)->second).first;
  }
  Users users_;
};

/// Bytes that a parcel takes; such pairs are sorted often.
struct Extent {
  std::int64_t first, end;
};

/// The place among the free ones, below `end`, whose users the parcel waits for least.
///
/// @param taken  the bytes of parcels that it meets, by offset
std::int64_t best_place(const Parcel& parcel, const std::vector<Extent>& taken, std::int64_t end,
                        const LastUsers& users) {
  std::int64_t best = parcel.offset, free = 0;
  int least = users.wait(parcel, best);
  const auto consider = [&](std::int64_t place) {
    if (const int wait = users.wait(parcel, place); wait < least) least = wait, best = place;
  };
  const auto consider_gap = [&](std::int64_t gap_end) {
    const std::int64_t last = gap_end - parcel.bytes;
    if (last < free) return;
    consider(free);
    users.borders(free, last, consider);
    consider(last);
  };
  for (const Extent& other : taken) {
    consider_gap(other.first);
    free = std::max(free, other.end);
  }
  consider_gap(end);
  return best;
}

}  // namespace

void spread(std::span<Parcel> parcels, std::int64_t end, const Deadline& deadline) {
  std::vector<Parcel*> by_first;
  for (Parcel& parcel : parcels) by_first.push_back(&parcel);
  std::ranges::stable_sort(by_first, {}, &Parcel::first_task);
  LastUsers users(end);
  std::vector<const Parcel*> alive;  // by offset
  std::vector<Extent> taken;
  for (std::size_t i = 0; i < by_first.size(); ++i) {
    deadline.check();
    Parcel& parcel = *by_first[i];
    std::erase_if(alive, [&](const Parcel* other) { return !other->meets(parcel); });
    if (parcel.moves && users.wait(parcel, parcel.offset) >= 0) {
      taken.clear();
      for (const Parcel* other : alive) taken.push_back({other->offset, other->end()});
      const auto later = std::ptrdiff_t(taken.size());
      for (std::size_t k = i + 1; k < by_first.size() && by_first[k]->meets(parcel); ++k)
        taken.push_back({by_first[k]->offset, by_first[k]->end()});
      std::ranges::sort(taken.begin() + later, taken.end(), {}, &Extent::first);
      std::ranges::inplace_merge(taken, taken.begin() + later, {}, &Extent::first);
      parcel.offset = best_place(parcel, taken, end, users);
    }
    users.take(parcel);
    alive.insert(std::ranges::upper_bound(alive, parcel.offset, {}, &Parcel::offset), &parcel);
  }
}

}  // namespace brume::schedule
