/// @file Places of items in the order of their keys, in parts that keep a device busy.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/text.hpp"
#include "kernels/portable/launch.hpp"
#include "kernels/token_rows.hpp"

namespace brume::kernels {

/// Items in parts.
struct ItemParts {
  std::int64_t items, count;

  KOKKOS_INLINE_FUNCTION std::int64_t begin(std::int64_t part) const {
    return part * items / count;
  }
};

/// @param wholes  equal runs of items, each of which is cut into parts of its own
inline ItemParts parts_of_items(std::int64_t items, std::int64_t wholes, int keys) {
  constexpr std::int64_t items_of_part = 64, most_parts = 64;
  const std::int64_t room = workspace_bytes / std::int64_t(sizeof(std::int32_t)) / keys - 1;
  const std::int64_t runs = std::max<std::int64_t>(1, wholes);
  const std::int64_t parts = std::min({items / items_of_part, room, most_parts}) / runs;
  return {items, std::max<std::int64_t>(1, parts) * runs};
}

/// counts[part][key]: the items of a part that have this key.
template <class KeyOf>
void count_keys(const ItemParts& parts, int keys, const KeyOf& key_of, std::int32_t* counts) {
  for_each(
      "count_keys", parts.count * keys, KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t part = i / keys, end = parts.begin(part + 1);
        std::int32_t count = 0;
        for (std::int64_t item = parts.begin(part); item < end; ++item)
          count += key_of(item) == int(i % keys);
        counts[i] = count;
      });
}

/// Orders items by their keys, those of one key as they come.
///
/// @param key_of  of an item, below `keys`; negative: it has no row
/// @param begins  [keys + 1] first row of each key, and the end of all rows
/// @param rows    [items] row of each item, or no_row
template <class KeyOf>
void order_by(std::int64_t items, int keys, const KeyOf& key_of, std::int32_t* begins,
              std::int32_t* rows) {
  const ItemParts parts = parts_of_items(items, 1, keys);
  std::int32_t* const counts = workspace_of<std::int32_t>((parts.count + 1) * keys);
  std::int32_t* const totals = counts + parts.count * keys;
  count_keys(parts, keys, key_of, counts);
  for_each(
      "order_totals", keys, KOKKOS_LAMBDA(std::int64_t key) {
        std::int32_t before = 0;  // items with the key in the parts before
        for (std::int64_t i = key; i < parts.count * keys; i += keys) {
          const std::int32_t count = counts[i];
          counts[i] = before;
          before += count;
        }
        totals[key] = before;
      });
  for_each(
      "order_begins", keys + 1, KOKKOS_LAMBDA(std::int64_t i) {
        std::int32_t begin = 0;
        for (int key = 0; key < i; ++key) begin += totals[key];
        begins[i] = begin;
      });
  for_each(
      "order_rows", parts.count * keys, KOKKOS_LAMBDA(std::int64_t i) {
        const int own = int(i % keys);
        const std::int64_t part = i / keys, end = parts.begin(part + 1);
        std::int32_t row = begins[own] + counts[i];
        for (std::int64_t item = parts.begin(part); item < end; ++item) {
          const int key = key_of(item);
          if (key == own) rows[item] = row++;
          if (key < 0 && own == 0) rows[item] = no_row;
        }
      });
}

}  // namespace brume::kernels
