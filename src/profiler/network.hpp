/// @file The adapters through which a node's messages leave it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace brume::profiler {

/// Active ports of InfiniBand and its kin, alike ones counted: "2 x 200 Gb/sec (4X HDR)".
///
/// @param folder  where Linux describes them
std::vector<std::string> network_adapters(
    const std::filesystem::path& folder = "/sys/class/infiniband");

}  // namespace brume::profiler
