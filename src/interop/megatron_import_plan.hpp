/// @file The plan that arguments of Megatron-LM describe.
#pragma once

#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "given_arguments.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::interop {

/// @param notes  gets a line for each difference to Megatron-LM
/// @throws Error(input) if the arguments do not fit each other or the cluster
plan::Plan read_plan(GivenArguments& given, const deck::Deck& deck, const model::Config& model,
                     const hardware::Cluster& cluster, std::vector<std::string>& notes);

}  // namespace brume::interop
