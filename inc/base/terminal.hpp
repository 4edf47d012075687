/// @file The terminal that a person watches, also where a launcher stands between.
#pragma once

#include <cstddef>

namespace brume::terminal {

/// Whether a person watches what is written to a descriptor: it is a terminal, or, where mpirun
/// passes it on, mpirun's own one is.
bool watched(int descriptor);

/// Width of that terminal, at least 60; `usual_columns` where nobody watches.
std::size_t columns(int descriptor);

}  // namespace brume::terminal
