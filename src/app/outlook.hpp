/// @file What people ask of a plan first: how fast, how long, how well, and where time and memory
/// go.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "report/plan_page.hpp"
#include "schedule/account.hpp"
#include "tuner/tuner.hpp"

namespace brume::app {

/// Failures of nodes, and the share of a training's time that they leave.
struct Failures {
  double mtbf_hours = 0.0;  ///< of the job; 0: not known
  double restart_s = 0.0;
  double interval_s = 0.0;  ///< between checkpoints
  double goodput = 1.0;     ///< share of the time in which steps are made that stay
};

/// Of one plan on one machine.
struct Outlook {
  double error = 0.0;  ///< of the iteration's time, relative, as the profiles say; 0: they say none
  double tokens_per_s = 0.0;
  int devices = 1;
  double flops_per_s = 0.0;           ///< model FLOPs, of all devices
  double peak_flops_per_s = 0.0;      ///< of all devices, as the profiles say; 0: they say none
  double steps = 0.0;                 ///< of the training; 0: known with the data only
  std::set<std::string> float8 = {};  ///< of fp8, what the profiles know of its speed
  int padded_len = 0;                 ///< tokens of a padded sequence; 0: not padded
  std::string frozen;                 ///< what is not trained; empty: nothing
  Failures failures = {};
  schedule::Account account;

  double mfu() const { return peak_flops_per_s > 0.0 ? flops_per_s / peak_flops_per_s : 0.0; }
  double hours() const { return steps * account.iteration_s / 3600.0; }
  double hours_with_failures() const { return hours() / failures.goodput; }
};

/// What a plan's devices reach together in large matrix products, as their profiles say; 0: they
/// say nothing.
double peak_flops_per_s(const plan::Plan& plan, const model::Config& model,
                        const hardware::Machine& machine);

/// As simulated.
/// @param known  that simulation, taken apart; none: it is made here
Outlook outlook(const deck::Deck& deck, const model::Config& model,
                const hardware::Machine& machine, const plan::Plan& plan,
                const std::optional<schedule::Account>& known = {});

/// Lines on speed, length and the share of time in which devices wait.
std::string text(const Outlook& outlook, const plan::Plan& plan);

/// What is live at once on each stage's fullest device, and what libraries take there.
///
/// @param cluster  as the deck gives it, `reserved` not taken off
std::vector<report::StageBytes> memory_by_kind(const Outlook& outlook, const plan::Plan& plan,
                                               const hardware::Machine& machine,
                                               const hardware::Cluster& cluster);

/// Tables of each stage's time, which adds up to the iteration, and of its fullest device's memory,
/// which adds up to what is live at once.
///
/// @param cluster  as for memory_by_kind
std::string tables(const Outlook& outlook, const plan::Plan& plan, const hardware::Machine& machine,
                   const hardware::Cluster& cluster, std::size_t columns);

/// All that a search says of its result, in lines of at most so many columns.
///
/// @param usable  the cluster without what libraries take
std::string text(const tuner::Result& result, const Outlook& outlook, const deck::Deck& deck,
                 const hardware::Machine& machine, const hardware::Cluster& usable,
                 std::size_t columns);

nlohmann::json described(const Outlook& outlook, const plan::Plan& plan);

}  // namespace brume::app
