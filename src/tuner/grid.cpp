#include "grid.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/hash.hpp"
#include "symbolic/batch.hpp"

namespace brume::tuner {
namespace {

using symbolic::Expr;
using symbolic::Tape;

/// A variable of the expressions: a number of a strategy, a share, or the same for a whole
/// position.
struct Variable {
  const plan::Knob* knob;
  const StrategyNumber* number = nullptr;
  std::optional<std::size_t> share = {};

  bool of_strategy() const { return number || share; }
  double of(const Strategy& strategy) const {
    return number ? double(number->of(strategy)) : strategy.ratio(*share);
  }
};

bool is_knob(const plan::Knob& knob, auto member) {
  return knob.member == decltype(knob.member)(member);
}

/// The variables, in the order of analyzer::variables().
const std::vector<Variable>& variables() {
  static const std::vector<Variable> all = [] {
    std::vector<Variable> found;
    for (const plan::Knob& knob : plan::knobs) {
      if (!*knob.symbol) continue;
      Variable& variable = found.emplace_back(Variable{&knob});
      for (const StrategyNumber& number : strategy_numbers)
        if (is_knob(knob, number.member)) variable.number = &number;
      for (std::size_t i = 0; i < plan::num_shares; ++i)
        if (plan::shares[i].knob == &knob) variable.share = i;
    }
    return found;
  }();
  return all;
}

/// A plan that begins with the position's stage.
plan::Plan plan_from(const StagePosition& position) {
  plan::Plan plan{.microbatches = position.config.microbatches,
                  .order = {.run_ahead = position.config.order.run_ahead},
                  .stages = std::vector<plan::Stage>(std::size_t(position.after) + 1)};
  plan.stages[0] = stage_of(position.mesh(), {});
  return plan;
}

/// Outputs of the tape that prices time, in its order.
constexpr double StageTimes::*time_outputs[] = {&StageTimes::stable_s, &StageTimes::delta_s,
                                                &StageTimes::early_send_s,
                                                &StageTimes::standalone_delta_s};

/// Outputs of the tape that prices memory.
struct MemoryOutput {
  enum : std::size_t { forward_peak, backward_peak, host, disk };
};

/// Expressions of the time outputs.
std::array<Expr, 4> objective_times(const analyzer::TimeExpressions& t,
                                    const analyzer::StageRole& role) {
  // Others wait until a pass has sent its message, not for the transfers that follow that. The
  // first and the last stage have none to send in one direction.
  const auto sent_s = [](bool sends, const Expr& pass_s, const Expr& tail_s) {
    return sends ? max(pass_s - tail_s, 0.0) : pass_s;
  };
  const Expr forward_s = sent_s(!role.last, t.forward_s, t.forward_tail_s);
  // A stage that waits for a gradient recomputes meanwhile.
  const Expr needs_gradient_s = role.last ? t.backward_s : t.backward_s - t.recompute_ahead_s;
  const Expr backward_s = sent_s(!role.first, needs_gradient_s, t.backward_tail_s);
  const Expr last_s = sent_s(!role.first, needs_gradient_s + t.last_s, t.last_tail_s);
  Expr first_s = sent_s(!role.last, t.forward_s + t.first_s, t.first_tail_s);
  const Expr shortest_s = min(first_s, forward_s) + min(backward_s, last_s);
  // While a later stage waits for its first input it does its first updates; while it waits for
  // the stages before it to end, what follows its last backward.
  if (!role.first)
    first_s = max(first_s - min(max(t.ahead_s, 0.0), max(t.first_s, 0.0)), min(first_s, forward_s));
  const Expr ends_s = role.first ? t.start_s + t.end_s : Expr(0.0);
  return {t.stable_s(), first_s + last_s + ends_s - t.stable_s(), t.stable_s() - shortest_s,
          t.delta_s()};
}

}  // namespace

struct Grid::Priced {
  struct Hash {
    std::size_t operator()(const std::vector<double>& numbers) const {
      std::size_t sum = numbers.size();
      for (const double number : numbers) sum = hash_with(sum, std::hash<double>{}(number));
      return sum;
    }
  };

  Priced(const std::array<Expr, 4>& outputs, const std::vector<bool>& shared)
      : tape(Tape(outputs, analyzer::variables()), shared) {
    const std::vector<Variable>& all = variables();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!tape.reads(i)) continue;
      if (shared[i]) in_common.push_back(i);
      if (all[i].of_strategy()) (shared[i] ? chosen : varying).push_back(i);
    }
  }

  /// Values that strategies with these shared variables have in common.
  const std::vector<double>& common(const std::vector<double>& values) {
    key.clear();
    for (const std::size_t v : in_common) key.push_back(values[v]);
    const auto known = commons.find(key);
    return known != commons.end() ? known->second
                                  : commons.emplace(key, tape.common(values)).first->second;
  }

  symbolic::BatchTape tape;
  // Variables that it reads: those that the strategies of a batch have in common, of these the ones
  // that a strategy chooses, and those that differ within a batch.
  std::vector<std::size_t> in_common, chosen, varying;
  std::vector<double> key;
  std::unordered_map<std::vector<double>, std::vector<double>, Hash> commons;
};

struct Grid::Role {
  Priced time;    ///< stable, delta, less, alone delta
  Priced memory;  ///< forward peak, backward peak, host, disk
};

Grid::Grid(const model::Config& model, const hardware::Machine& machine, const Deadline& deadline)
    : model_(model), machine_(machine), deadline_(deadline), analyzer_(model, machine) {}

Grid::~Grid() = default;

Grid::Role& Grid::role(analyzer::StageRole wanted) {
  // How many layers of a stage among others are frozen, or dense, depends on the stages before it,
  // which a position does not know: they count as the others, until a plan is predicted.
  if (wanted.first)
    wanted.frozen = wanted.last ? model_.frozen_blocks : std::min(model_.frozen_blocks, 1),
    wanted.dense = model_.first_dense_layers;
  auto& role = roles_[wanted];
  if (!role) {
    const auto e = analyzer::stage_expressions(model_, machine_, wanted);
    std::array<Expr, 4> memory;
    memory[MemoryOutput::forward_peak] = e.peak_forward_bytes;
    memory[MemoryOutput::backward_peak] = e.peak_backward_bytes;
    memory[MemoryOutput::host] = e.host_bytes;
    memory[MemoryOutput::disk] = e.disk_bytes;
    // Most of a time is what one layer takes, for which the numbers of layers do not matter; most
    // of the memory depends on which layer is looked at.
    std::vector<bool> of_position, but_layers;
    for (const Variable& variable : variables()) {
      of_position.push_back(!variable.of_strategy());
      but_layers.push_back(!variable.number || !variable.number->counts_layers);
    }
    role = std::make_unique<Role>(
        Role{Priced(objective_times(e.time, wanted), but_layers), Priced(memory, of_position)});
  }
  return *role;
}

/// Values of the variables that follow from the position; the others are 0.
const std::vector<double>& Grid::values(const StagePosition& position) {
  const PipelineConfig& config = position.config;
  const bool several = config.num_stages > 1;
  std::vector<double>& values =
      values_[{position.mesh(), config.microbatches, config.order.run_ahead,
               config.in_flight(position.after), several}];
  if (!values.empty()) return values;
  const plan::Plan plan = plan_from(position);
  for (const Variable& variable : variables()) {
    double& value = values.emplace_back(0.0);
    if (is_knob(*variable.knob, plan::num_stages))
      value = several ? 2.0 : 1.0;  // at least: what is known of a position holds for more, too
    else if (is_knob(*variable.knob, plan::stage_in_flight))
      value = config.in_flight(position.after);
    else if (!variable.of_strategy())
      value = plan::number(*variable.knob, plan, 0);
  }
  return values;
}

void Grid::evaluate(Priced& priced, const StagePosition& position, std::span<const Point> points) {
  deadline_.check();
  struct Place {
    const std::vector<double>* common;
    std::size_t kind;  ///< points of one kind evaluate functions at the same arguments
    std::size_t point;
    auto operator<=>(const Place&) const = default;
  };
  const std::vector<Variable>& all = variables();
  std::vector<double> values = this->values(position);
  std::vector<Place> places;
  places.reserve(points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Strategy& s = points[i].strategy;
    bool changed = i == 0;
    for (const std::size_t v : priced.chosen) {
      const double value = all[v].of(s);
      changed |= value != values[v];
      values[v] = value;
    }
    const auto part = [&](int layers) { return layers == 0 ? 0u : layers == s.layers ? 1u : 2u; };
    const std::size_t kind =
        2 * (3 * part(s.ckpt_layers()) + part(s.stored_layers())) + (s.layers == 1 ? 1 : 0);
    places.push_back({changed ? &priced.common(values) : places.back().common, kind, i});
  }
  std::ranges::sort(places);
  columns_.resize(all.size());
  std::vector<const double*> inputs(all.size(), nullptr);
  std::array<double*, 4> outputs;
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    outputs_[o].resize(points.size());
    results_[o].resize(points.size());
    outputs[o] = results_[o].data();
  }
  for (std::size_t first = 0, end = 0; first < places.size(); first = end) {
    for (const std::size_t v : priced.varying) columns_[v].clear();
    for (end = first; end < places.size() && places[end].common == places[first].common; ++end)
      for (const std::size_t v : priced.varying)
        columns_[v].push_back(all[v].of(points[places[end].point].strategy));
    for (const std::size_t v : priced.varying) inputs[v] = columns_[v].data();
    priced.tape.evaluate(*places[first].common, inputs, outputs, end - first);
    for (std::size_t o = 0; o < outputs_.size(); ++o)
      for (std::size_t i = first; i < end; ++i)
        outputs_[o][places[i].point] = results_[o][i - first];
  }
  evaluations_ += std::int64_t(points.size() * outputs_.size());
}

void Grid::price_time(const StagePosition& position, std::span<Point> points) {
  evaluate(role(position.role()).time, position, points);
  for (std::size_t i = 0; i < points.size(); ++i)
    for (std::size_t o = 0; o < outputs_.size(); ++o) points[i].*time_outputs[o] = outputs_[o][i];
}

/// Adds to the peaks what waits for the second part of its backward. The first part of a microbatch
/// ends with that of all layers but the last in the place of what its forward kept.
void Grid::add_between_parts(const StagePosition& position, std::span<const Point> points) {
  const auto [known, fresh] = between_parts_bytes_.try_emplace(position.mesh());
  for (int stored = 0; fresh && stored <= 1; ++stored) {
    plan::Stage stage = stage_of(position.mesh(), {});
    stage.layers = 1;
    stage.stored_layers = stored;
    known->second[stored] = analyzer::between_parts_bytes(stage, model_);
  }
  const auto [bytes, stored_bytes] = known->second;
  const int lag = position.config.memory_key(position.after).lag;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const int layers = points[i].layers(), stored = points[i].strategy.stored_layers();
    const double all = (layers - stored) * bytes + stored * stored_bytes;
    outputs_[MemoryOutput::forward_peak][i] += lag * all;
    outputs_[MemoryOutput::backward_peak][i] += (lag + 1.0 - 1.0 / layers) * all;
  }
}

void Grid::price_memory(const StagePosition& position, std::span<Point> points) {
  evaluate(role(position.role()).memory, position, points);
  if (position.config.order.splits_backward()) add_between_parts(position, points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].device_bytes = std::max(outputs_[MemoryOutput::forward_peak][i],
                                      outputs_[MemoryOutput::backward_peak][i]) *
                             (1.0 + position.config.memory_error);
    points[i].host_bytes = outputs_[MemoryOutput::host][i];
    points[i].disk_bytes = outputs_[MemoryOutput::disk][i];
  }
}

}  // namespace brume::tuner
