/// @file Lists of plans that are measured side by side.
#pragma once

#include <cstddef>
#include <span>

#include "comm/session.hpp"

namespace brume::perf {

/// The number in a place of the command line, or its default.
inline int number(std::span<const int> numbers, std::size_t place, int usual) {
  return place < numbers.size() ? numbers[place] : usual;
}

// Each prints a table on rank 0. Its file lists the numbers that it reads. Collective over `world`.
void schedules(comm::Session& session, comm::Communicator& world, std::span<const int> numbers);
void alternatives(comm::Session& session, comm::Communicator& world, std::span<const int> numbers);
void contexts(comm::Session& session, comm::Communicator& world, std::span<const int> numbers);
void optimizers(comm::Session& session, comm::Communicator& world, std::span<const int> numbers);

}  // namespace brume::perf
