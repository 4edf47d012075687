#include "grid.hpp"

#include <algorithm>
#include <random>

#include "base/error.hpp"
#include "numbers.hpp"

namespace brume::tuner {
namespace {

using symbolic::Expr;
using symbolic::Tape;

constexpr int probes = 12;  ///< strategies looked at along each axis

/// A plan variable: the same for all strategies of a seat, or one of a strategy's knobs.
struct Column {
  double same;
  double (*of)(const Point&) = nullptr;
};

Column column(const std::string& name, const Seat& seat) {
  const Layout& mesh = seat.mesh();
  if (name == "l") return {0.0, [](const Point& p) { return double(p.layers); }};
  if (name == "c") return {0.0, [](const Point& p) { return double(p.ckpt_layers); }};
  if (name == "z") return {0.0, [](const Point& p) { return double(p.zero_level); }};
  if (name == "w") return {0.0, [](const Point& p) { return p.ratios[0]; }};
  if (name == "g") return {0.0, [](const Point& p) { return p.ratios[1]; }};
  if (name == "o") return {0.0, [](const Point& p) { return p.ratios[2]; }};
  if (name == "a") return {0.0, [](const Point& p) { return p.ratios[3]; }};
  if (name == "od") return {0.0, [](const Point& p) { return p.optim_disk_ratio(); }};
  if (name == "ad") return {0.0, [](const Point& p) { return p.act_disk_ratio(); }};
  if (name == "b") return {double(mesh.microbatch)};
  if (name == "dp") return {double(mesh.dp)};
  if (name == "tp") return {double(mesh.tp)};
  if (name == "p") return {double(seat.frame.in_flight(seat.after))};
  if (name == "r") return {double(seat.frame.run_ahead)};
  if (name == "G") return {double(seat.frame.microbatches)};
  if (name == "S") return {double(seat.frame.num_stages)};
  if (name == "n") return {double(mesh.nodes)};
  if (name == "m") return {double(mesh.devices_per_node)};
  throw Error(Failure::bug, "the tuner knows no plan variable '{}'", name);
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
      ratios{sorted(search.weight_offload), sorted(search.grad_offload),
             sorted(search.optim_offload),  sorted(search.act_offload),
             sorted(search.optim_disk),     sorted(search.act_disk)},
      recompute(search.recompute) {
  if (zero_levels.empty()) zero_levels = {0, 1, 2, 3};
  std::ranges::sort(zero_levels);
  zero_levels.erase(std::unique(zero_levels.begin(), zero_levels.end()), zero_levels.end());
}

Axes Axes::in_memory() const {
  Axes axes = *this;
  for (std::size_t axis = first_on_disk; axis < ratios.size(); ++axis) axes.ratios[axis] = {0.0};
  return axes;
}

bool Point::same_strategy(const Point& other) const {
  const auto knobs = [](const Point& p) {
    return std::tie(p.layout, p.layers, p.ckpt_layers, p.zero_level, p.ratios);
  };
  return knobs(*this) == knobs(other);
}

analyzer::StageRole Seat::role() const {
  const int own = mesh().group;
  return {.first = after + 1 == frame.num_stages,
          .last = after == 0,
          .group = own,
          .before = own,
          .after = own,
          .disk = mesh().disk};
}

Grid::Grid(const model::Config& model, const hardware::Machine& machine, const Deadline& deadline)
    : model_(model), machine_(machine), deadline_(deadline), analyzer_(model, machine) {}

const Grid::Role& Grid::role(analyzer::StageRole wanted) {
  auto& role = roles_[wanted];
  if (!role) {
    const auto e = analyzer::stage_expressions(model_, machine_, wanted);
    // While a later stage waits for its first input it does its first updates; while it waits for
    // the stages before it to end, what follows its last backward.
    const Expr ahead_s = min(max(e.time.ahead_s, 0.0), max(e.time.first_s, 0.0));
    const Expr first_s = e.time.first_s - (wanted.first ? Expr(0.0) : ahead_s);
    const Expr ends_s = wanted.first ? e.time.start_s + e.time.end_s : Expr(0.0);
    const std::array<Expr, 4> time{e.time.stable_s(), first_s + e.time.last_s + ends_s,
                                   max(0.0 - first_s, 0.0) + max(0.0 - e.time.last_s, 0.0),
                                   e.time.delta_s()};
    const std::array<Expr, 4> memory{e.peak_forward_bytes, e.peak_backward_bytes, e.host_bytes,
                                     e.disk_bytes};
    role = std::make_unique<Role>(
        Role{Tape(time, analyzer::variables()), Tape(memory, analyzer::variables())});
  }
  return *role;
}

void Grid::evaluate(const Tape& tape, const Seat& seat, std::span<const Point> points) {
  deadline_.check();
  const auto& names = analyzer::variables();
  inputs_.resize(names.size());
  outputs_.resize(4);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Column variable = column(names[i], seat);
    inputs_[i].assign(points.size(), variable.same);
    if (variable.of) std::ranges::transform(points, inputs_[i].begin(), variable.of);
  }
  std::vector<const double*> inputs;
  std::vector<double*> outputs;
  for (auto& values : inputs_) inputs.push_back(values.data());
  constexpr std::size_t count = 4;  // of a role's either tape
  for (std::size_t i = 0; i < count; ++i) {
    outputs_[i].resize(points.size());
    outputs.push_back(outputs_[i].data());
  }
  tape.evaluate(inputs, outputs, points.size());
  evaluations_ += std::int64_t(points.size() * count);
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

void Grid::price_memory(const Seat& seat, std::span<Point> points) {
  evaluate(role(seat.role()).memory, seat, points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].device_bytes = std::max(outputs_[0][i], outputs_[1][i]);
    points[i].host_bytes = outputs_[2][i];
    points[i].disk_bytes = outputs_[3][i];
  }
}

namespace {

plan::Stage stage_of(const Layout& mesh, const hardware::Machine& machine) {
  return {.nodes = mesh.nodes,
          .devices_per_node = mesh.devices_per_node,
          .microbatch = mesh.microbatch,
          .dp = mesh.dp,
          .tp = mesh.tp,
          .group = machine.name(mesh.group)};
}

/// Whether stages of two layouts may stand on one node.
analyzer::SameNode may_share_node(const Layout& a, const Layout& b,
                                  const hardware::Machine& machine) {
  const int per_node = machine.profile(a.group).key.ranks_per_node;
  const bool share = a.group == b.group && a.devices() < per_node && b.devices() < per_node;
  return [share](int, int) { return share; };
}

}  // namespace

double Grid::stream_s(const Layout& from, const Layout& to) {
  const auto [known, fresh] = streams_s_.try_emplace({from, to}, 0.0);
  if (fresh)
    known->second = analyzer::stream_s(model_, machine_, stage_of(from, machine_),
                                       stage_of(to, machine_), may_share_node(from, to, machine_));
  return known->second;
}

analyzer::TiedTimes Grid::tied(const Layout& first, const Layout& last) {
  const auto [known, fresh] = tied_.try_emplace({first, last});
  if (fresh)
    known->second =
        analyzer::tied_s(model_, machine_, stage_of(first, machine_), stage_of(last, machine_),
                         may_share_node(first, last, machine_));
  return known->second;
}

Rising Grid::rising(const Seat& seat, const Axes& axes) {
  const Layout& mesh = seat.mesh();
  const auto key =
      std::tuple{seat.role(), mesh.microbatch, mesh.dp, mesh.tp, mesh.devices_per_node, mesh.nodes};
  if (const auto known = rising_.find(key); known != rising_.end()) return known->second;
  std::mt19937 random(7);
  const auto any = [&](std::size_t size) { return std::size_t(random() % size); };
  std::vector<Point> points;  // in pairs
  std::vector<std::size_t> axis_of;
  const int most = model_.num_layers - seat.frame.num_stages + 1;
  for (std::size_t axis = 0; axis < axes.ratios.size(); ++axis)
    for (int probe = 0; probe < probes && axes.ratios[axis].size() > 1; ++probe) {
      Point p{.layout = seat.layout};
      p.layers = probe < 3 ? std::min(probe + 1, most) : 1 + int(any(std::size_t(most)));
      p.ckpt_layers = axes.recompute ? int(any(std::size_t(p.layers) + 1)) : 0;
      p.zero_level = axes.zero_levels[any(axes.zero_levels.size())];
      for (std::size_t i = 0; i < axes.ratios.size(); ++i)
        p.ratios[i] = axes.ratios[i][any(axes.ratios[i].size())];
      const std::size_t step = any(axes.ratios[axis].size() - 1);
      for (std::size_t side : {step, step + 1}) {
        p.ratios[axis] = axes.ratios[axis][side];
        points.push_back(p);
      }
      axis_of.push_back(axis);
    }
  price_time(seat, points);
  price_memory(seat, points);
  Rising rising;
  rising.fill(true);
  for (std::size_t i = 0; i < axis_of.size(); ++i) {
    const Point &from = points[2 * i], &to = points[2 * i + 1];
    if (falls(from.stable_s, to.stable_s) || falls(from.whole_s(), to.whole_s()) ||
        falls(from.shortest_s(), to.shortest_s()) || falls(from.alone_s(), to.alone_s()) ||
        (axis_of[i] < first_on_disk && falls(from.host_bytes, to.host_bytes)))
      rising[axis_of[i]] = false;
  }
  return rising_[key] = rising;
}

}  // namespace brume::tuner
