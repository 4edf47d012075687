#include "interop/trainer_space.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "interop/megatron.hpp"
#include "interop/torchtitan.hpp"
#include "plan/knobs.hpp"
#include "plan/shapes.hpp"

namespace brume::interop {
namespace {

using deck::SearchKeys;
using plan::allows;
using plan::Stage;

/// Leaves those of a list that are among these values; an empty list holds all.
/// @return whether any is left
template <class T>
bool keep(std::vector<T>& list, const std::vector<T>& values) {
  if (list.empty())
    list = values;
  else
    std::erase_if(list, [&](T value) { return std::ranges::find(values, value) == values.end(); });
  return !list.empty();
}

/// The same of a key that every plan of a trainer has. @throws Error(input) where nothing is left
template <class T>
void keep_some(const SearchKeys& search, std::vector<T>& list, const char* key,
               const std::vector<T>& values) {
  require(keep(list, values), Failure::input,
          "search.{} holds nothing that search.trainer = \"{}\" has: leave the key out", key,
          search.trainer);
}

/// Searches that together hold what a trainer can run. Lists of the deck may leave nothing of some.
class Parts {
 public:
  explicit Parts(std::string trainer) : trainer_(std::move(trainer)) {}

  /// Narrows a list of a part that is not added yet. @return whether anything is left
  template <class T>
  bool keep(std::vector<T>& list, const char* key, const std::vector<T>& values) {
    const bool any = interop::keep(list, values);
    if (!any && !values.empty()) emptied_.insert(fmt::format("search.{}", key));
    return any;
  }
  void add(SearchKeys part) { found_.push_back(std::move(part)); }

  /// @throws Error(input) where there is none
  std::vector<SearchKeys> all() && {
    require(!found_.empty(), Failure::input,
            "search.trainer = \"{}\" has no plan with these values of {}: leave {} out", trainer_,
            fmt::join(emptied_, " and "), emptied_.size() > 1 ? "one of them" : "the key");
    return std::move(found_);
  }

 private:
  std::string trainer_;
  std::vector<SearchKeys> found_;
  std::set<std::string> emptied_;  ///< keys
};

/// What neither trainer has, and that both keep outputs of norms and activations. Chunks run ahead
/// in Megatron-LM, stages of one chunk do not.
SearchKeys common(SearchKeys keys) {
  keys.unequal_stages = false;
  keys.store = false;
  keys.store_rest = true;
  keys.whole_rounds = true;
  keys.paired_contexts = true;
  const std::vector<int> chunks = keys.chunks;
  for (const plan::Knob& knob : plan::knobs)
    if (knob.order) plan::forbid(knob, keys);
  if (keys.trainer == "megatron" && allows(keys.run_ahead, 2)) keys.chunks = chunks;
  keep_some(keys, keys.act_offload, "act_offload", {0.0});
  keep_some(keys, keys.optim_disk, "optim_disk", {0.0});
  keep_some(keys, keys.act_disk, "act_disk", {0.0});
  keep_some(keys, keys.host_update, "host_update", {0.0});
  keep_some(keys, keys.mlp_tiles, "mlp_tiles", {1});
  return keys;
}

std::vector<int> from_to(int first, int last) {
  std::vector<int> found;
  for (int value = first; value <= last; ++value) found.push_back(value);
  return found;
}

/// The search with one stage, and the one with several, as far as the deck asks for them.
std::vector<SearchKeys> one_and_several(const SearchKeys& keys, int most_stages, Parts& parts) {
  std::vector<SearchKeys> found;
  SearchKeys one = keys, several = keys;
  if (parts.keep(one.stages, "stages", {1})) found.push_back(one);
  if (parts.keep(several.stages, "stages", from_to(2, most_stages)) &&
      parts.keep(several.run_ahead, "run_ahead", {1}))
    found.push_back(several);
  return found;
}

/// Sets a member of all stages to the largest or least of them.
template <class T>
void make_alike(plan::Plan& plan, T Stage::*member, bool largest) {
  const auto [least, most] = std::ranges::minmax(plan.stages, {}, member);
  const T value = largest ? most.*member : least.*member;
  for (Stage& stage : plan.stages) stage.*member = value;
}

/// As much is sharded and offloaded as in the stage that saves most.
plan::Plan with_state_alike(plan::Plan plan) {
  make_alike(plan, &Stage::zero_level, true);
  make_alike(plan, &Stage::replicas, false);
  for (const auto share :
       {&Stage::weight_offload_ratio, &Stage::grad_offload_ratio, &Stage::optim_offload_ratio})
    make_alike(plan, share, true);
  return plan;
}

void recompute_all(plan::Plan& plan) {
  for (Stage& stage : plan.stages) stage.ckpt_layers = stage.layers;
}

/// Both keep outputs of norms and activations of all layers that they do not recompute, and work on
/// all tokens of an MLP at once.
plan::Plan with_the_rest_stored(plan::Plan plan) {
  for (Stage& stage : plan.stages) {
    stage.stored_layers = stage.layers - stage.ckpt_layers;
    stage.mlp_tiles = 1;
  }
  return plan;
}

/// One number of recomputed layers for all stages, or all layers of each.
plan::Plan nearest_megatron(plan::Plan plan) {
  plan = with_state_alike(std::move(plan));
  make_alike(plan, &Stage::ckpt_layers, true);
  const auto too_many = [](const Stage& stage) {
    return stage.layers > 0 && stage.ckpt_layers > stage.layers;
  };
  if (std::ranges::any_of(plan.stages, too_many)) recompute_all(plan);
  for (Stage& stage : plan.stages) stage.ckpt_layers = std::min(stage.ckpt_layers, stage.layers);
  return with_the_rest_stored(std::move(plan));
}

/// Layers are recomputed all or none.
plan::Plan nearest_torchtitan(plan::Plan plan) {
  plan = with_state_alike(std::move(plan));
  const auto recomputes = [](const Stage& stage) { return stage.ckpt_layers > 0; };
  if (std::ranges::any_of(plan.stages, recomputes)) recompute_all(plan);
  return with_the_rest_stored(std::move(plan));
}

/// Optimizer state may be offloaded up to ZeRO 1; with stages there is no more than that.
std::vector<SearchKeys> megatron_searches(SearchKeys keys, int most_stages) {
  keep_some(keys, keys.weight_offload, "weight_offload", {0.0});
  keep_some(keys, keys.grad_offload, "grad_offload", {0.0});
  Parts parts(keys.trainer);
  for (const SearchKeys& some : one_and_several(keys, most_stages, parts)) {
    SearchKeys low = some, high = some;
    if (parts.keep(low.zero_levels, "zero_levels", {0, 1})) parts.add(low);
    if (some.stages == std::vector{1} && parts.keep(high.zero_levels, "zero_levels", {2, 3}) &&
        parts.keep(high.optim_offload, "optim_offload", {0.0}))
      parts.add(high);
  }
  return std::move(parts).all();
}

/// State is offloaded all or none, where it is sharded; ranks of sharded state divide experts.
std::vector<SearchKeys> torchtitan_searches(const SearchKeys& keys, int most_stages, int devices,
                                            bool experts) {
  Parts parts(keys.trainer);
  for (const SearchKeys& some : one_and_several(keys, most_stages, parts))
    for (const double share : {0.0, 1.0}) {
      SearchKeys part = some;
      const bool sharded = share > 0.0;
      if (!parts.keep(part.weight_offload, "weight_offload", {share}) ||
          !parts.keep(part.grad_offload, "grad_offload", {share}) ||
          !parts.keep(part.optim_offload, "optim_offload", {share}) ||
          !parts.keep(part.zero_levels, "zero_levels",
                      sharded || experts ? std::vector{2, 3} : std::vector{0, 2, 3}))
        continue;
      const bool alone = sharded && allows(some.cp, 1);  // state of one rank is not sharded
      if (!alone || parts.keep(part.dp, "dp", from_to(2, devices))) parts.add(part);
    }
  return std::move(parts).all();
}

/// The same with whole sequences, and with ranks that gather keys and shard state over cp.
std::vector<SearchKeys> torchtitan_contexts(SearchKeys keys, const model::Config& model,
                                            int most_stages, int devices) {
  std::vector<int> degrees;
  for (int cp = 2; cp <= devices; ++cp)
    if (plan::allows_cp(model, keys, cp) && model.seq_len % (context_block * cp) == 0)
      degrees.push_back(cp);
  SearchKeys shared = keys;
  shared.cp = degrees;
  const bool shares =
      !degrees.empty() && keep(shared.gather_keys, {1}) && keep(shared.zero_levels, {2, 3});
  std::vector<SearchKeys> found;
  if (!shares || plan::allows(keys.cp, 1)) {
    keep_some(keys, keys.cp, "cp", {1});
    found = torchtitan_searches(keys, most_stages, devices, false);
  }
  if (!shares) return found;
  std::vector<SearchKeys> more = torchtitan_searches(shared, most_stages, devices, false);
  found.insert(found.end(), more.begin(), more.end());
  return found;
}

}  // namespace

TrainerSpace trainer_space(const deck::Deck& deck, const model::Config& model,
                           const hardware::Cluster& cluster) {
  const SearchKeys keys = common(deck.search);
  const int most_stages = std::min(model.num_layers, cluster.devices());
  if (keys.trainer == "megatron") return {megatron_searches(keys, most_stages), nearest_megatron};
  // It does not cut a model into stages whose head is the token table.
  const int stages = model.tied_head ? 1 : most_stages;
  if (model.num_experts == 0)
    return {torchtitan_contexts(keys, model, stages, cluster.devices()), nearest_torchtitan};
  SearchKeys whole = keys;
  keep_some(whole, whole.cp, "cp", {1});
  keep_some(whole, whole.dispatch_tokens, "dispatch_tokens", {1});
  return {torchtitan_searches(whole, stages, cluster.devices(), true), nearest_torchtitan};
}

namespace {

std::string untold_layers(const plan::Plan& plan, const std::string& trainer) {
  int layers = 0, stored = 0, made_again = 0;
  for (const Stage& stage : plan.stages) {
    layers += stage.layers;
    stored += stage.stored_layers;
    made_again += stage.layers - stage.ckpt_layers - stage.stored_layers;
  }
  if (made_again == 0) return {};
  return fmt::format(
      "{} has nothing like no_recompute_layers (here {} of {} layers): it keeps outputs of norms "
      "and "
      "activations of all layers that it does not recompute. {} of them make these again in the "
      "plan, and need more memory there",
      trainer, stored, layers, made_again);
}

}  // namespace

std::string untold(const plan::Plan& plan, const std::string& trainer) {
  std::string said = untold_layers(plan, trainer);
  if (!plan.node_order.empty())
    said += fmt::format("{}start it on nodes {}, in this order", said.empty() ? "" : "; ",
                        fmt::join(plan.node_order, ", "));
  return said;
}

void check_for_trainer(const deck::Deck& deck, const model::Config& model, const plan::Plan& plan) {
  if (deck.search.trainer == "megatron")
    megatron_arguments(deck, model, plan);
  else
    torchtitan_module(deck, model, plan);
}

}  // namespace brume::interop
