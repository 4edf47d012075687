/// @file The plan by which a model generates, and the memory that it may use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"
#include "plan/phases.hpp"

namespace brume::app {

/// Share of the free memory that a generation uses.
inline constexpr double generation_share_of_memory = 0.8;

/// How many ranks share a copy of the model where nobody says it.
enum class Copies {
  fewest_ranks,  ///< for many answers at once
  widest         ///< as many as the model can be cut over: for one answer at once
};

/// Tokens of the longest pass.
int longest_pass(bool on_device);

/// The numbers of ranks that may hold a copy, on all of these nodes.
std::vector<int> copy_widths(const hardware::NodeGroup& nodes, const deck::SearchKeys& search);

/// What a generation needs, and may use.
struct GenerationNeeds {
  std::int64_t tokens;     ///< of the longest prompt and its answer
  int batch;               ///< sequences at once on a copy
  double memory_bytes;     ///< that each rank may use
  double cache_gib = 0.0;  ///< most memory of a rank for keys; 0: what is left
  Copies copies = Copies::fewest_ranks;
  int tp = 0;                               ///< 0: as `copies` says
  bool on_device = device::on_device();     ///< passes are longer there
  std::string plan = {};                    ///< file; empty: copies over all ranks
  const plan::PhasePlans* given = nullptr;  ///< in place of a file; null: none
  /// A plan for these ranks that is tried last, and its cluster; null: none.
  const plan::Plan* training = nullptr;
  const hardware::Cluster* cluster = nullptr;
};

struct GenerationPlan {
  plan::Plan plan{};
  std::optional<plan::Plan> prompts{};  ///< of passes that compute prompts; none: the same
  model::Config model{};                ///< as it generates
  double needed_bytes = 0.0;            ///< beyond the memory that a rank may use; 0: it fits

  int copies() const { return plan.stages.front().data_ranks(); }  ///< of the model
  double cache_bytes() const;  ///< of a rank of the first stage, by both plans
  plan::PhasePlans plans() const { return {plan, prompts}; }
  /// The model as it computes prompts by a plan of their own, with fewer blocks of keys.
  model::Config prompt_model() const;
  std::string text() const;  ///< "2 copies of the model, tp 2, 2 stages"
};

/// Chooses the plan that is given, or copies of the model, the first ones that fit; if none fits,
/// the ones that need least. Pure. @throws Error(input)
/// @param ranks  of the job, the same on all of its nodes
GenerationPlan choose_generation_plan(const model::Config& model, const GenerationNeeds& needs,
                                      int nodes, int ranks);

}  // namespace brume::app
