/// @file How kernels are launched and sums are made where Kokkos says what runs them: NVIDIA
/// devices, or one thread of the host.
///
/// A kernel goes into the calling thread's stream. The order of each sum is fixed by sizes alone,
/// so there are no atomics; and no scratch memory of teams, which Kokkos 3.4 mixes up between
/// threads of a host.
#pragma once

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/promises.hpp"
#include "kernels/workspace.hpp"

namespace brume::kernels {

using Space = Kokkos::DefaultExecutionSpace;
using TeamPolicy = Kokkos::TeamPolicy<Space>;
using Team = TeamPolicy::member_type;

#ifdef KOKKOS_ENABLE_CUDA
inline constexpr int row_threads = 256;  ///< that share a row
// Few lanes add up in few steps: four units of a warp do so side by side.
inline constexpr int team_units = 32;
inline constexpr int unit_lanes = 8;
#else
inline constexpr int row_threads = 1;
inline constexpr int team_units = 1;
inline constexpr int unit_lanes = 1;
#endif
// Memory answers after 600 ns or so, and what is asked of it meanwhile bounds its speed: one value
// of 16 bits in each of 2048 threads, 4 KiB, would leave an H200 at 0.9 TB/s of its 4.8.
inline constexpr int values_at_once = 4;

/// The calling thread's stream, which takes its kernels.
const Space& queue();

/// body(i) for 0 <= i < count.
template <class Body>
void for_each(const char* name, std::int64_t count, const Body& body) {
  using Range = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
  if (count > 0) Kokkos::parallel_for(name, Range(queue(), 0, count), body);
}

/// body(team) for each of `count` rows, team.league_rank() of them.
template <class Body>
void for_each_row(const char* name, std::size_t count, const Body& body) {
  if (count > 0) Kokkos::parallel_for(name, TeamPolicy(queue(), int(count), row_threads), body);
}

/// body(team) for `count` units, unit_of(team) of them: a few lanes each, which divide what is
/// small beside a row. The last team has units beyond the last one.
template <class Body>
void for_each_unit(const char* name, std::int64_t count, const Body& body) {
  if (count > 0)
    Kokkos::parallel_for(
        name,
        TeamPolicy(queue(), int((count + team_units - 1) / team_units), team_units, unit_lanes),
        body);
}
KOKKOS_INLINE_FUNCTION std::int64_t unit_of(const Team& team) {
  return std::int64_t(team.league_rank()) * team_units + team.team_rank();
}

/// each(c) for 0 <= c < count, by the threads of a row; a thread has the same c in every call.
template <class Each>
KOKKOS_INLINE_FUNCTION void along(const Team& team, int count, const Each& each) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, count), each);
}

/// store(c, read(c)) for 0 <= c < count, by the threads of a row; a thread has the same c as in
/// other calls. It reads for several c before it stores for the first, in order; read(c) may be
/// called again for the last c.
template <class Read, class Store>
KOKKOS_INLINE_FUNCTION void along(const Team& team, int count, const Read& read,
                                  const Store& store) {
  for (int first = team.team_rank(); first < count; first += values_at_once * row_threads) {
    decltype(read(0)) values[values_at_once];
    for (int k = 0; k < values_at_once; ++k) {
      const int c = first + k * row_threads;
      values[k] = read(c < count ? c : count - 1);  // no branch, which would part the reads
    }
    for (int k = 0; k < values_at_once; ++k)
      if (const int c = first + k * row_threads; c < count) store(c, values[k]);
  }
}

/// row[c], 0 where there is no row: then another one is read and left aside, because a branch would
/// part the reads.
template <class Element>
KOKKOS_INLINE_FUNCTION float optional(const Element* row, const Element* other_row, int c) {
  const float value = (row != nullptr ? row : other_row)[c];
  return row != nullptr ? value : 0.0f;
}

/// What all threads of a row have, joined in a fixed order; all of them get it.
template <class Value, class Join>
KOKKOS_INLINE_FUNCTION Value of_row(const Team&, Value mine, [[maybe_unused]] const Join& join) {
#ifdef __CUDA_ARCH__
  // Kokkos's own waits nine times for the row's threads.
  __shared__ Value of_warps[row_threads / 32];
  for (int distance = 16; distance > 0; distance /= 2)
    mine = join(mine, __shfl_xor_sync(~0u, mine, distance));
  if (threadIdx.y % 32 == 0) of_warps[threadIdx.y / 32] = mine;
  __syncthreads();
  mine = of_warps[0];
  for (int warp = 1; warp < row_threads / 32; ++warp) mine = join(mine, of_warps[warp]);
  __syncthreads();  // all have read before the next one is written
#endif
  return mine;
}

/// The terms term(c), 0 <= c < count, joined: each thread's own, then all threads'. `start` changes
/// nothing it is joined with.
template <class Value, class Term, class Join>
KOKKOS_INLINE_FUNCTION Value join_along(const Team& team, int count, Value start, const Term& term,
                                        const Join& join) {
  Value mine = start;
  along(team, count, term, [&](int, const Value& value) { mine = join(mine, value); });
  return of_row(team, mine, join);
}

/// sum_c term(c) for 0 <= c < count; all threads of the row have it, and all have called term.
template <class Sum = float, class Term>
KOKKOS_INLINE_FUNCTION Sum sum_along(const Team& team, int count, const Term& term) {
  return join_along(team, count, Sum(0), term, [](Sum a, Sum b) { return a + b; });
}

/// max_c term(c), -infinity for none; a NaN need not win.
template <class Term>
KOKKOS_INLINE_FUNCTION float largest_along(const Team& team, int count, const Term& term) {
  return join_along(team, count, -std::numeric_limits<float>::infinity(), term,
                    [](float a, float b) { return b > a ? b : a; });
}

/// This lane's number among those of its unit.
KOKKOS_INLINE_FUNCTION int lane_of(const Team&) {
#ifdef __CUDA_ARCH__
  return int(threadIdx.x);
#else
  return 0;
#endif
}

/// The sum of what the lanes of a unit have; all of them get it, in the same bits.
KOKKOS_INLINE_FUNCTION float sum_of_lanes(const Team&, float mine) {
#ifdef __CUDA_ARCH__
  // Units of a warp go their own ways, so each names its own lanes: Kokkos 4.6 does not.
  const unsigned first = (threadIdx.y * unit_lanes) % 32;
  const unsigned lanes = ((1u << unit_lanes) - 1) << first;
  for (int distance = unit_lanes / 2; distance > 0; distance /= 2)
    mine += __shfl_xor_sync(lanes, mine, distance);
#endif
  return mine;
}

/// The largest of what the lanes of a unit have; all of them get it.
KOKKOS_INLINE_FUNCTION float largest_of_lanes(const Team&, float mine) {
#ifdef __CUDA_ARCH__
  const unsigned first = (threadIdx.y * unit_lanes) % 32;
  const unsigned lanes = ((1u << unit_lanes) - 1) << first;
  for (int distance = unit_lanes / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(lanes, mine, distance);
    mine = other > mine ? other : mine;
  }
#endif
  return mine;
}

/// *sum = scale sum_i terms[i]  (+ *sum when accumulating)
void store_sum(const char* name, const double* terms, std::int64_t count, double scale, Write write,
               double* sum);

/// out[k][c] = sum_n terms(n, c)[k]  (+ out[k][c] when accumulating) for `sums` sums of `columns`
/// columns.
///
/// Rows are summed in parts, and these one after another: as many parts as keep a device busy.
///
/// @param out  [sums][columns]; nullptr: nobody wants that sum
/// @param add  add(n, c, sums) adds the terms of row n and column c to `sums` [sums]
template <int sums, class Add>
void sum_columns(const char* name, std::int64_t rows, std::int64_t columns, Write write,
                 const Kokkos::Array<float*, sums>& out, const Add& add) {
  constexpr std::int64_t rows_of_part = 64, most_parts = 64;
  const std::int64_t width = sums * columns;
  const std::int64_t room =
      workspace_bytes / (std::max<std::int64_t>(1, width) * std::int64_t(sizeof(float)));
  const std::int64_t parts =
      std::max<std::int64_t>(1, std::min({rows / rows_of_part, room, most_parts}));
  const auto of_part = KOKKOS_LAMBDA(std::int64_t part, std::int64_t c, float* sum) {
    for (std::int64_t n = part * rows / parts; n < (part + 1) * rows / parts; ++n) add(n, c, sum);
  };
  const bool adds = write == Write::accumulate;
  if (parts == 1)
    return for_each(
        name, columns, KOKKOS_LAMBDA(std::int64_t c) {
          float sum[sums] = {};
          of_part(0, c, sum);
          for (int k = 0; k < sums; ++k)
            if (out[k] != nullptr) out[k][c] = (adds ? out[k][c] : 0.0f) + sum[k];
        });
  float* const partial = workspace_of<float>(parts * width);
  for_each(
      name, parts * columns, KOKKOS_LAMBDA(std::int64_t i) {
        float sum[sums] = {};
        of_part(i / columns, i % columns, sum);
        for (int k = 0; k < sums; ++k)
          partial[(i / columns) * width + k * columns + i % columns] = sum[k];
      });
  for_each(
      name, columns, KOKKOS_LAMBDA(std::int64_t c) {
        for (int k = 0; k < sums; ++k) {
          if (out[k] == nullptr) continue;
          float sum = adds ? out[k][c] : 0.0f;
          for (std::int64_t part = 0; part < parts; ++part)
            sum += partial[part * width + k * columns + c];
          out[k][c] = sum;
        }
      });
}

}  // namespace brume::kernels
