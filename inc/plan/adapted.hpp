/// @file Plans for other devices, batches or sequences than a plan was made for.
#pragma once

#include <vector>

#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::plan {

/// Valid plans within the lists of a search that are like a plan for another cluster, batch or
/// sequence length, the most alike first.
///
/// Devices: each stage has as many times the data-parallel, tensor-parallel or context-parallel
/// ranks, or there are as many times the stages. The batch: stages keep their microbatch or the
/// number of microbatches, or change both. If no plan has data-parallel degrees that divide the
/// batch, these are divided, and another degree or the stages are multiplied. Memory: layers are
/// recomputed as before, or all of them in full, selectively, or not at all. Shares in CPU memory
/// stay as they are.
///
/// None for a plan of another number of layers, or for a cluster of several groups, unless the plan
/// is valid as it is.
std::vector<Plan> adapted(const Plan& plan, const model::Config& model, int global_batch,
                          const hardware::Cluster& cluster, const deck::SearchKeys& search);

}  // namespace brume::plan
