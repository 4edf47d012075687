/// @file Checks that both kinds of communicator share.
#pragma once

#include <cstddef>

#include "base/error.hpp"

namespace brume::comm {

/// The length of one of `size` equal parts of `count` values.
/// @throws Error(bug) when they are not equal
inline std::size_t part_size(std::size_t count, int size) {
  const auto parts = static_cast<std::size_t>(size);
  require(count % parts == 0, Failure::bug, "{} values do not make {} equal parts", count, size);
  return count / parts;
}

}  // namespace brume::comm
