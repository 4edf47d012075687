/// @file The name of the machine that a process runs on.
#pragma once

#include <string>

namespace brume {

std::string host_name();

}  // namespace brume
