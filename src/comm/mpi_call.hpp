/// @file The way every MPI call takes: checked, and waited for without occupying a core for long.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <type_traits>

#include "base/narrow.hpp"

namespace brume::comm {

/// @throws Error(network) with MPI's own words when `code` is not MPI_SUCCESS
void check_mpi(int code, std::source_location where = std::source_location::current());

/// MPI's name of a value; one of 16 bits travels as these.
template <typename T>
MPI_Datatype mpi_type() {
  if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
  if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
  if constexpr (std::is_same_v<T, std::byte>) return MPI_BYTE;
  if constexpr (Narrow<T>) return MPI_UINT16_T;
}

/// The count as MPI takes it.
/// @throws Error(bug) above INT_MAX, which one MPI call cannot carry
int mpi_count(std::size_t count);

/// Waits for a request by MPI_Test: all the time at first, then between sleeps that grow with the
/// time waited, to 200 us.
MPI_Status wait(MPI_Request request, std::source_location where = std::source_location::current());

/// The same for a message: while this process computes, it looks less often.
MPI_Status wait_for_message(MPI_Request request,
                            std::source_location where = std::source_location::current());

/// The same for several requests: until all are done.
void wait(std::span<MPI_Request> requests,
          std::source_location where = std::source_location::current());

/// The waits of this process's threads for other ranks.
struct Waits {
  int running;          ///< now
  std::uint64_t over;   ///< since the process began
  std::uint64_t looks;  ///< at the requests waited for, since the process began
};
Waits waits();

}  // namespace brume::comm
