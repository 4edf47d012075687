/// @file The plans next to a plan, found one kind of change after another.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "deck/deck.hpp"
#include "plan/knobs.hpp"
#include "plan/plan.hpp"
#include "search_space.hpp"

namespace brume::plan {

/// Stages whose knobs change together.
using StageSet = std::vector<std::size_t>;

/// Collects the valid plans that differ from one in a single respect.
class Neighbours {
 public:
  Neighbours(const Plan& plan, const model::Config& model, const hardware::Cluster& cluster,
             const deck::SearchKeys& search);

  std::vector<Plan> take() { return std::move(found_); }

 private:
  void add(Plan plan) {
    if (!(plan == plan_) && space_.is_valid(plan)) found_.push_back(std::move(plan));
  }
  /// Each stage, all on its devices, and all stages, where these differ; of many stages the ends.
  std::vector<StageSet> stage_sets() const;
  /// Adds the plans in which some stages are changed, each once.
  void add_changed(const StageSet& set, const auto& changes, const auto& apply);
  void add_orders();
  /// The layers of each stage's devices are cut into other virtual stages, the first ones larger.
  void add_in_order(const Order& order);
  Stage chunk_of(int first_stage, int chunk, int chunks) const;
  static void set_first_layers(Plan& plan);
  void add_layers();
  /// A stage with all of its layers recomputed, or stored, has all of them so afterwards.
  void add_moved_layer(std::size_t from, std::size_t to);
  /// Adds a plan whose stages have other shapes, if the search allows them.
  void add_reshaped(Plan plan);
  /// Adds the values of a number of a stage that the search chooses by itself.
  void add_values(const Knob& knob);
  /// Parts of a share stay as large in relation to it.
  void add_ratios(const Knob& knob, double Stage::*ratio);
  bool has_disk() const;
  void add_numbers(const Knob& knob, int Stage::*number);
  void add_microbatches();
  /// Data-parallel ranks become tensor-parallel ones, or the reverse; the microbatch follows, or,
  /// of all stages, the number of microbatches.
  void add_meshes();
  /// Adds a plan whose ranks that share sequences exchange the other way.
  void add_exchanged(Plan plan);
  /// Ranks of tp share a sequence instead, or the reverse; so do ranks of dp, of all stages, with
  /// as many times the microbatches. Ranks that share sequences exchange the other way.
  void add_contexts();
  /// Whole experts stay whole, divided over as many of the data-parallel ranks as before if the new
  /// mesh has them.
  static void follow_mesh(Stage& stage, const Stage& before);
  /// Experts that are cut become whole, or the reverse; more ranks divide whole ones, or fewer.
  void add_experts();
  /// The MLP is worked on in other tiles that the search allows.
  void add_tiles();
  /// Divides dp by a factor, or tp by another one.
  void add_mesh(const StageSet& set, int of_dp, int of_tp, bool counts);

  const Plan& plan_;
  const model::Config& model_;
  const hardware::Cluster& cluster_;
  const deck::SearchKeys& search_;
  SearchSpace space_;
  std::vector<StageSet> sets_;
  std::vector<Plan> found_;
};

}  // namespace brume::plan
