/// @file Limits of memory that a batch system or a container sets by control groups of Linux.
#pragma once

#include <cstdint>
#include <filesystem>

namespace brume::device {

/// Memory that this process's control groups (cgroup, versions 1 and 2) leave [bytes]: the least,
/// over its group and its parents, of limit - (usage - reclaimable pages). The largest number if
/// none has a limit.
///
/// @param membership  which groups the process is in, as /proc/self/cgroup says
/// @param root        where the groups are mounted: of version 2 here, of version 1 in memory/
std::int64_t control_group_free_bytes(const std::filesystem::path& membership = "/proc/self/cgroup",
                                      const std::filesystem::path& root = "/sys/fs/cgroup");

/// Memory limit of the control groups [bytes], whatever is in use.
std::int64_t control_group_limit_bytes(
    const std::filesystem::path& membership = "/proc/self/cgroup",
    const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace brume::device
