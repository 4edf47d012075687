#include "planning.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "hardware/cluster.hpp"
#include "interop/trainer_space.hpp"
#include "outlook.hpp"
#include "plan/padding.hpp"
#include "schedule/account.hpp"
#include "search_state.hpp"
#include "search_watch.hpp"

namespace brume::app {
namespace {

/// The kinds of buffers that take most where a rank needs most, for the user to know what to
/// change.
std::string largest_contributors(const schedule::Program& program) {
  const auto bytes = schedule::live_by_content(program);
  std::vector<std::pair<std::int64_t, schedule::Content>> order;
  for (int content = 0; content < schedule::num_contents; ++content)
    order.emplace_back(bytes[content], schedule::Content(content));
  std::sort(order.rbegin(), order.rend());
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, order.size()); ++i)
    text += fmt::format("{}{} {}", i ? ", " : "", schedule::name(order[i].second),
                        format_bytes(double(order[i].first)));
  return text;
}

/// What of a node's memory plans may use where nobody says it: a third for what is offloaded; on
/// hosts another one for what stands for devices. The last one is everybody else's [GiB].
double third_of_memory_gib() {
  return std::ldexp(double(std::max<std::int64_t>(device::installed_bytes(), 0)) / 3.0, -30);
}

/// The same of the node that has least; of devices what a rank has where it has least, on hosts its
/// part of the third. Collective over `world`.
deck::MemoryAtHand least_memory(comm::Communicator& world, int ranks_per_node) {
  const device::Description device = device::describe_device();
  const int sharing = std::max(1, int(ceil_div(ranks_per_node, std::max(1, device.on_node))));
  const double third_gib = third_of_memory_gib();
  const double device_gib = device.name.empty()
                                ? third_gib / ranks_per_node
                                : std::ldexp(double(device.memory_bytes) / sharing, -30);
  std::array<double, 2> least{third_gib, device_gib};
  world.all_reduce(least, comm::Reduction::min);
  return {.node_gib = least[0], .device_gib = least[1]};
}

deck::Deck read_deck(const std::string& path, const std::vector<std::string>& overrides,
                     const deck::MemoryAtHand& memory) {
  deck::Deck deck = deck::load(path, overrides, memory);
  deck.model = model::resolved(deck.model);
  return deck;
}

}  // namespace

deck::Deck load_deck(const std::string& path, const std::vector<std::string>& overrides) {
  return read_deck(path, overrides, {.node_gib = third_of_memory_gib()});
}

deck::Deck load_deck(comm::Communicator& world, int ranks_per_node, const std::string& path,
                     const std::vector<std::string>& overrides) {
  const deck::MemoryAtHand memory = least_memory(world, ranks_per_node);
  std::string text;
  comm::together(world, [&] {
    if (world.rank() == 0) text = deck::schema().write(read_deck(path, overrides, memory));
  });
  return deck::parse(comm::broadcast(world, text, 0), path);
}

void print(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  require(written, Failure::storage, "standard output cannot be written: {}", last_error());
}

void check_writable(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code none;
  const bool is_there = fs::exists(path, none);
  const fs::path folder = fs::path(path).parent_path();
  const std::string asked = is_there ? path : folder.empty() ? "." : folder.string();
  const bool writable = ::access(asked.c_str(), is_there ? W_OK : W_OK | X_OK) == 0;
  require(writable && !(is_there && fs::is_directory(path, none)), Failure::storage,
          "cannot write {}: {}", path, writable ? "it is a folder" : last_error());
}

void refuse_mist(const deck::Deck& deck, const char* verb) {
  require(
      !deck.analysis.mist(), Failure::input,
      "analysis.conventions = \"mist\" is for comparisons with Mist only, and `brume {}` does not "
      "take it: use `brume plan` or `brume analyze`, or conventions = \"default\"",
      verb);
}

void check_given(const plan::Plan& plan, const deck::Deck& deck, const model::Config& model,
                 const hardware::Cluster& cluster) {
  require(plan.global_batch == deck.training.global_batch, Failure::input,
          "the plan is for a global batch of {}, the deck asks for training.global_batch = {}: "
          "change one of them, or search another plan (`brume plan`, on resume --replan)",
          plan.global_batch, deck.training.global_batch);
  plan::check(plan, model, cluster);
}

tuner::Result search(const deck::Deck& deck, const deck::SearchKeys& keys,
                     const model::Config& model, const hardware::Cluster& cluster,
                     const hardware::Machine& machine, const tuner::Options& options,
                     const std::string& state_file) {
  const int batch = deck.training.global_batch;
  std::optional<SearchState> state;
  if (!state_file.empty()) state.emplace(state_file, deck, keys, model, machine);
  std::vector<std::pair<model::Config, deck::SearchKeys>> parts;
  tuner::Options how = options;
  deck::Deck asked = deck;
  asked.search = keys;
  if (keys.trainer.empty()) {
    parts.emplace_back(model, keys);
    if (auto padded = plan::padded_contexts(model, cluster, keys))
      parts.emplace_back(std::move(padded->model), std::move(padded->search));
  } else {
    // Whatever the plan is, the model and its training have to be expressible.
    interop::check_for_trainer(asked, model, plan::equal_stages(model, batch, 1, {}));
    interop::TrainerSpace space = interop::trainer_space(asked, model, cluster);
    how.conform = std::move(space.nearest);
    for (deck::SearchKeys& some : space.searches) parts.emplace_back(model, std::move(some));
  }
  std::optional<tuner::Result> best;
  std::exception_ptr infeasible;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto& [of, some] = parts[i];
    some.time_limit_s /= double(parts.size());
    try {
      tuner::Result found =
          tuner::tune(of, batch, cluster, machine, some, state ? state->continuing(how, i) : how);
      if (!best || found.best[0].seconds() < best->best[0].seconds()) best = std::move(found);
    } catch (const tuner::Infeasible&) {
      if (!infeasible) infeasible = std::current_exception();
    }
  }
  if (!best) std::rethrow_exception(infeasible);
  if (!keys.trainer.empty()) interop::check_for_trainer(asked, model, best->best[0].plan);
  return *std::move(best);
}

plan::Plan search_plan(const deck::Deck& deck, const model::Config& model,
                       const hardware::Machine& machine, const std::string& state_file) {
  const hardware::Cluster cluster = hardware::usable(hardware::cluster(deck.cluster), machine);
  log::debug(
      "search: for {}, in at most {} on {} threads; each list of [search] with one entry "
      "leaves a choice out",
      cluster.text(), format_seconds(deck.search.time_limit_s),
      std::thread::hardware_concurrency());
  const tuner::Result result = [&] {
    SearchWatch watch(deck.search.time_limit_s, SearchWatch::Interrupt::ends_process);
    return search(deck, deck.search, model, cluster, machine, watch.options(), state_file);
  }();
  const tuner::RankedPlan& best = result.best.front();
  const Outlook look =
      outlook(deck, plan::padded(model, best.plan), machine, best.plan, best.account);
  log::info("{}", text(result, look, deck, machine, cluster, terminal::columns(STDERR_FILENO)));
  return best.plan;
}

std::vector<io::RankTimeline> timelines(const std::vector<schedule::Program>& programs,
                                        const schedule::Simulation& simulation) {
  std::vector<io::RankTimeline> all;
  for (std::size_t rank = 0; rank < programs.size(); ++rank)
    all.push_back(io::timeline(programs[rank], simulation.spans[rank]));
  return all;
}

std::vector<std::int64_t> spare_host_bytes(const std::vector<schedule::Program>& programs,
                                           const plan::Plan& plan,
                                           const hardware::Cluster& cluster) {
  std::vector<std::int64_t> spare(programs.size());
  for (const auto& [node, ranks] : plan::ranks_of_nodes(plan, cluster)) {
    std::int64_t left = cluster.groups[node.group].host_memory_bytes;
    for (int rank : ranks) left -= programs[rank].arena_bytes[std::size_t(schedule::Tier::host)];
    for (int rank : ranks) spare[rank] = left / std::int64_t(ranks.size());
  }
  return spare;
}

void check_memory(const std::vector<schedule::Program>& programs, const plan::Plan& plan,
                  const hardware::Cluster& cluster) {
  for (const auto& [node, ranks] : plan::ranks_of_nodes(plan, cluster)) {
    const hardware::NodeGroup& group = cluster.groups[node.group];
    const std::string table =
        group.name.empty() ? "cluster." : "group '" + group.name + "' of [[cluster.groups]]: ";
    std::int64_t host_bytes = 0, disk_bytes = 0;
    for (int rank : ranks) {
      const schedule::Program& program = programs[rank];
      const std::int64_t needed = program.arena_bytes[std::size_t(schedule::Tier::device)];
      require(
          needed <= group.memory_bytes, Failure::infeasible,
          "the plan needs {} of device memory on rank {} (stage {}), {}memory_gib leaves {}: {} "
          "too little; most is {}",
          format_bytes(double(needed)), rank, plan::stage_index(plan, rank), table,
          format_bytes(double(group.memory_bytes)),
          format_bytes(double(needed - group.memory_bytes)), largest_contributors(program));
      host_bytes += program.arena_bytes[std::size_t(schedule::Tier::host)];
      disk_bytes += program.arena_bytes[std::size_t(schedule::Tier::disk)];
    }
    require(host_bytes <= group.host_memory_bytes, Failure::infeasible,
            "the plan needs {} of host memory on node {}, {}host_memory_gib gives {}: offload less "
            "or raise it",
            format_bytes(double(host_bytes)), node.index, table,
            format_bytes(double(group.host_memory_bytes)));
    require(
        disk_bytes <= group.disk_bytes, Failure::infeasible,
        "the plan needs {} of disk on node {}, {}disk_gib gives {}: keep less there or raise it",
        format_bytes(double(disk_bytes)), node.index, table,
        format_bytes(double(group.disk_bytes)));
  }
}

}  // namespace brume::app
