#include "skyline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace brume::schedule {
namespace {

constexpr auto done = std::numeric_limits<std::int64_t>::max();  ///< where nothing is to come

}  // namespace

Skyline::Skyline(std::span<const Parcel> parcels) : parcels_(parcels) {
  std::vector<int> cuts;
  for (const Parcel& p : parcels) {
    cuts.push_back(p.first_task);
    cuts.push_back(p.last_task + 1);
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  const auto section = [&](int task) {
    return int(std::ranges::lower_bound(cuts, task) - cuts.begin());
  };
  begins_.resize(cuts.size());
  all_bytes_.resize(cuts.size(), 0);
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    const Parcel& p = parcels[i];
    life_.push_back({section(p.first_task), section(p.last_task + 1)});
    log_length_.push_back(std::log(double(life_.back().end - life_.back().first)));
    log_bytes_.push_back(std::log(double(p.bytes)));
    begins_[life_.back().first].push_back(int(i));
    for (int s = life_.back().first; s < life_.back().end; ++s) all_bytes_[s] += p.bytes;
  }
}

/// The first lowest part of the skyline.
Skyline::Sections Skyline::valley(std::int64_t& floor) const {
  std::int64_t lowest = done;
  for (const std::int64_t of_section : floor_) lowest = std::min(lowest, of_section);
  const auto first = std::ranges::find(floor_, lowest);
  const auto end = std::find_if(first, floor_.end(), [=](std::int64_t f) { return f > lowest; });
  floor = lowest;
  return {int(first - floor_.begin()), int(end - floor_.begin())};
}

std::optional<int> Skyline::choose(const Taste& taste, Sections valley) {
  std::optional<int> best;
  double highest = 0.0;
  for (int s = valley.first; s < valley.end; ++s)
    for (int id : begins_[s]) {
      const auto i = std::size_t(id);
      ++steps_;
      if (placed_[i] || life_[i].end > valley.end) continue;
      const int ends_met = int(life_[i].first == valley.first) + int(life_[i].end == valley.end);
      const double score = taste.length * log_length_[i] + taste.bytes * log_bytes_[i] +
                           taste.aligned * ends_met +
                           taste.late * life_[i].end / double(floor_.size()) + taste.noise[i];
      if (best && score <= highest) continue;
      highest = score;
      best = id;
    }
  return best;
}

/// Nothing fits into the valley: fills it up to its lower side.
void Skyline::raise(Sections valley) {
  std::int64_t side = done;
  if (valley.first > 0) side = floor_[std::size_t(valley.first) - 1];
  if (valley.end < int(floor_.size())) side = std::min(side, floor_[valley.end]);
  std::fill(floor_.begin() + valley.first, floor_.begin() + valley.end, side);
}

/// What a part will end at, at least.
std::int64_t Skyline::top(Sections part) const {
  std::int64_t highest = 0;
  for (auto s = std::size_t(part.first); s < std::size_t(part.end); ++s)
    highest = std::max(highest, floor_[s] + to_come_[s]);
  return highest;
}

std::optional<std::vector<std::int64_t>> Skyline::build(const Taste& taste, std::int64_t most_end) {
  to_come_ = all_bytes_;
  floor_.clear();
  for (const std::int64_t bytes : to_come_) floor_.push_back(bytes > 0 ? 0 : done);
  placed_.assign(parcels_.size(), 0);
  std::vector<std::int64_t> offsets(parcels_.size());
  for (std::size_t left = parcels_.size(); left > 0;) {
    std::int64_t floor = 0;
    const Sections lowest = valley(floor);
    steps_ += std::int64_t(floor_.size()) / 4;
    const std::optional<int> chosen = choose(taste, lowest);
    if (!chosen) {
      raise(lowest);
      if (top(lowest) > most_end) return std::nullopt;
      continue;
    }
    const auto i = std::size_t(*chosen);
    placed_[i] = 1;
    offsets[i] = floor;
    --left;
    for (auto s = std::size_t(life_[i].first); s < std::size_t(life_[i].end); ++s) {
      to_come_[s] -= parcels_[i].bytes;
      floor_[s] = to_come_[s] > 0 ? floor + parcels_[i].bytes : done;
    }
  }
  return offsets;
}

}  // namespace brume::schedule
