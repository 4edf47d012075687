/// @file One measured operator of Mist as a row of a profile.
#pragma once

#include <optional>
#include <string>

#include "hardware/profile.hpp"
#include "json_reader.hpp"

namespace brume::interop {

/// @param where  names the entry in refusals
/// @return       its row; none when the operator has no kind here
std::optional<hardware::OperatorRow> mist_row(const json& entry, const std::string& where);

}  // namespace brume::interop
