/// @file Names of checkpoints' directories and files.
#pragma once

#include <cstdint>
#include <string_view>

namespace brume::io {

/// Number R of a name <prefix>R<suffix>; -1 for another name.
std::int64_t number_in(std::string_view name, std::string_view prefix, std::string_view suffix);

}  // namespace brume::io
