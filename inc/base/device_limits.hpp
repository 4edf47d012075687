/// @file Limits of device kernels, for the kernels and for checks of plans. CPU kernels have none.
#pragma once

#include <cstdint>

namespace brume::device_limits {

/// Workspace of a kernel while it runs, for each thread that gives a device work: what
/// cuBLASLt's fastest products ask for on the largest devices; and more partial sums than keep
/// these busy.
inline constexpr std::int64_t workspace_bytes = std::int64_t{32} << 20;

/// Features of a head of attention: a warp's quarter holds a row of them in registers.
inline constexpr int head_size = 256;

/// Tokens of a microbatch whose places are sorted in a workspace, 8 bytes each.
inline constexpr std::int64_t sorted_tokens = workspace_bytes / 8;

/// Queries of a sequence that share a key head, for each of which a workspace holds a number in
/// fp32.
inline constexpr std::int64_t queries_of_key_head = workspace_bytes / 4;

}  // namespace brume::device_limits
