/// @file Steps from deck keys to sizes of a model.
#pragma once

#include <vector>

#include "model/config.hpp"

namespace brume::model {

/// @throws Error(input) if sizes do not fit each other or the family
void check_config(const Config& m);

/// The adapter that a deck asks for. @throws Error(input) if it does not fit the model
Adapter adapter(const deck::AdapterKeys& keys, const Config& config);

/// Freezes the parameters that groups freeze and, where there is an adapter, all but its own and
/// the modules that it saves.
/// @throws Error(input) where that is all
void freeze(Config& config, const std::vector<deck::ParameterGroupKeys>& groups);

}  // namespace brume::model
