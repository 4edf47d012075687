#include "plan/shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "base/device_limits.hpp"
#include "base/numbers.hpp"
#include "base/text.hpp"

namespace brume::plan {
namespace {

/// Larger ones only where the deck lists them: beyond it products are hardly more efficient.
constexpr int largest_microbatch = 32;

bool allows_microbatch(const deck::SearchKeys& search, int microbatch) {
  return search.microbatch.empty() ? microbatch <= largest_microbatch
                                   : allows(search.microbatch, microbatch);
}

/// Groups of tp within a node; where the deck lists them, of whole nodes too.
bool allows_tp(const deck::SearchKeys& search, int tp, int per_node) {
  return allows(search.tp, tp) && (tp <= per_node || (!search.tp.empty() && tp % per_node == 0));
}

/// The degrees by which each of tp ranks has a part of the FFN, or of ep ranks whole experts: ranks
/// within a node, or whole nodes of them. Where the deck lists none, between tp and the largest one
/// only the largest within a node.
std::vector<int> expert_degrees(const model::Config& model, const deck::SearchKeys& search,
                                const StageShape& shape) {
  std::vector<int> found;
  const bool may_cut = shape.tp == 1 || !model.adapter.is_of_experts();
  if (may_cut && model.inner_size() % shape.tp == 0) found.push_back(1);
  if (model.num_experts > 0)
    for (const int data_ranks : divisors(shape.dp * shape.cp)) {
      const int ep = shape.tp * data_ranks, per_node = shape.devices_per_node;
      if (ep > 1 && model.num_experts % ep == 0 && (per_node % ep == 0 || ep % per_node == 0))
        found.push_back(ep);
    }
  if (!search.ep.empty()) {
    std::erase_if(found, [&](int ep) { return !allows(search.ep, ep); });
  } else if (found.size() > 2) {
    int within_node = shape.tp;
    for (const int ep : found)
      if (ep <= shape.devices_per_node) within_node = ep;
    const int largest = found.back();
    std::erase_if(found,
                  [&](int ep) { return ep > shape.tp && ep != within_node && ep != largest; });
  }
  return found;
}

/// Shorter sequences are cut only where the deck lists it: users of other trainers begin here
/// (Megatron-LM's documentation of context parallelism).
constexpr int most_whole_tokens = 8192;

/// The exchanges to try of ranks that share a sequence: Stage::gather_keys.
std::vector<int> exchanges(const model::Config& model, const deck::SearchKeys& search, int tp,
                           int cp) {
  std::vector<int> found;
  for (const int gather_keys : {0, 1}) {
    if (cp == 1 ? gather_keys == 1 : !allows(search.gather_keys, gather_keys)) continue;
    const bool pairs = search.paired_contexts && gather_keys == 0;
    if (pairs && !paired_context_fault(model, cp, tp).empty()) continue;
    found.push_back(gather_keys);
  }
  return found;
}

/// A search tries so many tiles or more by itself, for sequences that it may cut.
constexpr int least_tiles = 16;

/// The numbers of tiles to try: Stage::mlp_tiles. Of several sequences fewer take as little memory.
std::vector<int> numbers_of_tiles(const model::Config& model, const deck::SearchKeys& search,
                                  const StageShape& shape) {
  std::vector<int> found = search.mlp_tiles;
  if (found.empty()) {
    found = {1};
    const std::int64_t tiles = ceil_div(model.computed_tokens() / shape.cp, model.hidden_size);
    const bool is_long = model.computed_tokens() > most_whole_tokens && tiles >= least_tiles;
    if (shape.microbatch == 1 && is_long) found.push_back(int(tiles));
  }
  std::erase_if(found, [&](int tiles) {
    const model::Split split{
        .tp = shape.tp, .microbatch = shape.microbatch, .cp = shape.cp, .mlp_tiles = tiles};
    return !tile_fault(model, split).empty();
  });
  return found;
}

/// The mesh of dp * cp * tp devices, within a node or of whole nodes, as each group of tp is.
std::optional<StageShape> mesh(int dp, int cp, int tp, const hardware::NodeGroup& group) {
  const std::int64_t devices = std::int64_t{dp} * cp * tp;
  const int per_node = group.devices_per_node;
  if (devices > group.devices()) return std::nullopt;
  StageShape shape{.devices_per_node = int(devices), .dp = dp, .cp = cp, .tp = tp};
  if (devices <= per_node) return shape;
  if (devices % per_node != 0 || (per_node % tp != 0 && tp % per_node != 0)) return std::nullopt;
  shape.nodes = int(devices / per_node);
  shape.devices_per_node = per_node;
  return shape;
}

/// Whether some pipeline that the search tries may have a stage of so many devices.
bool fits_some_pipeline(int devices, const model::Config& model, const hardware::Cluster& cluster,
                        const deck::SearchKeys& search) {
  for (int num_stages = 1; num_stages <= std::min(model.num_layers, cluster.devices());
       ++num_stages)
    if (allows(search.stages, num_stages) && may_hold(num_stages, devices, cluster, search))
      return true;
  return false;
}

}  // namespace

bool allows_cp(const model::Config& model, const deck::SearchKeys& search, int cp) {
  if (!allows(search.cp, cp)) return false;
  if (cp == 1) return true;
  return !search.cp.empty() || model.seq_len > most_whole_tokens;
}

std::string tensor_fault(const model::Config& model, int tp, int ep) {
  if (model.num_heads % tp != 0)
    return fmt::format("tp = {} must divide num_heads = {}", tp, model.num_heads);
  if (model.qk_norm_joint && tp > 1)
    return fmt::format("tp must be 1 for qk_norm_joint, whose norms take all heads, found {}", tp);
  if (model.first_dense_layers > 0 && model.ffn_size % tp != 0)
    return fmt::format("tp = {} must divide ffn_size = {}", tp, model.ffn_size);
  const int shared = model.shared_expert_ffn_size, parts = std::max(tp, ep);
  if (shared % parts != 0)
    return fmt::format("{} = {} must divide shared_expert_ffn_size = {}", ep > tp ? "ep" : "tp",
                       parts, shared);
  if (shared > 0 && ep > tp && model.optimizer->unit() == model::UpdateUnit::matrix)
    return fmt::format(
        "ep = {} must be at most tp = {} for optimizer \"{}\" and a shared expert, whose matrices "
        "tp ranks bring together",
        ep, tp, model.optimizer->name);
  return model::quantization_fault(model, tp, ep);
}

std::string context_fault(const model::Config& model, const model::Split& split) {
  const int cp = split.cp, tp = split.tp;
  if (cp == 1 && split.gather_keys == 1) return "gather_keys must be 0 if cp is 1";
  if (cp == 1) return {};
  if (split.microbatch != 1)
    return fmt::format("microbatch must be 1 where cp = {} ranks share a sequence, found {}", cp,
                       split.microbatch);
  if (split.gather_keys == 1)
    return model.padded_len() % (2 * cp) == 0
               ? std::string()
               : fmt::format(
                     "2 cp = {} must divide the {} tokens of a sequence for gather_keys = 1",
                     2 * cp, model.padded_len());
  if (model.padded_len() % cp != 0)
    return fmt::format("cp = {} must divide the {} tokens of a sequence", cp, model.padded_len());
  const int heads = model.num_heads / tp, keys = model.kv_heads() / tp;
  if (model.kv_heads() % tp != 0)
    return fmt::format("tp = {} must divide the {} key heads where cp > 1", tp, model.kv_heads());
  if (heads % cp != 0)
    return fmt::format("cp = {} must divide the {} heads of a tensor-parallel rank", cp, heads);
  if (keys % cp != 0 && cp % keys != 0)
    return fmt::format(
        "cp = {} must divide the {} key heads of a tensor-parallel rank, or be a "
        "multiple of them",
        cp, keys);
  return {};
}

std::string dispatch_fault(const model::Split& split) {
  if (split.dispatch_tokens == 0) return {};
  if (split.expert_data_ranks() == 1)
    return fmt::format("dispatch_tokens must be 0 unless ep > tp, found ep = {} and tp = {}",
                       split.ep, split.tp);
  return {};
}

std::string tile_fault(const model::Config& model, const model::Split& split) {
  if (split.mlp_tiles == 1) return {};
  const auto must_be_1 = [&](const char* reason) {
    return fmt::format("mlp_tiles must be 1 {}, found {}", reason, split.mlp_tiles);
  };
  if (model.num_experts > 0) return must_be_1("for a model with experts");
  if (model.parallel()) return must_be_1("for a model whose attention and MLP read the same input");
  if (split.tp > 1) return must_be_1("unless tp is 1");
  const std::int64_t tokens = std::int64_t{split.microbatch} * model.computed_tokens() / split.cp;
  if (split.mlp_tiles > tokens)
    return fmt::format("mlp_tiles must be at most the {} tokens that a rank computes, found {}",
                       tokens, split.mlp_tiles);
  return {};
}

std::string device_fault(const model::Config& model, const model::Split& split) {
  const int sharing = model.num_heads / model.kv_heads();
  const int queries = model.padded_len() / (split.gather_keys == 1 ? split.cp : 1);
  if (std::int64_t{sharing} * queries <= device_limits::queries_of_key_head) return {};
  return fmt::format(
      "sequences are too long for the kernels of GPUs: found {} query heads per key head x {} "
      "queries of a rank, expected at most {}. Use more ranks of cp with gather_keys = 1, lower "
      "model.seq_len, or train on CPUs",
      sharing, queries, device_limits::queries_of_key_head);
}

std::string paired_context_fault(const model::Config& model, int cp, int tp) {
  if (cp == 1) return {};
  const int keys = model.kv_heads() / tp;
  if (keys % cp != 0)
    return fmt::format("cp = {} that does not divide the {} key heads of a tensor-parallel rank",
                       cp, keys);
  if (model.seq_len % (2 * cp) != 0)
    return fmt::format("cp = {}, twice of which does not divide seq_len = {}", cp, model.seq_len);
  return {};
}

bool may_hold(int num_stages, int devices, const hardware::Cluster& cluster,
              const deck::SearchKeys& search) {
  const int all = cluster.devices();
  if (search.unequal_stages || cluster.num_groups() > 1) return devices <= all - num_stages + 1;
  return std::int64_t{devices} * num_stages == all;
}

std::vector<StageShape> stage_shapes(const model::Config& model, int global_batch,
                                     const hardware::Cluster& cluster, int group,
                                     const deck::SearchKeys& search) {
  const hardware::NodeGroup& nodes = cluster.groups[group];
  std::vector<StageShape> found;
  for (int tp = 1; tp <= nodes.devices(); ++tp) {
    if (!allows_tp(search, tp, nodes.devices_per_node)) continue;
    std::map<int, bool> known;  // by ep
    const auto fits = [&](int ep) {
      const auto [at, is_new] = known.try_emplace(ep);
      if (is_new) at->second = tensor_fault(model, tp, ep).empty();
      return at->second;
    };
    if (!fits(1) && !fits(tp)) continue;
    for (int cp = 1; cp <= nodes.devices() / tp; ++cp) {
      if (!allows_cp(model, search, cp)) continue;
      for (const int gather_keys : exchanges(model, search, tp, cp)) {
        const auto may_share = [&](int microbatch) {
          const model::Split split{
              .tp = tp, .microbatch = microbatch, .cp = cp, .gather_keys = gather_keys};
          return context_fault(model, split).empty() &&
                 (!nodes.on_device || device_fault(model, split).empty());
        };
        if (!may_share(1)) continue;
        for (int dp : divisors(global_batch)) {
          if (!allows(search.dp, dp)) continue;
          std::optional<StageShape> shape = mesh(dp, cp, tp, nodes);
          if (!shape || !fits_some_pipeline(shape->devices(), model, cluster, search)) continue;
          shape->gather_keys = gather_keys;
          for (int microbatch : divisors(global_batch / dp)) {
            if (!allows_microbatch(search, microbatch) || !may_share(microbatch)) continue;
            if (std::int64_t{microbatch} * model.padded_len() / cp % tp != 0) continue;
            shape->microbatch = microbatch;
            for (const int ep : expert_degrees(model, search, *shape)) {
              if (!fits(ep)) continue;
              shape->ep = ep;
              for (const int dispatch_tokens : {0, 1}) {
                const model::Split split{.tp = tp, .ep = ep, .dispatch_tokens = dispatch_tokens};
                const bool divides = split.expert_data_ranks() > 1;
                if (divides ? !allows(search.dispatch_tokens, dispatch_tokens)
                            : dispatch_tokens > 0)
                  continue;
                if (!dispatch_fault(split).empty()) continue;
                shape->dispatch_tokens = dispatch_tokens;
                for (const int tiles : numbers_of_tiles(model, search, *shape)) {
                  shape->mlp_tiles = tiles;
                  found.push_back(*shape);
                }
              }
            }
          }
        }
      }
    }
  }
  return found;
}

}  // namespace brume::plan
