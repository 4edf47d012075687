/// @file Plans that differ from a plan in one knob.
#pragma once

#include <vector>

#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::plan {

/// Valid plans within the lists of a search that differ from one in one knob: of one stage, of all
/// that share its devices, or of all stages.
///
/// A share of a stage takes each value of its list, a number each value of its list, or steps of
/// one, half, double, none and all. A new knob of a stage joins by its row. Knobs that others
/// follow have moves of their own: the order of passes, with the layers of each virtual stage; a
/// layer from one stage to another; dp and tp, with the microbatch; the microbatch, with the number
/// of microbatches.
///
/// Layers move to the next stage, and from and to the first and the last one, so the number of
/// neighbours grows with that of stages.
std::vector<Plan> neighbours(const Plan& plan, const model::Config& model,
                             const hardware::Cluster& cluster, const deck::SearchKeys& search);

}  // namespace brume::plan
