/// @file The knobs of a plan, each of them one row. Texts of plans, range checks, tables, JSON, the
/// variables of the analyzer's expressions, the columns of the search and its reasons all follow
/// from these rows.
///
/// A new share that leaves the device takes a member of Stage, its row here, a list in
/// deck::SearchKeys with its key, and what it means.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "deck/deck.hpp"
#include "plan/plan.hpp"

namespace brume::plan {

/// A number of a stage that follows from its plan.
using Derived = int (*)(const Plan& plan, int stage);

/// Earlier microbatches in flight on a stage; stages with devices of their own; 1 where a stage
/// differs in dp, cp, tp or microbatch from the first one, but for those of several groups, which
/// always may.
int stage_in_flight(const Plan& plan, int stage);
int num_stages(const Plan& plan, int stage);
int differs_from_first(const Plan& plan, int stage);

using deck::SearchKeys;
using SearchMember =
    std::variant<std::monostate, bool SearchKeys::*, std::vector<int> SearchKeys::*,
                 std::vector<double> SearchKeys::*>;

/// A row. What a row leaves out it does not have.
struct Knob {
  const char* name;         ///< key of a plan's text and of JSON
  const char* former = "";  ///< the key in older plans
  const char* symbol = "";  ///< variable of the analyzer's expressions
  std::variant<int Stage::*, double Stage::*, std::string Stage::*, int Plan::*, int Order::*,
               Derived>
      member;
  SearchMember search = {};  ///< the deck's key, whose bounds are the knob's
  /// Lower bound of a knob without such a key.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double Stage::*part_of = nullptr;  ///< the share of which it is a part
  bool on_disk = false;              ///< ... the one that lies on disk
  bool required = false;             ///< required in a plan's text
  const char* unit = "";
  const char* help = "";      ///< help for a plan's text
  bool if_not_least = false;  ///< a plan's text has it only above its lower bound
  const char* column = "";    ///< heading in the table of stages; shares stand together
  bool rare = false;          ///< its column stands only where it is used
  const char* without = "";   ///< feature that a plan lacks at the lower bound
  bool order = false;         ///< its use makes the order of passes another one than 1F1B
  int turn = 0;  ///< its search key's, where nothing fits; what costs least comes first
};

inline constexpr Knob knobs[] = {
    {.name = "version",
     .member = &Plan::version,
     .required = true,
     .help = "version of this format"},
    {.name = "global_batch",
     .member = &Plan::global_batch,
     .min = 1,
     .required = true,
     .unit = "sequences",
     .help = "global batch per step"},
    {.name = "microbatches",
     .symbol = "G",
     .member = &Plan::microbatches,
     .min = 1,
     .required = true,
     .help = "microbatches per step"},
    {.name = "run_ahead",
     .symbol = "r",
     .member = &Order::run_ahead,
     .search = &SearchKeys::run_ahead,
     .unit = "microbatches",
     .help = "1: 1F1B; 2: eager 1F1B, twice the microbatches in flight",
     .turn = 10},
    {.name = "virtual_stages",
     .former = "chunks",
     .member = &Order::chunks,
     .search = &SearchKeys::chunks,
     .help = "virtual stages per device: stages i, i + S / virtual_stages, ... share devices",
     .if_not_least = true,
     .without = "virtual stages",
     .order = true,
     .turn = 18},
    {.name = "zero_bubble",
     .member = &Order::zero_bubble,
     .search = &SearchKeys::zero_bubble,
     .min = 0,
     .max = 1,
     .help = "1: split backwards that fill idle time (ZB-H1; with run_ahead = 2 ZB-H2)",
     .if_not_least = true,
     .without = "zero bubble",
     .order = true,
     .turn = 19},
    {.name = "num_stages",
     .symbol = "S",
     .member = num_stages,
     .search = &SearchKeys::stages,
     .without = "pipeline parallelism",
     .turn = 12},
    {.name = "in_flight", .symbol = "p", .member = stage_in_flight},
    {.name = "unequal_stages",
     .member = differs_from_first,
     .search = &SearchKeys::unequal_stages,
     .min = 0,
     .without = "unequal stages",
     .turn = 11},
    {.name = "first_layer",
     .member = &Stage::first_layer,
     .min = 0,
     .required = true,
     .help = "first layer of the stage"},
    {.name = "group", .member = &Stage::group, .help = "group of nodes"},
    {.name = "layers",
     .symbol = "l",
     .member = &Stage::layers,
     .min = 0,
     .required = true,
     .help = "number of layers; 0: a first stage of the embedding, or a last one of the head"},
    {.name = "nodes", .symbol = "n", .member = &Stage::nodes, .min = 1, .help = "number of nodes"},
    {.name = "devices_per_node",
     .symbol = "m",
     .member = &Stage::devices_per_node,
     .min = 1,
     .required = true,
     .help = "devices on each node"},
    {.name = "microbatch",
     .symbol = "b",
     .member = &Stage::microbatch,
     .search = &SearchKeys::microbatch,
     .required = true,
     .unit = "sequences",
     .help = "sequences per microbatch and data-parallel rank",
     .column = "b",
     .turn = 9},
    {.name = "dp",
     .symbol = "dp",
     .member = &Stage::dp,
     .search = &SearchKeys::dp,
     .required = true,
     .help = "data-parallel degree",
     .column = "dp",
     .without = "data parallelism",
     .turn = 14},
    {.name = "cp",
     .symbol = "cp",
     .member = &Stage::cp,
     .search = &SearchKeys::cp,
     .help = "context-parallel degree: ranks that share a sequence",
     .if_not_least = true,
     .column = "cp",
     .rare = true,
     .without = "context parallelism",
     .turn = 21},
    {.name = "gather_keys",
     .member = &Stage::gather_keys,
     .search = &SearchKeys::gather_keys,
     .help = "1: ranks that share a sequence gather keys and values; 0: they exchange heads",
     .if_not_least = true,
     .column = "keys",
     .rare = true,
     .without = "gathered keys",
     .turn = 22},
    {.name = "tp",
     .symbol = "tp",
     .member = &Stage::tp,
     .search = &SearchKeys::tp,
     .required = true,
     .help = "tensor-parallel degree",
     .column = "tp",
     .without = "tensor parallelism",
     .turn = 13},
    {.name = "ep",
     .symbol = "ep",
     .member = &Stage::ep,
     .search = &SearchKeys::ep,
     .help = "ranks that divide whole experts: 1 (tp cuts each expert), tp, or tp times a divisor "
             "of dp x cp",
     .if_not_least = true,
     .column = "ep",
     .rare = true,
     .without = "expert parallelism",
     .turn = 20},
    {.name = "dispatch_tokens",
     .member = &Stage::dispatch_tokens,
     .search = &SearchKeys::dispatch_tokens,
     .help =
         "1: ranks that divide experts send a token to the ranks of its experts; 0: they gather "
         "all tokens",
     .if_not_least = true,
     .column = "dispatch",
     .rare = true,
     .without = "dispatched tokens",
     .turn = 23},
    {.name = "mlp_tiles",
     .member = &Stage::mlp_tiles,
     .search = &SearchKeys::mlp_tiles,
     .help = "tiles of tokens in which a rank works on a dense MLP; above 1, each backward makes "
             "a tile's tensors again",
     .if_not_least = true,
     .column = "tiles",
     .rare = true,
     .without = "tiles of the MLP",
     .turn = 24},
    {.name = "zero_level",
     .symbol = "z",
     .member = &Stage::zero_level,
     .search = &SearchKeys::zero_levels,
     .help = "0: none; 1: optimizer state sharded; 2: also gradients; 3: also weights",
     .column = "ZeRO",
     .without = "ZeRO",
     .turn = 2},
    {.name = "replicas",
     .symbol = "R",
     .member = &Stage::replicas,
     .search = &SearchKeys::shard_within_node,
     .min = 1,
     .help = "copies of the sharded state (HSDP)",
     .column = "replicas",
     .rare = true,
     .without = "shards within nodes",
     .turn = 15},
    {.name = "full_recompute_layers",
     .former = "ckpt_layers",
     .symbol = "c",
     .member = &Stage::ckpt_layers,
     .search = &SearchKeys::recompute,
     .min = 0,
     .help = "last layers of the stage with full recomputation",
     .column = "recomputed",
     .without = "recomputation",
     .turn = 1},
    {.name = "no_recompute_layers",
     .former = "stored_layers",
     .symbol = "k",
     .member = &Stage::stored_layers,
     .search = &SearchKeys::store,
     .min = 0,
     .help = "first layers of the stage without any recomputation",
     .if_not_least = true,
     .column = "stored",
     .rare = true,
     .without = "stored layers",
     .turn = 16},
    {.name = "weight_offload_ratio",
     .symbol = "w",
     .member = &Stage::weight_offload_ratio,
     .search = &SearchKeys::weight_offload,
     .help = "share of weights in CPU memory",
     .without = "weight offload",
     .turn = 5},
    {.name = "grad_offload_ratio",
     .symbol = "g",
     .member = &Stage::grad_offload_ratio,
     .search = &SearchKeys::grad_offload,
     .help = "share of gradients in CPU memory",
     .without = "gradient offload",
     .turn = 6},
    {.name = "optim_offload_ratio",
     .symbol = "o",
     .member = &Stage::optim_offload_ratio,
     .search = &SearchKeys::optim_offload,
     .help = "share of optimizer state in CPU memory or on disk",
     .without = "optimizer offload",
     .turn = 3},
    {.name = "act_offload_ratio",
     .symbol = "a",
     .member = &Stage::act_offload_ratio,
     .search = &SearchKeys::act_offload,
     .help = "share of saved activations in CPU memory or on disk",
     .without = "activation offload",
     .turn = 4},
    {.name = "optim_disk_ratio",
     .symbol = "od",
     .member = &Stage::optim_disk_ratio,
     .search = &SearchKeys::optim_disk,
     .part_of = &Stage::optim_offload_ratio,
     .on_disk = true,
     .help = "share of optimizer state on disk, part of optim_offload_ratio",
     .if_not_least = true,
     .without = "disk",
     .turn = 7},
    {.name = "act_disk_ratio",
     .symbol = "ad",
     .member = &Stage::act_disk_ratio,
     .search = &SearchKeys::act_disk,
     .part_of = &Stage::act_offload_ratio,
     .on_disk = true,
     .help = "share of saved activations on disk, part of act_offload_ratio",
     .if_not_least = true,
     .without = "disk",
     .turn = 8},
    {.name = "host_update_ratio",
     .symbol = "oh",
     .member = &Stage::host_update_ratio,
     .search = &SearchKeys::host_update,
     .part_of = &Stage::optim_offload_ratio,
     .help = "share of optimizer state that the CPU updates, part of optim_offload_ratio",
     .if_not_least = true,
     .column = "host update",
     .rare = true,
     .without = "updates on the host",
     .turn = 17},
};

using Knobs = std::span<const Knob>;

/// The variable of a member in the analyzer's expressions.
constexpr const char* symbol(auto member) {
  for (const Knob& knob : knobs)
    if (knob.member == decltype(knob.member)(member)) return knob.symbol;
  return "";
}

/// A knob that is a share of what does not stay on the device, or a part of such a share.
struct Share {
  const Knob* knob;
  double Stage::*ratio;
  std::optional<std::size_t> whole;  ///< among the shares, the one of which it is a part

  bool on_disk() const { return knob->on_disk; }
  /// Values that the search tries; for parts relative to their whole.
  std::vector<double> SearchKeys::*list() const {
    return std::get<std::vector<double> SearchKeys::*>(knob->search);
  }
};

inline constexpr std::size_t num_shares = [] {
  std::size_t count = 0;
  for (const Knob& knob : knobs) count += std::holds_alternative<double Stage::*>(knob.member);
  return count;
}();

/// All shares, in the order of their rows.
inline constexpr auto shares = [] {
  std::array<Share, num_shares> all{};
  std::size_t count = 0;
  for (const Knob& knob : knobs) {
    if (!std::holds_alternative<double Stage::*>(knob.member)) continue;
    // Not get_if: GCC's undefined-behaviour sanitizer cannot compare its pointer in a constant.
    const auto ratio = std::get<double Stage::*>(knob.member);
    Share& share = all[count++] = {.knob = &knob, .ratio = ratio, .whole = {}};
    for (std::size_t i = 0; knob.part_of && i + 1 < count; ++i)
      if (all[i].ratio == knob.part_of) share.whole = i;
  }
  return all;
}();

/// Calls `visit` with each row whose member is one of T, and with the member.
template <class T>
void for_members(Knobs rows, const auto& visit) {
  for (const Knob& knob : rows)
    std::visit(
        [&](auto member) {
          if constexpr (requires(T object) { object.*member; }) visit(knob, member);
        },
        knob.member);
}

/// The ratios of a stage joined by "/": "0/0/1/0.5" of what leaves the device, or of what lies on
/// disk; their symbols alike: "w/g/o/a", "o/a". Other parts have columns of their own.
std::string ratios(const Stage& stage, bool on_disk);
std::string symbols(bool on_disk);

/// A knob's value for a stage of a plan; 0 of a name.
double number(const Knob& knob, const Plan& plan, int stage);

/// The keys of a stage's text and of a plan's.
deck::Schema<Stage> stage_schema(Knobs rows = knobs);
deck::Schema<Plan> plan_schema(Knobs rows = knobs);

/// Checks that each number is within its bounds, and the parts of a share together within it.
/// @throws Error(input) naming the stage, the key, what was expected and found
void check_ranges(const Plan& plan, Knobs rows = knobs);

/// The knobs that have a turn, in its order.
std::vector<const Knob*> in_turn();

/// Whether some stage has what `without` names.
bool used(const Knob& knob, const Plan& plan);

/// Lets the search have its lower bound only. @return whether it could have that before
bool forbid(const Knob& knob, SearchKeys& keys);

/// Lets the search try all of it: none, half and all of a share, all whole numbers within the
/// bounds, all that make sense where there are none. @return "tp = []"; empty where it was so
std::string allow(const Knob& knob, SearchKeys& keys);

}  // namespace brume::plan
