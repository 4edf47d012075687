/// @file Places of items in the order of their keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "kernels/token_rows.hpp"

namespace brume::kernels {

/// Orders items by their keys, those of one key as they come.
///
/// @param key_of  of an item, below `keys`; negative: it has no row
/// @param begins  [keys + 1] first row of each key, and the end of all rows
/// @param rows    [items] row of each item, or no_row
template <class KeyOf>
void order_by(std::int64_t items, int keys, const KeyOf& key_of, std::int32_t* begins,
              std::int32_t* rows) {
  // ends[i] is the number of items with the i-th key, then its next free row, then its end.
  std::int32_t* const ends = begins + 1;
  std::fill_n(begins, keys + 1, 0);
  for (std::int64_t i = 0; i < items; ++i)
    if (const int key = key_of(i); key >= 0) ++ends[key];
  std::exclusive_scan(ends, ends + keys, ends, 0);
  for (std::int64_t i = 0; i < items; ++i) {
    const int key = key_of(i);
    rows[i] = key >= 0 ? ends[key]++ : no_row;
  }
}

}  // namespace brume::kernels
