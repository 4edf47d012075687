/// @file Files of Mist (EuroSys'25): operator times become a profile, configurations a deck and a
/// plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "hardware/profile.hpp"
#include "plan/plan.hpp"

namespace brume::interop {

/// Mist's description of a machine. Sizes and ranges are checked on reading.
struct MistMachine {
  int nodes = 1;
  int devices_per_node = 1;
  std::vector<double> links;      ///< [4][4][2] nodes, ranks per node in 1 2 4 8; GiB/s, s
  std::vector<double> copy_in;    ///< GiB/s, s
  std::vector<double> copy_out;   ///< GiB/s, s
  std::vector<double> slowdowns;  ///< 28, as mist::Slowdowns
  double memory_gib = 0.0;
};

/// Puts links, copies and slowdowns into a profile. Links of 4.5 GiB/s without latency, which stand
/// where nothing was measured, stay out; pairwise interference is what pairs of tasks measured.
/// @throws Error(input) beginning with `where` when a table has a wrong size or range
void set_machine(hardware::Profile& profile, const MistMachine& machine, const std::string& where);

struct MistProfile {
  hardware::Profile profile;
  int repeated = 0;                  ///< rows left out: same operator and sizes as one before
  int failed = 0;                    ///< rows left out: Mist could not measure them
  std::vector<std::string> unknown;  ///< operators that have no kind here
};

/// Reads operator times: JSON with `entries`, each with `op`, `args`, `fwd_mean_s`, `bwd_mean_s`
/// [s] and `source`, and maybe `hardware_specs.templates`.
///
///   matmul fused_dense_func · attention flash_attn_qkvpacked_func · batched_matmul baddbmm, bmm ·
///   softmax scaled_upper_triang_masked_softmax_fn · add of activations · pointwise torch.add ·
///   dropout Dropout · dropout_inline functional dropout · cast half · view _make_viewless_tensor ·
///   others as there
///
/// @param database  the `source` to take; empty: the only one
/// @param machine   the hardware template to take; empty: none
/// @throws Error(input) naming file and entry
MistProfile read_mist_profile(const std::string& path, const std::string& database,
                              const std::string& machine);

struct MistConfiguration {
  deck::Deck deck;  ///< conventions mist, profile l4
  std::optional<plan::Plan> plan;
  MistMachine machine;
  std::vector<std::string> notes;  ///< facts that the deck lacks
};

/// Reads a resolved configuration, YAML or JSON.
/// @throws Error(input) naming file, line and key
MistConfiguration read_mist_configuration(const std::string& path);

}  // namespace brume::interop
