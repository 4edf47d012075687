#include "tuner/result.hpp"

#include <algorithm>

namespace brume::tuner {

std::int64_t Candidate::placed_device_bytes() const {
  return std::ranges::max_element(placed, {}, &Held::device_bytes)->device_bytes;
}

std::int64_t Candidate::placed_host_bytes() const {
  return std::ranges::max_element(placed, {}, &Held::host_bytes)->host_bytes;
}

std::int64_t Candidate::placed_disk_bytes() const {
  return std::ranges::max_element(placed, {}, &Held::disk_bytes)->disk_bytes;
}

}  // namespace brume::tuner
