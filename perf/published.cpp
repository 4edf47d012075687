/// @file Simulated times and predicted memory beside published ones, with the machines that come
/// with Brume:
/// perf_published [--cases] [FILE]; with --csv, machine, published and simulated seconds of the
/// cases that count, for perf/data/published.csv; with --plans, the plans that a search finds
/// next to the published layouts of 256 to 1,024 devices, all simulated; with --generation, times
/// of generation alone.
///
/// Nothing is fitted to a case: its layout becomes a plan, its device and network name a machine.
/// Where the published system does something else than Brume, its row says what. Passes over
/// attention's scores, where attention was not fused, are added to the simulated time; where it was
/// FlashAttention 1, it is as fast as that was.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "analyzer/analyzer.hpp"
#include "base/error.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "deck/machine.hpp"
#include "hardware/machine.hpp"
#include "published_cases.hpp"
#include "published_generation.hpp"
#include "schedule/steady.hpp"
#include "tuner/tuner.hpp"

namespace {

using namespace brume;
using namespace brume::perf;
using nlohmann::json;

/// What attention that is not fused reads and writes of its scores takes beside what is simulated
/// [s]: per layer and microbatch 6 passes over [b, heads / tp, s, s] forward (product, softmax,
/// dropout, product), as many where recomputed, and 8 backward.
double scores_s(const Case& c, const hardware::Profile& profile) {
  std::vector<double> device_s(std::size_t(c.plan.pipeline_size()), 0.0);
  for (std::size_t i = 0; i < c.plan.stages.size(); ++i) {
    const plan::Stage& stage = c.plan.stages[i];
    const double scores = double(stage.microbatch) * c.model.num_heads / stage.tp *
                          double(c.model.seq_len) * double(c.model.seq_len);
    const double passes = 14.0 * stage.layers + 6.0 * stage.ckpt_layers;
    constexpr double reached = 0.8;  // of the memory's bandwidth, as other passes
    device_s[i % device_s.size()] += passes * 2.0 * scores / (reached * profile.bytes_per_s);
  }
  const double filling = double(c.plan.pipeline_size() - 1) / c.plan.order.chunks;
  return std::ranges::max(device_s) * (c.plan.microbatches + filling);
}

/// The machine of a case, with attention as fast as it was there.
hardware::Profile profile_of(const Case& c) {
  deck::GroupKeys group;
  group.machine = c.machine;
  group.network = c.network;
  group.devices_per_node = deck::load_machine(c.machine).devices_per_node;
  hardware::Profile profile = hardware::machine_profile(group);
  if (c.differs == first_flash_attention)
    for (hardware::EfficiencyRow& row : profile.efficiencies)
      if (row.kind == "attention")
        row.efficiency = std::min(row.efficiency, first_flash_attention_share);
  return profile;
}

/// A step of the published layout, with the passes over scores that its attention makes [s].
double simulated_s(const Case& c) {
  const hardware::Machine machine(profile_of(c));
  const double time_s = schedule::steady_time(c.plan, c.model, machine);
  const bool unfused = c.differs.find(unfused_attention) != std::string::npos;
  return unfused ? time_s + scores_s(c, machine.profile(0)) : time_s;
}

/// Ratios of one model and microbatch on more and more ranks, by source.
using Series = std::map<std::string, std::map<std::string, std::map<int, double>>>;

/// All that a case is but for the number of its replicas.
std::string without_replicas(const Case& c) {
  const plan::Stage& stage = c.plan.stages[0];
  return fmt::format("{} {} {} {} {} {} {} {}", model::text(c.model), c.machine,
                     c.plan.microbatches, c.plan.num_stages(), stage.tp, stage.microbatch,
                     stage.zero_level, c.recompute);
}

void print(const Series& all) {
  for (const auto& [source, series] : all) {
    std::vector<double> slopes;
    for (const auto& [_, ratios] : series)
      if (ratios.size() > 1) {
        const auto [few, first] = *ratios.begin();
        const auto [many, last] = *ratios.rbegin();
        slopes.push_back(std::log(last / first) / std::log2(double(many) / few));
      }
    if (!slopes.empty())
      fmt::print(
          "{}: simulated / published changes by {:+.1f} % with each doubling of ranks "
          "(median of {} series)\n",
          source, 100.0 * median(slopes), slopes.size());
  }
}

/// Ratios by source, machine and what the source does otherwise.
using Ratios = std::map<std::vector<std::string>, std::vector<double>>;

void print(const std::string& what, const Ratios& ratios) {
  Table table({what, "machine", "cases", "median", "0.8-1.25", "least", "most",
               "what the source measures or does otherwise"});
  for (const auto& [key, r] : ratios) {
    const auto near = std::ranges::count_if(r, [](double x) { return x >= 0.8 && x <= 1.25; });
    table.add({key[0], key[1], std::to_string(r.size()), fmt::format("{:.3f}", median(r)),
               fmt::format("{:.0f} %", 100.0 * double(near) / double(r.size())),
               fmt::format("{:.2f}", std::ranges::min(r)),
               fmt::format("{:.2f}", std::ranges::max(r)), key[2]});
  }
  std::cout << table.text() << '\n';
}

json load(const std::string& path) {
  std::ifstream file(path);
  require(file.is_open(), Failure::input, "{}: cannot be opened", path);
  return json::parse(file);
}

/// Of models that differ in heads, vocabulary and number format alone the first stands for all.
std::string job(const Case& c) {
  return fmt::format("{} {} {} {} {} {} {} {} {}", c.model.family->name, c.model.num_layers,
                     c.model.hidden_size, c.model.ffn_size, c.model.seq_len, c.machine, c.network,
                     c.gpus, c.plan.global_batch);
}

/// Prints the plan that a search finds for the first of the jobs, next to the published layouts.
void compare_plans(const std::vector<Case>& alike) {
  const Case& first = alike[0];
  const hardware::Machine machine(profile_of(first));
  const deck::MachineKeys keys = deck::load_machine(first.machine);
  const auto bytes = [](double gib) { return std::int64_t(gib * 0x1p30); };
  const hardware::Cluster cluster = hardware::usable(
      hardware::NodeGroup{.nodes = int(ceil_div(first.gpus, keys.devices_per_node)),
                          .devices_per_node = keys.devices_per_node,
                          .memory_bytes = bytes(keys.memory_gib),
                          .host_memory_bytes = bytes(keys.host_memory_gib)},
      machine);
  fmt::print("{} x {}, {} layers of {}, batch {}: ", first.gpus, first.machine,
             first.model.num_layers, first.model.hidden_size, first.plan.global_batch);
  double best_s = infinity;
  try {
    const tuner::Result found =
        tuner::tune(first.model, first.plan.global_batch, cluster, machine, {}, {.reasons = false});
    best_s = found.best[0].seconds();
    fmt::print("{} by {}\n", format_seconds(best_s), tuner::summary(found.best[0].plan));
  } catch (const tuner::Infeasible& none) {
    fmt::print("{}\n", none.what());
  }
  std::set<std::string> seen;
  for (const Case& c : alike) {
    if (!seen.insert(plan::text(c.plan)).second) continue;
    std::int64_t peak = 0;
    for (const auto& stage : analyzer::analyze(c.plan, first.model, machine).stages)
      peak = std::max(peak, stage.peak_bytes());
    const double seconds = schedule::steady_time(c.plan, first.model, machine);
    const std::int64_t excess = peak - cluster.groups[0].memory_bytes;
    fmt::print("  {:.3f} {}  {}  {}: {}\n", best_s / seconds,
               excess > 0         ? format_bytes(double(excess)) + " too large"
               : best_s > seconds ? "FASTER"
                                  : "",
               format_seconds(seconds), tuner::summary(c.plan), c.id);
  }
}

void compare_plans(const json& published) {
  std::map<std::string, std::vector<Case>> jobs;
  for (const json& entry : published.at("cases"))
    if (const std::optional<Case> c = read(entry);
        c && c->gpus <= 1024 && (c->gpus >= 256 || c->plan.stages[0].cp > 1))
      jobs[job(*c)].push_back(*c);
  for (const auto& [_, alike] : jobs) compare_plans(alike);
}

/// The cases that count, as lines of a table.
void print_csv(const json& published) {
  fmt::print("machine,published_s,simulated_s\n");
  for (const json& entry : published.at("cases")) {
    const std::optional<Case> c = read(entry);
    const std::optional<double> seconds = c ? published_s(*c) : std::nullopt;
    if (!seconds || !is_counted(c->differs)) continue;
    fmt::print("{},{:.6g},{:.6g}\n", c->machine, *seconds, simulated_s(*c));
  }
}

void compare(const json& published, bool each) {
  Ratios times, memory, states;
  Series series;
  int left_out = 0;
  for (const json& entry : published.at("cases")) {
    const std::optional<Case> c = read(entry);
    const std::optional<double> seconds = c ? published_s(*c) : std::nullopt,
                                bytes = c ? published_bytes(*c) : std::nullopt;
    if (!seconds && !bytes) {
      ++left_out;
      continue;
    }
    const hardware::Machine machine(profile_of(*c));
    const analyzer::Prediction predicted = analyzer::analyze(c->plan, c->model, machine);
    double peak = 0.0;
    for (const analyzer::StagePrediction& stage : predicted.stages)
      peak = std::max(peak, double(stage.peak_bytes()));
    // What is counted outside of the program holds libraries and the driver too.
    if (c->unit.find("nvidia-smi") != std::string::npos)
      peak += double(machine.profile(0).reserved_bytes);
    const double time_s = simulated_s(*c);
    if (is_state(*c)) peak = state_bytes(*c);
    const double said = seconds ? *seconds : bytes.value();
    const double ratio = (seconds ? time_s : peak) / said;
    const std::string name = c->machine + (c->network.empty() ? "" : " " + c->network);
    std::string words = seconds ? c->differs : measure(entry);
    if (!seconds && !c->differs.empty()) words += "; " + c->differs;
    (seconds ? times : is_state(*c) ? states : memory)[{c->source, name, words}].push_back(ratio);
    if (seconds) series[c->source][without_replicas(*c)][c->gpus] = ratio;
    if (each)
      fmt::print("{:.3f}  {:44}  {}  {}\n", ratio, c->id,
                 seconds ? fmt::format("{:.4g} s of {:.4g}", time_s, said)
                         : fmt::format("{} of {}", format_bytes(peak), format_bytes(said)),
                 name);
  }
  print("simulated / published time", times);
  print("predicted / published memory", memory);
  print("predicted / published state", states);
  print(series);
  compare_generation(published);
  Ratios counted;
  std::map<std::string, std::vector<double>> alike;
  for (const auto& [key, ratios] : times)
    if (is_counted(key[2]))
      for (const double ratio : ratios) {
        counted[{key[0], "all", ""}].push_back(ratio);
        alike[key[1].substr(0, key[1].find(' '))].push_back(std::pow(std::log(ratio), 2));
      }
  print("of these, where Brume does the same or counts what differs", counted);
  for (const auto& [machine, squares] : alike)
    fmt::print(
        "{}: {} times of sources that do as Brume does, or whose attention is counted, off by "
        "{:.0f} % (root mean square)\n",
        machine, squares.size(),
        100.0 * std::sqrt(std::reduce(squares.begin(), squares.end()) / double(squares.size())));
  fmt::print("left out: {} cases that no plan expresses, or of other devices or quantities\n",
             left_out);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string path = BRUME_PUBLISHED;
    bool each = false, plans = false, csv = false, generation = false;
    for (const std::string argument : std::span(argv + 1, argv + argc)) {
      each = each || argument == "--cases";
      plans = plans || argument == "--plans";
      csv = csv || argument == "--csv";
      generation = generation || argument == "--generation";
      if (!argument.starts_with("--")) path = argument;
    }
    if (plans)
      compare_plans(load(path));
    else if (csv)
      print_csv(load(path));
    else if (generation)
      compare_generation(load(path));
    else
      compare(load(path), each);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
