#include "tuner/tuner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "../../src/tuner/rows.hpp"
#include "../../src/tuner/search.hpp"
#include "../../src/tuner/worker_pool.hpp"
#include "analyzer/messages.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "deck/machine.hpp"
#include "plan/knobs.hpp"
#include "planning_samples.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "trials.hpp"

namespace brume::tuner {
namespace {

/// A random small problem.
struct Problem {
  model::Config model;
  int global_batch;
  hardware::Cluster cluster;
  hardware::Profile profile;  ///< of the first group
  deck::SearchKeys search;
  std::vector<hardware::Profile> others = {};  ///< of other groups
  std::vector<deck::LinkKeys> links = {};

  hardware::Machine machine() const {
    if (others.empty()) return profile;
    std::vector<hardware::Profile> all{profile};
    all.insert(all.end(), others.begin(), others.end());
    return hardware::Machine(cluster, all, links);
  }
};

/// All ZeRO levels, and now and then weights or gradients that may go to the host.
void draw_state_knobs(std::mt19937& random, deck::SearchKeys& search) {
  search.zero_levels = samples::pick<std::vector<int>>(random, {{0, 1}, {0, 1, 2, 3}, {1, 3}, {2}});
  for (auto* ratios : {&search.weight_offload, &search.grad_offload})
    *ratios = samples::pick<std::vector<double>>(random, {{0.0}, {0.0}, {0.0, 1.0}, {0.0, 0.5}});
}

Problem random_problem(std::mt19937& random) {
  const int num_layers = 2 + int(random() % 3);
  Problem p{
      samples::small_model(num_layers, random() % 2 == 0),
      samples::pick<int>(random, {4, 8}),
      hardware::NodeGroup{.nodes = 1, .devices_per_node = samples::pick<int>(random, {1, 2, 2, 4})},
      samples::round_profile(8),
      {}};
  // From compute that takes nearly all time to transfers that do.
  const double speed = samples::pick<double>(random, {1, 10, 100});
  p.profile.flops_per_s *= speed;
  p.profile.bytes_per_s *= speed;
  p.search.microbatch = {1, 2};
  p.search.optim_offload = {0.0, samples::pick<double>(random, {0.5, 1.0})};
  p.search.act_offload = random() % 2 ? std::vector{0.0} : std::vector{0.0, 0.5};
  draw_state_knobs(random, p.search);
  p.search.recompute = random() % 4 != 0;
  // From a copy: what follows stays as it was.
  if (std::mt19937(random)() % 4 != 0) p.search.run_ahead = {1};
  p.search.store = std::mt19937(random)() % 3 != 0;
  if (std::mt19937 later(random); later() % 5 == 1) {
    p.search.host_update = {0.0, 1.0};
    p.profile.host_updates_per_s = samples::pick<double>(later, {0.0, 1e9, 1e10});
  }
  p.search.unequal_stages = false;
  p.search.chunks = {1};  // the oracle knows 1F1B only
  p.search.zero_bubble = false;
  p.search.simulate_top = 1;
  p.search.gap = 0.0;
  p.search.time_limit_s = 3600.0;  // on a busy machine too the search comes to its end
  p.cluster.groups[0].host_memory_bytes =
      samples::pick<std::int64_t>(random, {0, 500'000, 1'500'000, 1 << 30});
  p.cluster.groups[0].memory_bytes = 1'200'000 + std::int64_t(random() % 2'500'000);
  return p;
}

// --- the oracle: every plan, one by one ----------------------------------------------------------

/// A stage's strategy with its costs.
struct Costed {
  plan::Stage stage;
  analyzer::PassTimes time;
  double device_bytes;
  double host_bytes;
};

symbolic::Tape compiled(const analyzer::StageExpressions& e) {
  std::vector outputs{e.peak_forward_bytes, e.peak_backward_bytes, e.host_bytes, e.disk_bytes};
  for (const auto& part : analyzer::TimeExpressions::parts()) outputs.push_back(e.time.*part.time);
  return symbolic::Tape(outputs, analyzer::variables());
}

/// Candidates of a tape, a column for each of its variables.
class Columns {
 public:
  void add(const std::map<std::string, double, std::less<>>& values) {
    for (std::size_t i = 0; i < columns_.size(); ++i)
      columns_[i].push_back(values.find(analyzer::variables()[i])->second);
  }
  /// Columns of what the tape gives.
  std::vector<std::vector<double>> evaluate(const symbolic::Tape& tape) const {
    const std::size_t count = columns_[0].size();
    std::vector<std::vector<double>> results(4 + analyzer::PassTimes::num_parts,
                                             std::vector<double>(count));
    std::vector<const double*> inputs;
    std::vector<double*> outputs;
    for (const std::vector<double>& column : columns_) inputs.push_back(column.data());
    for (std::vector<double>& column : results) outputs.push_back(column.data());
    tape.evaluate(inputs, outputs, count);
    return results;
  }

 private:
  std::vector<std::vector<double>> columns_{analyzer::variables().size()};
};

/// All strategies of stage `index` of a plan like `configuration`, whose layers and layout are set.
std::vector<Costed> strategies(const Problem& p, const hardware::Machine& machine,
                               plan::Plan& config, int index,
                               std::map<analyzer::StageRole, symbolic::Tape>& tapes) {
  analyzer::StageRole role = analyzer::role_of(config, index, p.model, machine);
  const hardware::NodeGroup& group = p.cluster.groups[std::size_t(role.group)];
  role.disk = group.disk_bytes > 0;
  role.host_update = p.search.host_update.size() > 1;
  const std::vector<double> none{0.0}, &optim_disk = role.disk ? p.search.optim_disk : none,
                                       &act_disk = role.disk ? p.search.act_disk : none;
  if (!tapes.contains(role))
    tapes.emplace(role, compiled(analyzer::stage_expressions(p.model, machine, role)));
  const symbolic::Tape& tape = tapes.at(role);
  std::vector<plan::Stage> stages;
  Columns columns;
  plan::Stage& s = config.stages[std::size_t(index)];
  const int least = p.search.store ? -s.layers : 0, most = p.search.recompute ? s.layers : 0;
  for (int level = least; level <= most; ++level)
    for (int zero : p.search.zero_levels)
      for (double w : p.search.weight_offload)
        for (double g : p.search.grad_offload)
          for (double o : p.search.optim_offload)
            for (double a : p.search.act_offload) {
              // Nothing to shard over: all levels are the same.
              if (zero != p.search.zero_levels[0] && s.dp == 1) continue;
              s.ckpt_layers = std::max(level, 0), s.stored_layers = std::max(-level, 0);
              s.zero_level = zero;
              s.weight_offload_ratio = w, s.grad_offload_ratio = g;
              s.optim_offload_ratio = o, s.act_offload_ratio = a;
              for (double od : optim_disk)
                for (double ad : act_disk)
                  for (double oh : p.search.host_update) {
                    if (od + oh > 1.0) continue;
                    s.optim_disk_ratio = o * od, s.act_disk_ratio = a * ad;
                    s.host_update_ratio = o * oh;
                    stages.push_back(s);
                    columns.add(analyzer::bindings(config, index));
                  }
            }
  const std::vector<std::vector<double>> v = columns.evaluate(tape);
  std::vector<Costed> found;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    if (std::max(v[0][k], v[1][k]) > double(group.memory_bytes)) continue;
    if (v[3][k] * group.devices_per_node > double(group.disk_bytes)) continue;
    analyzer::PassTimes time;
    for (std::size_t i = 0; i < time.num_parts; ++i) time.*time.parts()[i].time = v[4 + i][k];
    found.push_back({stages[k], time, std::max(v[0][k], v[1][k]), v[2][k]});
  }
  return found;
}

/// The fastest plans by prediction, each put together stage by stage.
class Oracle {
 public:
  explicit Oracle(const Problem& p) : p_(p), machine_(p.machine()), messages_(p.model, machine_) {
    const int devices = p.cluster.devices();
    for (int microbatches = 1; microbatches <= p.global_batch; ++microbatches)
      for (int stages = 1; stages <= std::min(p.model.num_layers, devices); ++stages) {
        if (p.global_batch % microbatches != 0) continue;
        const std::vector<int>& allowed = p.search.stages;
        if (!allowed.empty() && std::ranges::find(allowed, stages) == allowed.end()) continue;
        for (int run_ahead : p.search.run_ahead) {
          plan_ = {.global_batch = p.global_batch,
                   .microbatches = microbatches,
                   .order = {.run_ahead = run_ahead},
                   .stages = {}};
          // Where it changes nothing in flight, it is one assignment.
          if (run_ahead > 1 && (stages == 1 || microbatches < 3)) continue;
          plan_.stages.resize(std::size_t(stages));
          costed_.clear();
          on_groups(0);
        }
      }
  }

  const std::multimap<double, plan::Plan>& fastest() const { return fastest_; }

 private:
  static constexpr std::size_t most_kept = 40;
  using Key = std::tuple<analyzer::StageRole, std::array<int, 5>>;

  /// Gives stages from `index` on every group in turn, then everything else.
  void on_groups(std::size_t index) {
    if (index < plan_.stages.size()) {
      for (const hardware::NodeGroup& group : p_.cluster.groups) {
        plan_.stages[index].group = group.name;
        on_groups(index + 1);
      }
      return;
    }
    used_.assign(p_.cluster.groups.size(), 0);
    host_ = {std::vector(p_.cluster.groups.size(), 0.0)};
    place(0, 0);
  }

  /// An only group is filled, of several whole nodes are.
  bool complete() const {
    const auto& groups = p_.cluster.groups;
    if (groups.size() == 1) return used_[0] == groups[0].devices();
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (used_[g] % groups[g].devices_per_node != 0) return false;
    return true;
  }

  /// Gives stage `index`, which begins at this layer, every layout in turn.
  void place(int index, int layer) {
    if (index == plan_.num_stages()) {
      if (layer == p_.model.num_layers && complete()) keep();
      return;
    }
    const std::string group_name = plan_.stages[std::size_t(index)].group;
    const auto g = std::size_t(p_.cluster.index(group_name));
    const hardware::NodeGroup& group = p_.cluster.groups[g];
    const bool unequal = p_.search.unequal_stages || p_.cluster.num_groups() > 1;
    const int per_node = group.devices_per_node, devices = group.devices();
    for (int size = 1; size <= devices - used_[g]; ++size) {
      const int on_node = used_[g] % per_node;
      if (size <= per_node ? on_node + size > per_node : on_node != 0 || size % per_node != 0)
        continue;
      if (!unequal && size * plan_.num_stages() != devices) continue;
      for (int tp = 1; tp <= std::min(size, per_node); ++tp)
        for (int b : p_.search.microbatch) {
          plan::Stage& s = plan_.stages[std::size_t(index)];
          s = {.first_layer = layer,
               .nodes = size > per_node ? size / per_node : 1,
               .devices_per_node = std::min(size, per_node),
               .microbatch = b,
               .dp = size / tp,
               .tp = tp,
               .group = group_name};
          const plan::Stage& first = plan_.stages[0];
          if (size % tp != 0 || p_.model.num_heads % tp != 0 || s.devices_per_node % tp != 0)
            continue;
          if (b * s.dp * plan_.microbatches != p_.global_batch) continue;
          if (!unequal && (s.dp != first.dp || b != first.microbatch)) continue;
          for (int layers = 1; layers <= p_.model.num_layers - layer; ++layers) {
            s.layers = layers;
            choose(index, layer + layers, g);
          }
        }
    }
  }

  void choose(int index, int next_layer, std::size_t g) {
    const plan::Stage layout = plan_.stages[std::size_t(index)];
    auto& options = costed_[{analyzer::role_of(plan_, index, p_.model, machine_),
                             {index, layout.layers, layout.dp, layout.tp, layout.microbatch}}];
    if (options.empty()) options = strategies(p_, machine_, plan_, index, tapes_);
    const hardware::NodeGroup& group = p_.cluster.groups[g];
    const double before = used_[g] % group.devices_per_node == 0 ? 0.0 : host_.back()[g];
    used_[g] += layout.devices();
    for (const Costed& option : options) {
      const double host = before + layout.devices_per_node * option.host_bytes;
      if (host > double(group.host_memory_bytes)) continue;
      times_.push_back(option.time);
      if (least_s() <= cutoff_s()) {
        plan_.stages[std::size_t(index)] = option.stage;
        plan_.stages[std::size_t(index)].first_layer = layout.first_layer;
        host_.push_back(host_.back());
        host_.back()[g] = host;
        place(index + 1, next_layer);
        host_.pop_back();
      }
      times_.pop_back();
    }
    used_[g] -= layout.devices();
    plan_.stages[std::size_t(index)] = layout;
  }

  /// What the stages so far take at least.
  double least_s() const {
    double sum_s = 0.0, slowest_s = 0.0;
    for (const analyzer::PassTimes& time : times_) {
      sum_s += time.stable_s();
      slowest_s = std::max(slowest_s, time.stable_s());
    }
    return std::max(plan_.microbatches * slowest_s, sum_s);
  }
  double cutoff_s() const { return fastest_.size() < most_kept ? 1e300 : fastest_.rbegin()->first; }

  void keep() {
    analyzer::Pipeline pipeline{.stages = times_,
                                .messages_s = {},
                                .tied = {},
                                .microbatches = plan_.microbatches,
                                .order = {.run_ahead = plan_.order.run_ahead}};
    messages_.add(plan_, pipeline);
    fastest_.emplace(analyzer::iteration_time(pipeline), plan_);
    if (fastest_.size() > most_kept) fastest_.erase(std::prev(fastest_.end()));
  }

  const Problem& p_;
  hardware::Machine machine_;
  analyzer::MessageTimes messages_;
  plan::Plan plan_;
  std::vector<analyzer::PassTimes> times_;
  std::vector<int> used_;                  ///< devices, by group
  std::vector<std::vector<double>> host_;  ///< on each group's node so far, by stage
  std::map<Key, std::vector<Costed>> costed_;
  std::map<analyzer::StageRole, symbolic::Tape> tapes_;
  std::multimap<double, plan::Plan> fastest_;
};

bool can_be_placed(const Problem& p, const plan::Plan& plan) {
  for (const auto& [node, ranks] : plan::ranks_of_nodes(plan, p.cluster)) {
    const hardware::NodeGroup& group = p.cluster.groups[std::size_t(node.group)];
    std::int64_t host_bytes = 0, disk_bytes = 0;
    for (int rank : ranks) {
      const schedule::Program program = schedule::compile(plan, p.model, rank);
      if (program.arena_bytes[0] > group.memory_bytes) return false;
      host_bytes += program.arena_bytes[1];
      disk_bytes += program.arena_bytes[2];
    }
    if (host_bytes > group.host_memory_bytes || disk_bytes > group.disk_bytes) return false;
  }
  return true;
}

/// The fastest plans that can be placed.
struct Fastest {
  std::optional<double> predicted_s;
  plan::Plan plan;             ///< the first of them
  double simulated_s = 1e300;  ///< of the first few by prediction
  bool known = true;           ///< whether they are among the ones looked at
};

Fastest fastest(const Problem& p) {
  constexpr int most_simulated = 6;
  const Oracle oracle(p);
  Fastest found;
  int simulated = 0;
  for (const auto& [iteration_s, plan] : oracle.fastest()) {
    if (simulated == most_simulated) break;
    if (!can_be_placed(p, plan)) continue;
    if (!found.predicted_s) {
      found.predicted_s = iteration_s;
      found.plan = plan;
    }
    const auto programs = schedule::compile_all(plan, p.model);
    found.simulated_s = std::min(
        found.simulated_s, schedule::simulate(programs, plan, p.model, p.machine()).iteration_s);
    ++simulated;
  }
  found.known = found.predicted_s || oracle.fastest().empty();
  return found;
}

Result tune(const Problem& p) {
  return tuner::tune(p.model, p.global_batch, p.cluster, p.machine(), p.search, {.threads = 1});
}

double fastest_prediction(const Result& result) {
  return std::ranges::min_element(result.best, {},
                                  [](const RankedPlan& c) { return c.prediction.iteration_s; })
      ->prediction.iteration_s;
}

/// What random problems reached.
struct Reached {
  int best = 0;  ///< no plan that was simulated is faster by more than 0.5 %
  int feasible = 0, infeasible = 0, pipelined = 0, unequal = 0, confirmed = 0, refused = 0;
  int mixed = 0;      ///< plans on several groups
  int reordered = 0;  ///< of these, in another order than the deck's
  int partial = 0;    ///< plans that leave a node unused
  int on_disk = 0;    ///< plans that keep something on disk
  int ahead = 0;      ///< plans whose stages run two microbatches ahead
};

void compare_with_oracle(const Problem& p, Reached& reached,
                         const Options& options = {.reasons = false, .threads = 1}) {
  const Fastest expected = fastest(p);
  if (!expected.known) return;
  if (!expected.predicted_s) {
    ++reached.infeasible;
    try {  // what needs least may take less than formulas say
      const Result result = tune(p);
      EXPECT_TRUE(can_be_placed(p, result.best[0].plan)) << plan::text(result.best[0].plan);
    } catch (const Infeasible&) {
    }
    return;
  }
  Result result;
  ASSERT_NO_THROW(
      result = tuner::tune(p.model, p.global_batch, p.cluster, p.machine(), p.search, options));
  const RankedPlan& best = result.best[0];
  EXPECT_LE(best.seconds() * (1.0 - result.search.gap), *expected.predicted_s * (1.0 + 1e-9))
      << "the bound exceeds what this plan is predicted to take\n"
      << plan::text(expected.plan);
  // Of the plans that its bound does not tell apart the search looks at some.
  EXPECT_LE(best.seconds(), 1.2 * expected.simulated_s) << plan::text(expected.plan);
  reached.best += best.seconds() <= 1.005 * expected.simulated_s;
  const plan::Plan& plan = result.best[0].plan;
  ++reached.feasible;
  reached.pipelined += plan.num_stages() > 1;
  reached.unequal += std::ranges::any_of(plan.stages, [&](const plan::Stage& s) {
    return s.dp != plan.stages[0].dp || s.tp != plan.stages[0].tp;
  });
  bool mixed = false, reordered = false;
  for (std::size_t i = 1; i < plan.stages.size(); ++i) {
    mixed |= plan.stages[i].group != plan.stages[0].group;
    reordered |= p.cluster.index(plan.stages[i].group) < p.cluster.index(plan.stages[i - 1].group);
  }
  reached.mixed += mixed;
  reached.reordered += reordered;
  reached.partial += plan.devices() < p.cluster.devices();
  reached.ahead += plan.order.run_ahead > 1;
  reached.on_disk += std::ranges::any_of(plan.stages, plan::uses_disk);
  reached.confirmed += result.search.confirmed;
  reached.refused += result.search.refused;
}

TEST(Tuner, NoPlanIsFasterThanTheOneFound) {
  std::mt19937 random(2);
  Reached reached;
  const int trials = test::trials(9);
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(trial);
    compare_with_oracle(random_problem(random), reached);
  }
  EXPECT_GE(reached.best, 90 * reached.feasible / 100);
  // The cases must have reached every part of the search.
  EXPECT_GE(reached.feasible, trials / 2);
  EXPECT_GE(reached.infeasible, trials / 8);
  EXPECT_GE(reached.pipelined, trials / 13);
  EXPECT_GE(reached.ahead, trials / 40);
  EXPECT_GE(reached.confirmed, trials / 25);
  EXPECT_GE(reached.refused, std::min(trials / 40, 1));
}

/// Stages of their own mesh, microbatch, dp and tp, on odd clusters.
Problem random_unequal_problem(std::mt19937& random) {
  Problem p = random_problem(random);
  p.search.unequal_stages = true;
  p.model = samples::small_model(1 + int(random() % 4), random() % 2 == 0);
  p.cluster.groups[0].nodes = samples::pick<int>(random, {1, 1, 2, 3});
  p.cluster.groups[0].devices_per_node = samples::pick<int>(random, {1, 2, 3, 4});
  if (p.cluster.devices() > 6) p.cluster.groups[0].nodes = 1;
  p.profile.key.ranks_per_node = p.cluster.groups[0].devices_per_node;
  p.global_batch = samples::pick<int>(random, {1, 2, 4, 6, 7, 12});
  p.search.microbatch = {1, 2, 3};
  if (p.cluster.devices() > 3) p.search.act_offload = {0.0};
  return p;
}

TEST(Tuner, NoPlanOfUnequalStagesIsFaster) {
  std::mt19937 random(5);
  Reached reached;
  const int trials = test::trials(9);
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(trial);
    compare_with_oracle(random_unequal_problem(random), reached);
  }
  EXPECT_GE(reached.feasible, 2 * trials / 5);
  EXPECT_GE(reached.infeasible, trials / 25);
  EXPECT_GE(reached.unequal, trials / 25);
}

/// Little host memory, and a disk of any size and speed.
Problem random_disk_problem(std::mt19937& random) {
  Problem p = random_problem(random);
  p.model = samples::small_model(4 + int(random() % 3), random() % 2 == 0);
  hardware::NodeGroup& group = p.cluster.groups[0];
  group.devices_per_node = 1 + int(random() % 2);
  // Enough for what passes to the disk, and for more or less of what is offloaded.
  group.host_memory_bytes = 1'000'000 + std::int64_t(random() % 2'000'000);
  group.disk_bytes = samples::pick<std::int64_t>(random, {1'000'000, 4'000'000, 1 << 30});
  group.memory_bytes = (2'000'000 + std::int64_t(random() % 3'500'000)) / group.devices_per_node;
  p.search.weight_offload = p.search.grad_offload = {0.0};
  p.search.optim_offload = {0.0, 1.0};
  p.search.zero_levels = {0, 1};
  p.search.optim_disk = samples::pick<std::vector<double>>(random, {{0.0, 1.0}, {0.0, 0.5, 1.0}});
  p.search.act_disk = {0.0, 1.0};
  const double slower = samples::pick<double>(random, {0.1, 1.0, 10.0});
  for (hardware::CopyRow& row : p.profile.copies)
    if (is_of_disk(row.kind)) row.time_s *= slower;
  return p;
}

TEST(Tuner, NoPlanOnDiskIsFaster) {
  std::mt19937 random(7);
  Reached reached;
  const int trials = test::trials(5);
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(trial);
    compare_with_oracle(random_disk_problem(random), reached);
  }
  EXPECT_GE(reached.feasible, trials / 4);
  EXPECT_GE(reached.on_disk, trials / 8);
}

/// Two or three groups that differ in speed, memory, links and shape.
Problem random_grouped_problem(std::mt19937& random) {
  Problem p = random_problem(random);
  p.model = samples::small_model(1 + int(random() % 3), random() % 3 == 0);
  p.global_batch = samples::pick<int>(random, {2, 4, 6});
  p.search.zero_levels = {0, 1};
  p.search.act_offload = p.search.weight_offload = p.search.grad_offload = {0.0};
  const int num_groups = random() % 6 == 0 ? 3 : 2;
  const hardware::NodeGroup like = p.cluster.groups[0];
  p.cluster.groups.clear();
  for (int g = 0; g < num_groups; ++g) {
    hardware::NodeGroup group = like;
    group.name = std::string(1, char('a' + g));
    group.nodes = samples::pick<int>(random, {1, 1, 2});
    group.devices_per_node = samples::pick<int>(random, {1, 2});
    group.memory_bytes = samples::pick<std::int64_t>(random, {1, 2, 3}) * like.memory_bytes / 2;
    group.host_memory_bytes = samples::pick<std::int64_t>(random, {500'000, 1 << 30});
    p.cluster.groups.push_back(group);
    hardware::Profile profile = p.profile;
    profile.key.ranks_per_node = group.devices_per_node;
    const double speed = samples::pick<double>(random, {0.3, 1.0, 3.0});
    profile.flops_per_s *= speed;
    profile.bytes_per_s *= speed;
    for (hardware::LinkRow& row : profile.links)
      row.time_s *= samples::pick<double>(random, {0.5, 2.0});
    if (g > 0) p.others.push_back(profile);
  }
  p.profile.key.ranks_per_node = p.cluster.groups[0].devices_per_node;
  if (random() % 2 == 0)
    p.links = {{.between = {"a", "b"},
                .gib_per_s = samples::pick<double>(random, {0.05, 1.0, 50.0}),
                .latency_s = samples::pick<double>(random, {0.0, 1e-5, 1e-3})}};
  return p;
}

TEST(Tuner, NoPlanOnSeveralGroupsIsFaster) {
  std::mt19937 random(11);
  Reached reached;
  const int trials = test::trials(6);
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(trial);
    compare_with_oracle(random_grouped_problem(random), reached);
  }
  EXPECT_GE(reached.feasible, trials / 2);
  EXPECT_GE(reached.infeasible, trials / 20);
  EXPECT_GE(reached.mixed, trials / 11);
  EXPECT_GE(reached.reordered, trials / 30);
  EXPECT_GE(reached.partial, trials / 11);
  EXPECT_GE(reached.confirmed, trials / 30);
}

/// Stages that share a node's little host memory, which labels of the dynamic program count.
Problem random_shared_problem(std::mt19937& random) {
  Problem p = random_problem(random);
  p.search.unequal_stages = random() % 2 == 0;
  p.model = samples::small_model(3 + int(random() % 2), random() % 2 == 0);
  p.global_batch = samples::pick<int>(random, {2, 4, 6});
  hardware::NodeGroup& group = p.cluster.groups[0];
  group.devices_per_node = 3 + int(random() % 2);
  p.profile.key.ranks_per_node = group.devices_per_node;
  group.host_memory_bytes = 500'000 + std::int64_t(random() % 1'500'000);
  p.search.microbatch = {1, 2, 3};
  return p;
}

// A merged label is as good as several assignments together, and no assignment of its own: what
// comes out of it is looked at again, so that neither plan nor gap are better than they are. These
// problems are quick to compare, and the last one of them needs that second look.
TEST(Tuner, NoPlanIsFasterWhereLabelsAreMerged) {
  std::mt19937 random(18);
  Reached reached;
  const int trials = test::trials(7);
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(trial);
    compare_with_oracle(random_shared_problem(random), reached,
                        {.reasons = false, .threads = 1, .most_labels = 1});
  }
  EXPECT_GE(reached.feasible, trials / 2);
}

/// The problem that comes after so many others.
Problem problem_after(int others, unsigned seed, Problem (*random_one)(std::mt19937&)) {
  std::mt19937 random(seed);
  for (int i = 0; i < others; ++i) random_one(random);
  return random_one(random);
}

// To make room for another layer to store may cost less than storing it takes off; and offloaded
// state that costs time takes some off where the host steps a part of it.
TEST(Tuner, RaisesRatiosThatGainWithOthersOnly) {
  Reached reached;
  compare_with_oracle(problem_after(75, 2, random_problem), reached);
  compare_with_oracle(problem_after(52, 18, random_shared_problem), reached,
                      {.reasons = false, .threads = 1, .most_labels = 1});
  EXPECT_EQ(reached.feasible, 2);
}

Problem roomy() {
  std::mt19937 random(1);
  Problem p = random_problem(random);
  p.model = samples::small_model(4);
  p.global_batch = 16;
  p.cluster = hardware::NodeGroup{
      .nodes = 1, .devices_per_node = 4, .memory_bytes = 1 << 30, .host_memory_bytes = 1 << 30};
  p.search = {};
  p.search.time_limit_s = 3600.0;
  return p;
}

/// What a search says, but for how long it took.
std::string said(Result result, const hardware::Cluster& cluster) {
  result.search.seconds = 0.0;
  return report(result, cluster);
}

TEST(Tuner, TheNumberOfThreadsChangesNothing) {
  Problem p = roomy();
  p.cluster.groups[0].memory_bytes = 2'000'000;
  const auto with = [&](int threads) {
    return said(tuner::tune(p.model, p.global_batch, p.cluster, p.machine(), p.search,
                            {.threads = threads}),
                p.cluster);
  };
  const std::string alone = with(1);
  for (const int threads : {2, 3, 16}) EXPECT_EQ(with(threads), alone) << threads;
}

TEST(Tuner, ReturnsPlansThatCheckAndFit) {
  Problem p = roomy();
  for (std::int64_t memory_bytes :
       {std::int64_t{1} << 30, std::int64_t{2'500'000}, std::int64_t{1'600'000}}) {
    p.cluster.groups[0].memory_bytes = memory_bytes;
    const Result result = tune(p);
    EXPECT_LE(result.search.feasible, result.search.policies);
    EXPECT_LE(result.search.gap, 1.0 - result.search.least_work_s / result.best[0].seconds());
    for (const RankedPlan& candidate : result.best) {
      EXPECT_NO_THROW(plan::check(candidate.plan, p.model, p.cluster));
      EXPECT_TRUE(can_be_placed(p, candidate.plan));
      EXPECT_LE(candidate.placed_device_bytes(), memory_bytes);
      EXPECT_LE(candidate.placed_host_bytes(), p.cluster.groups[0].host_memory_bytes);
    }
  }
}

// Large clusters have thousands of configurations: the first plan does not wait until all are
// bounded.
TEST(Tuner, KnowsAPlanBeforeAllFramesAreBounded) {
  Problem p = roomy();
  p.search.stages = {2, 3, 4};
  const hardware::Machine machine = p.machine();
  const Deadline never;
  AllRows rows(p.cluster);
  WorkerPool workers(p.model, machine, never, 1);
  const SearchInput input{p.model, p.global_batch, p.cluster, machine, p.search, 64, never, &rows};
  Searcher searcher(input, workers, configs(input));
  const std::optional<Found> first = searcher.next(infinity);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->candidate.plan.num_stages(), 2);
  EXPECT_EQ(searcher.bound_s(), 0.0);  // configurations of more stages have not begun
  // Nor have they where the first plan is refused.
  searcher.exclude(*first, 0);
  ASSERT_TRUE(searcher.next(infinity));
  EXPECT_EQ(searcher.bound_s(), 0.0);
}

TEST(Tuner, RanksPlansBySimulationAndRepeatsNone) {
  const Result result = tune(roomy());
  EXPECT_EQ(result.best.size(), 5u);
  std::set<std::string> texts;
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    EXPECT_GE(result.best[i].simulated_s, result.best[i == 0 ? 0 : i - 1].simulated_s);
    texts.insert(plan::text(result.best[i].plan));
  }
  EXPECT_EQ(texts.size(), result.best.size());
}

// Of more than 64 ranks one of each stage is simulated.
TEST(Tuner, RanksLargePlansBySimulationToo) {
  Problem p = roomy();
  p.cluster.groups[0].nodes = 16;
  p.cluster.groups[0].devices_per_node = 8;
  p.global_batch = 256;
  p.search.stages = {2, 4};
  p.search.simulate_top = 2;
  const Result result = tune(p);
  for (const RankedPlan& candidate : result.best) {
    EXPECT_EQ(candidate.plan.devices(), 128);
    ASSERT_TRUE(candidate.simulated_s);
    EXPECT_NEAR(*candidate.simulated_s, candidate.prediction.iteration_s,
                0.2 * candidate.prediction.iteration_s);
  }
}

TEST(Tuner, SearchListsFixChoices) {
  Problem p = roomy();
  p.search.stages = {2};
  p.search.tp = {2};
  p.search.microbatch = {4};
  p.search.recompute = false;
  for (const RankedPlan& candidate : tune(p).best) {
    EXPECT_EQ(candidate.plan.pipeline_size(), 2);
    EXPECT_EQ(candidate.plan.stages[0].tp, 2);
    EXPECT_EQ(candidate.plan.stages[0].microbatch, 4);
    EXPECT_EQ(candidate.plan.stages[0].ckpt_layers, 0);
  }
}

/// What a refusal says would fit [bytes].
std::int64_t advised_bytes(const std::string& message) {
  const auto at = message.find("memory_gib = ", message.find("allows"));
  if (at == std::string::npos) {
    ADD_FAILURE() << message;
    return 0;
  }
  return std::int64_t(std::stod(message.substr(at + 13)) * bytes_per_gib);
}

TEST(Tuner, NothingFitsSaysWhatWould) {
  Problem p = roomy();
  p.cluster.groups[0].memory_bytes = 300'000;
  try {
    tune(p);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::infeasible);
    const std::string message = error.what();
    EXPECT_NE(message.find("no plan fits"), std::string::npos) << message;
    // The advice holds: with that much memory there is a plan.
    p.cluster.groups[0].memory_bytes = advised_bytes(message);
    EXPECT_NO_THROW(tune(p));
  }
}

// The stated memory does fit, and a little less does not, whatever a machine's libraries take.
TEST(Tuner, WhatWouldFitDoesOnEveryShippedMachine) {
  namespace fs = std::filesystem;
  model::Config model = samples::small_model(2);
  model.hidden_size = 512;
  model.ffn_size = 2048;
  model.vocab_size = 8192;
  int reserving = 0;
  const fs::path known = deck::shipped_path(deck::Shipped::machine, "dgx-h100");
  for (const auto& entry : fs::directory_iterator(known.parent_path())) {
    deck::GroupKeys group;
    group.machine = entry.path().stem();
    group.devices_per_node = 1;
    SCOPED_TRACE(group.machine);
    const hardware::Machine machine = hardware::machine_profile(group);
    const std::int64_t reserved = machine.profile(0).reserved_bytes;
    reserving += reserved > 0;
    const auto search = [&](std::int64_t given_bytes) {
      const hardware::Cluster given =
          hardware::NodeGroup{.nodes = 1, .devices_per_node = 1, .memory_bytes = given_bytes};
      tuner::tune(model, 4, hardware::usable(given, machine), machine, {.time_limit_s = 3600.0},
                  {.reasons = false});
    };
    const auto advised = [&](std::int64_t given_bytes) -> std::int64_t {
      try {
        search(given_bytes);
      } catch (const Infeasible& error) {
        return advised_bytes(error.what());
      }
      return 0;
    };
    const std::int64_t enough = advised(reserved + (std::int64_t{1} << 20));
    EXPECT_GT(enough, reserved);
    EXPECT_NO_THROW(search(enough));
    EXPECT_EQ(advised(enough - (enough - reserved) / 100), enough);
  }
  EXPECT_GE(reserving, 10);
}

// Memory is looked at before time is, so that little time suffices to know that nothing fits: the
// search without that took a minute.
TEST(Tuner, ThatNothingFitsIsKnownBeforeTheSearch) {
  Problem p = roomy();
  p.model = samples::small_model(16);
  p.cluster.groups[0].nodes = 2;
  p.cluster.groups[0].memory_bytes = 400'000;
  p.cluster.groups[0].host_memory_bytes = 1'000'000;
  p.global_batch = 64;
  try {
    tune(p);
    FAIL();
  } catch (const Infeasible& error) {
    EXPECT_EQ(error.word(), "memory");
    EXPECT_EQ(std::string(error.what()).find("raise"), std::string::npos) << error.what();
  }
}

// One device, one layer, primes, one sequence, hardly a vocabulary: a plan or a clear refusal.
TEST(Tuner, TakesWhatIsSmallOddOrPrime) {
  const auto expect_answer = [](auto change) {
    for (bool unequal : {false, true}) {
      Problem p = roomy();
      p.search.unequal_stages = unequal;
      change(p);
      p.profile.key.ranks_per_node = p.cluster.groups[0].devices_per_node;
      try {
        const Result result = tune(p);
        EXPECT_EQ(result.best[0].plan.devices(), p.cluster.devices());
      } catch (const Infeasible& error) {
        EXPECT_EQ(error.word(), "split");
      }
    }
  };
  expect_answer([](Problem& p) { p.cluster.groups[0].devices_per_node = 1; });
  expect_answer([](Problem& p) { p.model.num_layers = 1; });
  expect_answer([](Problem& p) { p.model.num_layers = 7; });
  expect_answer([](Problem& p) { p.cluster.groups[0].devices_per_node = 5; });
  expect_answer(
      [](Problem& p) { p.cluster.groups[0].nodes = 3, p.cluster.groups[0].devices_per_node = 1; });
  expect_answer(
      [](Problem& p) { p.cluster.groups[0].nodes = 3, p.cluster.groups[0].devices_per_node = 3; });
  expect_answer([](Problem& p) { p.global_batch = 13; });
  expect_answer([](Problem& p) { p.global_batch = 1; });
  expect_answer([](Problem& p) { p.model.vocab_size = 2; });
  expect_answer([](Problem& p) { p.search.dp = {4}, p.search.microbatch = {4}; });  // G = 1
  expect_answer([](Problem& p) { p.search.optim_offload.clear(), p.search.act_offload.clear(); });
}

/// Lets the search try all of the key that a refusal names: "search.full_recompute = true would
/// fit".
void follow_advice(const std::string& says, deck::SearchKeys& keys) {
  for (const plan::Knob& knob : plan::knobs) {
    deck::SearchKeys changed = keys;
    const std::string change = plan::allow(knob, changed);
    if (change.empty() || says.find("; search." + change + " would fit") == std::string::npos)
      continue;
    keys = changed;
    return;
  }
  ADD_FAILURE() << "no key of the search is named: " << says;
}

TEST(Tuner, RefusalNamesAChangeOfTheSearch) {
  Problem p = roomy();
  p.search.recompute = false;
  p.search.optim_offload = p.search.act_offload = {0.0};
  p.search.zero_levels = {0};
  p.cluster.groups[0].memory_bytes = 900'000;
  try {
    tune(p);
    FAIL();
  } catch (const Infeasible& error) {
    EXPECT_EQ(error.word(), "memory");
    follow_advice(error.what(), p.search);
    EXPECT_NO_THROW(tune(p));
  }
}

TEST(Tuner, AnImpossibleSplitIsNamed) {
  Problem p = roomy();
  p.search.tp = {3};
  try {
    tune(p);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::infeasible);
    EXPECT_NE(std::string(error.what()).find("no way to split"), std::string::npos) << error.what();
  }
}

/// Of a device with little memory; searched once.
const Result& of_little_memory() {
  static const Result result = [] {
    Problem p = roomy();
    p.cluster.groups[0].memory_bytes = 1'600'000;
    return tune(p);
  }();
  return result;
}

// The best plan saves memory somehow; without that knob it gets no faster.
TEST(Tuner, AblationsCostTime) {
  const Result& result = of_little_memory();
  EXPECT_FALSE(result.ablations.empty());
  for (const Ablation& ablation : result.ablations)
    EXPECT_GE(ablation.iteration_s.value_or(1e9), fastest_prediction(result) * (1.0 - 1e-6))
        << ablation.knob;
  EXPECT_NE(result.nearest_infeasible.find("more"), std::string::npos);
}

TEST(Tuner, ReportShowsPlanReasonsAndMargins) {
  const std::string text = report(of_little_memory(), roomy().cluster);
  for (const char* word : {"time ", "memory ", "why ", "next ", "misses ", "search "})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
}

// What there was no time for is not said to be useless.
TEST(Tuner, ReportNamesTheTimeLimit) {
  Result result = of_little_memory();
  result.ablations.clear();
  EXPECT_EQ(report(result, roomy().cluster).find("time_limit_s"), std::string::npos);
  result.untried = {"ZeRO", "disk"};
  result.search.limit_s = 60.0;
  const std::string untried = report(result, roomy().cluster);
  EXPECT_NE(untried.find("search.time_limit_s = 60 ended the search: plans without ZeRO, disk"),
            std::string::npos)
      << untried;
  EXPECT_EQ(untried.find("would be missed"), std::string::npos) << untried;
  result.search.cut_short = true;
  result.search.gap = 0.18;
  result.search.least_work_s = 0.5 * result.best[0].seconds();
  const std::string cut_short = report(result, roomy().cluster);
  EXPECT_NE(cut_short.find("limit   search.time_limit_s = 60 ended the search; raise it\n"),
            std::string::npos)
      << cut_short;
  EXPECT_NE(cut_short.find("no plan of 1F1B is faster by more than 18 % by the model's bound, and "
                           "none by more than 50 % in a simulation"),
            std::string::npos)
      << cut_short;
}

// A bound that says less than what computing takes is not there: one sentence, which is true.
TEST(Tuner, ReportHasOneBoundWhereTheModelHasNone) {
  Result result = of_little_memory();
  result.search.cut_short = true;
  result.search.gap = 0.6;
  result.search.least_work_s = 0.43 * result.best[0].seconds();
  const std::string text = report(result, roomy().cluster);
  EXPECT_NE(text.find("; no plan is faster by more than 57 % in a simulation"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("bound"), std::string::npos) << text;
  EXPECT_EQ(text.find("may be"), std::string::npos) << text;
}

// One device needs no messages, which take longest on this machine.
TEST(Tuner, SaysThatFewerNodesAreFaster) {
  Problem p = roomy();
  p.cluster.groups[0].nodes = 4;
  p.cluster.groups[0].devices_per_node = 1;
  p.profile.key.ranks_per_node = 1;
  p.search.chunks = {1};
  p.search.zero_bubble = false;
  EXPECT_TRUE(tune(roomy()).faster.empty());
  for (hardware::LinkRow& row : p.profile.links) row.time_s *= 3000.0;
  const Result result = tune(p);
  ASSERT_EQ(result.faster.size(), 1u);
  EXPECT_EQ(result.faster[0].key, "cluster.nodes");
  EXPECT_EQ(result.faster[0].value, 1);
  EXPECT_NE(report(result, p.cluster).find("faster  cluster.nodes = 1: "), std::string::npos);
  p.cluster.groups[0].nodes = 1;
  const double standalone_s = tune(p).best[0].seconds();
  EXPECT_NEAR(result.faster[0].iteration_s, standalone_s, 0.03 * standalone_s);
  EXPECT_LT(standalone_s, 0.97 * result.best[0].seconds());
}

// Three sequences leave four devices nothing but a pipeline that waits; of four each has one.
TEST(Tuner, SaysThatALargerBatchIsFaster) {
  Problem p = roomy();
  p.global_batch = 3;
  p.search.tp = {1};
  p.search.chunks = {1};
  p.search.zero_bubble = false;
  p.search.lone_ends = false;  // a pipeline waits less if ends have no layers
  for (hardware::LinkRow& row : p.profile.links) row.time_s *= 0.1;
  const Result result = tune(p);
  ASSERT_EQ(result.faster.size(), 1u);
  EXPECT_EQ(result.faster[0].key, "training.global_batch");
  EXPECT_EQ(result.faster[0].value, 4);
  p.global_batch = 4;
  const double four_s = tune(p).best[0].seconds();
  EXPECT_NEAR(result.faster[0].iteration_s, four_s, 0.03 * four_s);
  EXPECT_LT(four_s, 0.97 * result.best[0].seconds());
}

}  // namespace
}  // namespace brume::tuner
