/// @file Points at which a test ends the process as a kill would.
#pragma once

#include <string_view>

namespace brume::io {

/// Ends the process with _exit(137) when the environment has BRUME_FAIL_AT=<point> or
/// BRUME_FAIL_AT=<point>:<rank>. Points and their meaning: README.md.
void failpoint(std::string_view point, int rank);

}  // namespace brume::io
