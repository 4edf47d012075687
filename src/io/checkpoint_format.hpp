/// @file What both kinds of files of a checkpoint say of themselves.
#pragma once

#include <array>
#include <cstdint>

namespace brume::io {

inline constexpr const char* checkpoint_filetype = "brume checkpoint";
/// Readers know the first.
inline constexpr std::array<std::int64_t, 2> checkpoint_version = {1, 2};

}  // namespace brume::io
