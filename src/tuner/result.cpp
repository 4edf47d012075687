#include "tuner/result.hpp"

#include <algorithm>

namespace brume::tuner {

std::int64_t RankedPlan::placed_device_bytes() const {
  return std::ranges::max_element(placed, {}, &GroupMemory::device_bytes)->device_bytes;
}

std::int64_t RankedPlan::placed_host_bytes() const {
  return std::ranges::max_element(placed, {}, &GroupMemory::host_bytes)->host_bytes;
}

std::int64_t RankedPlan::placed_disk_bytes() const {
  return std::ranges::max_element(placed, {}, &GroupMemory::disk_bytes)->disk_bytes;
}

}  // namespace brume::tuner
