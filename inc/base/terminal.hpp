/// @file The terminal that a person watches, also where a launcher stands between.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace brume::terminal {

/// Whether a person watches what is written to a descriptor: it is a terminal, or, where mpirun
/// passes it on, mpirun's own one is.
bool watched(int descriptor);

/// A text for standard output: where that is a terminal, without the bytes that would act on it.
std::string printable(std::string_view text);

/// Width of that terminal, at least 60; `usual_columns` where nobody watches.
std::size_t columns(int descriptor);

}  // namespace brume::terminal
