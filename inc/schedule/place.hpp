/// @file Gives every buffer its address, and every task the waits that its bytes ask for.
#pragma once

#include <cstdint>
#include <utility>

#include "base/deadline.hpp"
#include "schedule/pack.hpp"
#include "schedule/program.hpp"

namespace brume::schedule {

/// Bytes left free behind each buffer, filled with a pattern that the executor checks.
inline constexpr std::int64_t guard_bytes = 64;

/// The buffers that look for bytes that were not just left, to avoid a wait.
enum class Spread {
  none,
  received,  ///< streams and gradients from another stage
  all
};

/// The goal beyond the first good placement.
struct Placing {
  bool tight = true;   ///< smaller arenas,
  Arenas enough = {};  ///< until they are this small
  Spread spread = Spread::none;
};

/// Sets offsets, arena and live-peak bytes. Persistent buffers come first, in the order in which
/// they were made, so all Programs of a rank agree on where they are; buffers whose lives do not
/// meet share bytes.
///
/// @param packings  what is known from ranks that are alike
/// @throws OutOfTime when the deadline passes
void place(Program& program, const Placing& how = {}, const Deadline& deadline = {},
           Packings* packings = nullptr);

/// The bytes at the beginning of each arena that persistent buffers take: between two runs of the
/// Program the others are free.
Arenas persistent_bytes(const Program& program);

/// Bytes of its arena that a task touches with an operand: [first, end). One that reaches its
/// buffer's end may also write and check the guard behind it; the first task of a buffer takes all
/// of it.
std::pair<std::int64_t, std::int64_t> touched_bytes(const Buffer& buffer, const Operand& operand,
                                                    int task);

/// Sets `waits`: a task waits for the last tasks on other channels that touched its bytes, where
/// one of both writes. Waits that follow from others are left out. Call after place().
///
/// @param overlap  false: nothing computes while a transfer emitted before it runs, and the reverse
void link(Program& program, bool overlap = true);

}  // namespace brume::schedule
