/// @file Reductions over MPI whose order is ours: rank 0, 1, 2, ..., for every value alike.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>

#include "comm/communicator.hpp"

namespace brume::comm {

/// values[i] = x_0[i] op x_1[i] op ... op x_{n-1}[i], on every rank
///
/// The bits depend neither on the length of a message nor on a value's place in it, and are those
/// of the communicator of threads; the library's own reductions change their order with the length.
/// Collective over `group`. T is float, double or a format of 16 bits, whose
/// sums are fp32 and rounded once.
///
/// @param longest  values that one message or one of the library's collectives carries
template <typename T>
void reduce_to_all(MPI_Comm group, std::span<T> values, Reduction reduction, std::size_t longest);

/// The same for part `rank` of `size` parts only; the other parts keep this rank's values.
///
/// Each rank sends every other one its part: values.size() (n - 1) / n leave and reach a rank,
/// which no algorithm does with less, and there is one wait per segment where a ring has n - 1.
template <typename T>
void reduce_own_part(MPI_Comm group, std::span<T> values, Reduction reduction);

/// Gives every rank all parts, of which each has its own: as the library's all-gather, in messages
/// of at most `longest` values. Collective over `group`.
template <typename T>
void gather_in_pieces(MPI_Comm group, std::span<T> values, std::size_t longest);

}  // namespace brume::comm
