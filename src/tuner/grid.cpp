#include "grid.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "analyzer/messages.hpp"
#include "numbers.hpp"
#include "symbolic/batch.hpp"

namespace brume::tuner {
namespace {

using symbolic::Expr;
using symbolic::Tape;

/// What a strategy chooses, beside shares.
constexpr std::pair<int plan::Stage::*, int Point::*> chosen[] = {
    {&plan::Stage::layers, &Point::layers},
    {&plan::Stage::ckpt_layers, &Point::ckpt_layers},
    {&plan::Stage::stored_layers, &Point::stored_layers},
    {&plan::Stage::zero_level, &Point::zero_level},
    {&plan::Stage::replicas, &Point::replicas}};

/// A variable of the expressions: chosen by a strategy, a share, or the same for all of a seat.
struct Variable {
  const plan::Knob* knob;
  int Point::*choice = nullptr;
  std::optional<std::size_t> share = {};
};

/// In the order of analyzer::variables().
const std::vector<Variable>& variables() {
  static const std::vector<Variable> all = [] {
    std::vector<Variable> found;
    for (const plan::Knob& knob : plan::knobs) {
      if (!*knob.symbol) continue;
      Variable& variable = found.emplace_back(Variable{&knob});
      for (const auto& [of_stage, of_point] : chosen)
        if (knob.member == decltype(knob.member)(of_stage)) variable.choice = of_point;
      for (std::size_t i = 0; i < plan::num_shares; ++i)
        if (plan::shares[i].knob == &knob) variable.share = i;
    }
    return found;
  }();
  return all;
}

/// A plan that begins with the seat's stage.
plan::Plan plan_from(const Seat& seat) {
  plan::Plan plan{.microbatches = seat.frame.microbatches,
                  .run_ahead = seat.frame.run_ahead,
                  .stages = std::vector<plan::Stage>(std::size_t(seat.after) + 1)};
  plan.stages[0] = stage_of(seat.mesh(), {});
  return plan;
}

std::vector<double> sorted(std::vector<double> ratios) {
  if (ratios.empty()) ratios = {0.0};
  std::ranges::sort(ratios);
  ratios.erase(std::unique(ratios.begin(), ratios.end()), ratios.end());
  return ratios;
}

bool falls(double from, double to) { return to < from - sum_rounding * std::abs(from); }

}  // namespace

Axes::Axes(const deck::SearchKeys& search)
    : zero_levels(search.zero_levels),
      recompute(search.recompute),
      store(search.store && !search.store_rest),
      store_rest(search.store_rest),
      shard_within_node(search.shard_within_node) {
  for (std::size_t i = 0; i < ratios.size(); ++i)
    ratios[i] = sorted(search.*plan::shares[i].list());
  if (zero_levels.empty()) zero_levels = {0, 1, 2, 3};
  std::ranges::sort(zero_levels);
  zero_levels.erase(std::unique(zero_levels.begin(), zero_levels.end()), zero_levels.end());
}

std::vector<Axes::Sharding> Axes::shardings(const Layout& mesh) const {
  if (mesh.dp == 1) return {{zero_levels[0], 1}};  // nothing to shard over
  std::vector<Sharding> found;
  const bool within_node = shard_within_node && mesh.nodes > 1 && mesh.dp > mesh.nodes;
  for (const int zero_level : zero_levels) {
    found.push_back({zero_level, 1});
    if (within_node && zero_level > 0) found.push_back({zero_level, mesh.nodes});
  }
  return found;
}

std::vector<int> Axes::ends(int layers) const {
  const auto [least, most] = levels(layers);
  std::vector<int> all{0};
  if (least < 0) all.push_back(least);
  if (most > 0) all.push_back(most);
  return all;
}

std::vector<int> Axes::turning_levels(int layers) const {
  constexpr int few = 4;
  if (layers > few) return ends(layers);
  const auto [least, most] = levels(layers);
  std::vector<int> found(std::size_t(most - least) + 1);
  std::iota(found.begin(), found.end(), least);
  return found;
}

Axes Axes::in_memory() const {
  Axes axes = *this;
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (plan::shares[i].on_disk()) axes.ratios[i] = {0.0};
  return axes;
}

Axes Axes::of_split_backwards() const {
  Axes axes = *this;
  std::erase_if(axes.zero_levels, [](int level) { return level > 1; });
  if (axes.zero_levels.empty()) axes.zero_levels = {0};
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (plan::shares[i].ratio == &plan::Stage::grad_offload_ratio) axes.ratios[i] = {0.0};
  axes.recompute = false;
  return axes;
}

bool Point::is_faster_than(const Point& other) const {
  return falls(other.stable_s, stable_s) || falls(other.whole_s(), whole_s()) ||
         falls(other.shortest_s(), shortest_s()) || falls(other.alone_s(), alone_s());
}

void Point::take_less_of(const Point& other) {
  const double whole = std::min(whole_s(), other.whole_s());
  const double shortest = std::min(shortest_s(), other.shortest_s());
  const double alone = std::min(alone_s(), other.alone_s());
  stable_s = std::min(stable_s, other.stable_s);
  delta_s = whole - stable_s;
  less_s = stable_s - shortest;
  alone_delta_s = alone - stable_s;
}

bool Point::parts_fit() const {
  Ratios parts{};
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (const auto whole = plan::shares[i].whole)
      if ((parts[*whole] += ratios[i]) > 1.0) return false;
  return true;
}

Point Point::of_chunk(int chunk, int chunks) const {
  const auto layers_before = [&](int count) {
    return count * (layers / chunks) + std::min(count, layers % chunks);
  };
  // Of what some layers do each chunk has its part.
  const int first = layers_before(chunk), end = layers_before(chunk + 1);
  const auto part_of = [&](int count) { return count * end / layers - count * first / layers; };
  Point part = *this;
  part.layers = end - first;
  part.ckpt_layers = part_of(ckpt_layers);
  part.stored_layers = ckpt_layers + stored_layers == layers ? part.layers - part.ckpt_layers
                                                             : part_of(stored_layers);
  return part;
}

void Point::apply_to(plan::Stage& stage) const {
  for (const auto& [of_stage, of_point] : chosen) stage.*of_stage = this->*of_point;
  for (std::size_t i = 0; i < ratios.size(); ++i) stage.*plan::shares[i].ratio = ratio(i);
}

plan::Stage stage_of(const Layout& mesh, const std::string& group) {
  return {.nodes = mesh.nodes,
          .devices_per_node = mesh.devices_per_node,
          .microbatch = mesh.microbatch,
          .dp = mesh.dp,
          .tp = mesh.tp,
          .group = group};
}

analyzer::StageRole Seat::role() const {
  const int own = mesh().group;
  return {.first = after + 1 == frame.num_stages,
          .last = after == 0,
          .group = own,
          .before = own,
          .after = own,
          .disk = mesh().disk,
          .host_update = mesh().host_update,
          .times = mesh().times};
}

namespace {

/// What a strategy has for a variable that depends on it.
double number(const Variable& variable, const Point& point) {
  return variable.choice ? double(point.*variable.choice) : point.ratio(*variable.share);
}

}  // namespace

struct Grid::Priced {
  struct Hash {
    std::size_t operator()(const std::vector<double>& numbers) const {
      std::size_t sum = numbers.size();
      for (const double number : numbers) {
        sum = (sum ^ std::hash<double>{}(number)) * 0x9E3779B97F4A7C15u;
        sum ^= sum >> 32;
      }
      return sum;
    }
  };

  Priced(const std::array<Expr, 4>& outputs, const std::vector<bool>& shared)
      : tape(Tape(outputs, analyzer::variables()), shared) {
    const std::vector<Variable>& all = variables();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!tape.reads(i)) continue;
      if (shared[i]) in_common.push_back(i);
      if (all[i].choice || all[i].share) (shared[i] ? chosen : varying).push_back(i);
    }
  }

  /// Of a strategy, whose shared variables have these values.
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
  // How much of a stage among others is frozen depends on the stages before it, which a seat does
  // not know: it counts as trained, until a plan is predicted.
  if (wanted.first && wanted.last) wanted.frozen = model_.frozen_blocks;
  auto& role = roles_[wanted];
  if (!role) {
    const auto e = analyzer::stage_expressions(model_, machine_, wanted);
    const auto& t = e.time;
    // Others wait until a pass has sent its message, not for the transfers that follow that. The
    // first and the last stage have none to send in one direction.
    const auto sent_s = [](bool sends, const Expr& pass_s, const Expr& tail_s) {
      return sends ? max(pass_s - tail_s, 0.0) : pass_s;
    };
    const Expr forward_s = sent_s(!wanted.last, t.forward_s, t.forward_tail_s);
    // A stage that waits for a gradient recomputes meanwhile.
    const Expr needs_gradient_s = wanted.last ? t.backward_s : t.backward_s - t.recompute_ahead_s;
    const Expr backward_s = sent_s(!wanted.first, needs_gradient_s, t.backward_tail_s);
    const Expr last_s = sent_s(!wanted.first, needs_gradient_s + t.last_s, t.last_tail_s);
    Expr first_s = sent_s(!wanted.last, t.forward_s + t.first_s, t.first_tail_s);
    const Expr shortest_s = min(first_s, forward_s) + min(backward_s, last_s);
    // While a later stage waits for its first input it does its first updates; while it waits for
    // the stages before it to end, what follows its last backward.
    if (!wanted.first)
      first_s =
          max(first_s - min(max(t.ahead_s, 0.0), max(t.first_s, 0.0)), min(first_s, forward_s));
    const Expr ends_s = wanted.first ? t.start_s + t.end_s : Expr(0.0);
    const std::array<Expr, 4> time{t.stable_s(), first_s + last_s + ends_s - t.stable_s(),
                                   t.stable_s() - shortest_s, t.delta_s()};
    const std::array<Expr, 4> memory{e.peak_forward_bytes, e.peak_backward_bytes, e.host_bytes,
                                     e.disk_bytes};
    // Most of a time is what one layer takes, for which the numbers of layers do not matter; most
    // of the memory depends on which layer is looked at.
    std::vector<bool> of_seat, but_layers;
    for (const Variable& variable : variables()) {
      of_seat.push_back(!variable.choice && !variable.share);
      but_layers.push_back(variable.choice != &Point::layers &&
                           variable.choice != &Point::ckpt_layers &&
                           variable.choice != &Point::stored_layers);
    }
    role = std::make_unique<Role>(Role{Priced(time, but_layers), Priced(memory, of_seat)});
  }
  return *role;
}

/// Those that follow from the seat; others are 0.
const std::vector<double>& Grid::values(const Seat& seat) {
  const Frame& frame = seat.frame;
  const bool several = frame.num_stages > 1;
  std::vector<double>& values = values_[{seat.mesh(), frame.microbatches, frame.run_ahead,
                                         frame.in_flight(seat.after), several}];
  if (!values.empty()) return values;
  const plan::Plan plan = plan_from(seat);
  for (const Variable& variable : variables()) {
    double& value = values.emplace_back(0.0);
    if (std::string_view(variable.knob->symbol) == "S")
      value = several ? 2.0 : 1.0;  // at least: what is known of a seat holds for more, too
    else if (variable.knob->member == decltype(variable.knob->member)(plan::stage_in_flight))
      value = frame.in_flight(seat.after);
    else if (!variable.choice && !variable.share)
      value = plan::number(*variable.knob, plan, 0);
  }
  return values;
}

void Grid::evaluate(Priced& priced, const Seat& seat, std::span<const Point> points) {
  deadline_.check();
  struct Place {
    const std::vector<double>* common;
    std::size_t kind;  ///< those of one kind ask functions for the same
    std::size_t point;
    auto operator<=>(const Place&) const = default;
  };
  const std::vector<Variable>& all = variables();
  std::vector<double> values = this->values(seat);
  std::vector<Place> places;
  places.reserve(points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point& p = points[i];
    bool changed = i == 0;
    for (const std::size_t v : priced.chosen) {
      const double value = number(all[v], p);
      changed |= value != values[v];
      values[v] = value;
    }
    const auto part = [&](int layers) { return layers == 0 ? 0u : layers == p.layers ? 1u : 2u; };
    const std::size_t kind =
        2 * (3 * part(p.ckpt_layers) + part(p.stored_layers)) + (p.layers == 1 ? 1 : 0);
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
        columns_[v].push_back(number(all[v], points[places[end].point]));
    for (const std::size_t v : priced.varying) inputs[v] = columns_[v].data();
    priced.tape.evaluate(*places[first].common, inputs, outputs, end - first);
    for (std::size_t o = 0; o < outputs_.size(); ++o)
      for (std::size_t i = first; i < end; ++i)
        outputs_[o][places[i].point] = results_[o][i - first];
  }
  evaluations_ += std::int64_t(points.size() * outputs_.size());
}

void Grid::price_time(const Seat& seat, std::span<Point> points) {
  evaluate(role(seat.role()).time, seat, points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].stable_s = outputs_[0][i];
    points[i].delta_s = outputs_[1][i];
    points[i].less_s = outputs_[2][i];
    points[i].alone_delta_s = outputs_[3][i];
  }
}

/// Adds to the peaks what waits for the second part of its backward. The first part of a microbatch
/// ends with that of all layers but the last in the place of what its forward kept.
void Grid::add_between_parts(const Seat& seat, std::span<const Point> points) {
  const auto [known, fresh] = between_parts_bytes_.try_emplace(seat.mesh());
  for (int stored = 0; fresh && stored <= 1; ++stored) {
    plan::Stage stage = stage_of(seat.mesh(), {});
    stage.layers = 1;
    stage.stored_layers = stored;
    known->second[std::size_t(stored)] = analyzer::between_parts_bytes(stage, model_);
  }
  const auto [bytes, stored_bytes] = known->second;
  const int lag = seat.frame.kept(seat.after).lag;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point& p = points[i];
    const double all = (p.layers - p.stored_layers) * bytes + p.stored_layers * stored_bytes;
    outputs_[0][i] += lag * all;
    outputs_[1][i] += (lag + 1.0 - 1.0 / p.layers) * all;
  }
}

void Grid::price_memory(const Seat& seat, std::span<Point> points) {
  evaluate(role(seat.role()).memory, seat, points);
  if (seat.frame.zero_bubble) add_between_parts(seat, points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].device_bytes =
        std::max(outputs_[0][i], outputs_[1][i]) * (1.0 + seat.frame.memory_error);
    points[i].host_bytes = outputs_[2][i];
    points[i].disk_bytes = outputs_[3][i];
  }
}

namespace {

/// As stages of two layouts stand on nodes: on one, if they may.
analyzer::EndsOf ends(const Layout& a, const Layout& b, const hardware::Machine& machine,
                      bool on_one_node = true) {
  const int per_node = machine.profile(a.group).key.ranks_per_node;
  const bool share = on_one_node && a.devices() < per_node && b.devices() < per_node;
  const bool leaves_node = a.group == b.group && !share;
  return [=](int, int) { return price::Ends{a.group, b.group, leaves_node}; };
}

}  // namespace

double Grid::stream_s(const Layout& from, const Layout& to) {
  const auto [known, fresh] = streams_s_.try_emplace({from, to}, 0.0);
  if (fresh)
    known->second =
        analyzer::stream_s(model_, machine_, stage_of(from, machine_.name(from.group)),
                           stage_of(to, machine_.name(to.group)), ends(from, to, machine_));
  return known->second;
}

double Grid::tied_gradient_s(const Layout& first, const Layout& last, bool on_one_node) {
  const auto [known, fresh] = tied_gradients_s_.try_emplace({first, last, on_one_node}, 0.0);
  if (fresh) {
    const analyzer::TiedTimes times = analyzer::tied_s(
        model_, machine_, stage_of(first, machine_.name(first.group)),
        stage_of(last, machine_.name(last.group)), ends(first, last, machine_, on_one_node));
    known->second = times.gradient_s + times.rest_s;
  }
  return known->second;
}

}  // namespace brume::tuner
