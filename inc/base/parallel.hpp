/// @file Loops whose passes run on several cores.
#pragma once

#include <cstddef>
#include <functional>

namespace brume {

/// How many cores this process may use, at least 1.
int num_cores();

/// Calls `body(i, thread)` once for each i in [0, count), on at most `threads` threads, of which
/// the caller is number 0. Passes begin in rising order, and end in any.
///
/// @throws what the least pass threw of those that did, when all that began have ended; after a
///         throw none begins
void parallel_for(std::size_t count, int threads,
                  const std::function<void(std::size_t i, std::size_t thread)>& body);

}  // namespace brume
