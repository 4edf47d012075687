#include "grid.hpp"

#include <algorithm>
#include <array>
#include <tuple>

namespace brume::tuner {
namespace {

using symbolic::Expr;
using symbolic::Tape;

/// Columns for a tape, one a variable, in the order of analyzer::variables().
class Columns {
 public:
  Columns(const std::vector<Point>& points, const Shape& shape, int stage)
      : shape_(shape), stage_(stage) {
    for (const std::string& name : analyzer::variables()) {
      std::vector<double>& column = columns_.emplace_back();
      column.reserve(points.size());
      for (const Point& point : points) column.push_back(value(name, point));
    }
    for (const auto& column : columns_) inputs_.push_back(column.data());
  }
  std::span<const double* const> inputs() const { return inputs_; }

 private:
  double value(const std::string& name, const Point& point) const {
    if (name == "l") return point.layers;
    if (name == "c") return point.ckpt_layers;
    if (name == "z") return point.zero_level;
    if (name == "o") return point.optim_offload_ratio;
    if (name == "a") return point.act_offload_ratio;
    if (name == "b") return shape_.microbatch;
    if (name == "dp") return shape_.dp;
    if (name == "tp") return shape_.tp;
    if (name == "p") return shape_.in_flight(stage_);
    if (name == "G") return shape_.microbatches;
    if (name == "S") return shape_.num_stages;
    return name == "n" ? shape_.nodes : shape_.devices_per_node;
  }

  const Shape& shape_;
  int stage_;
  std::vector<std::vector<double>> columns_;
  std::vector<const double*> inputs_;
};

template <std::size_t N>
std::array<std::vector<double>, N> evaluate(const Tape& tape, const Columns& columns,
                                            std::size_t count) {
  std::array<std::vector<double>, N> results;
  std::array<double*, N> outputs;
  for (std::size_t i = 0; i < N; ++i) {
    results[i].resize(count);
    outputs[i] = results[i].data();
  }
  tape.evaluate(columns.inputs(), outputs, count);
  return results;
}

/// The grid without its costs. Layers vary fastest: functions of the other knobs keep their last
/// value.
std::vector<Point> strategies(const Shape& shape, const model::Config& model,
                              const deck::SearchKeys& search) {
  const int most = model.num_layers - shape.num_stages + 1;
  const int least = shape.num_stages == 1 ? most : 1;
  std::vector<int> zero_levels = search.zero_levels;
  if (zero_levels.empty()) zero_levels = {0, 1};
  if (shape.dp == 1) zero_levels.resize(1);  // nothing to shard over
  std::vector<Point> points;
  for (int zero_level : zero_levels)
    for (double o : search.optim_offload.empty() ? std::vector{0.0} : search.optim_offload)
      for (double a : search.act_offload.empty() ? std::vector{0.0} : search.act_offload)
        for (int l = least; l <= most; ++l)
          for (int c = 0; c <= (search.recompute ? l : 0); ++c)
            points.push_back({.layers = l,
                              .ckpt_layers = c,
                              .zero_level = zero_level,
                              .optim_offload_ratio = o,
                              .act_offload_ratio = a});
  return points;
}

auto costs(const Point& p) { return std::tie(p.layers, p.stable_s, p.delta_s, p.host_bytes); }

}  // namespace

bool Point::same_strategy(const Point& other) const {
  const auto knobs = [](const Point& p) {
    return std::tie(p.layers, p.ckpt_layers, p.zero_level, p.optim_offload_ratio,
                    p.act_offload_ratio);
  };
  return knobs(*this) == knobs(other);
}

Grid::Grid(const model::Config& model, const hardware::Profile& profile)
    : model_(model), profile_(profile) {}

const Grid::Role& Grid::role(analyzer::StageRole wanted) {
  auto& role = roles_[{wanted.first, wanted.last}];
  if (!role) {
    const auto e = analyzer::stage_expressions(model_, profile_, wanted);
    const std::array<Expr, 2> time{e.stable_s, e.delta_s};
    const std::array<Expr, 3> memory{e.peak_forward_bytes, e.peak_backward_bytes, e.host_bytes};
    role = std::make_unique<Role>(
        Role{Tape(time, analyzer::variables()), Tape(memory, analyzer::variables())});
  }
  return *role;
}

std::vector<Point> Grid::points(const Shape& shape, int stage, const deck::SearchKeys& search) {
  const Role& tapes = role({.first = stage == 0, .last = stage + 1 == shape.num_stages});
  std::vector<Point> points = strategies(shape, model_, search);
  const Columns columns(points, shape, stage);
  const auto time = evaluate<2>(tapes.time, columns, points.size());
  const auto memory = evaluate<3>(tapes.memory, columns, points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].stable_s = time[0][i];
    points[i].delta_s = time[1][i];
    points[i].device_bytes = std::max(memory[0][i], memory[1][i]);
    points[i].host_bytes = memory[2][i];
  }
  return points;
}

std::vector<Point> pareto_front(std::vector<Point> points, bool host_matters) {
  std::ranges::stable_sort(points,
                           [](const Point& a, const Point& b) { return costs(a) < costs(b); });
  std::vector<Point> front;
  std::size_t first = 0;  // of the same layers
  for (const Point& point : points) {
    if (!front.empty() && front.back().layers != point.layers) first = front.size();
    // What stands before it is no slower; without host bytes the last one has the smallest delta.
    const auto beats = [&](const Point& other) {
      return other.delta_s <= point.delta_s &&
             (!host_matters || other.host_bytes <= point.host_bytes);
    };
    const std::size_t from = host_matters || first == front.size() ? first : front.size() - 1;
    if (std::none_of(front.begin() + std::ptrdiff_t(from), front.end(), beats))
      front.push_back(point);
  }
  return front;
}

double thin(std::vector<Point>& front, int most) {
  std::vector<Point> kept;
  double lost_s = 0.0;
  for (std::size_t begin = 0; begin < front.size();) {
    std::size_t end = begin;
    while (end < front.size() && front[end].layers == front[begin].layers) ++end;
    const double range_s = front[end - 1].stable_s - front[begin].stable_s;
    const double step_s = int(end - begin) <= most ? 0.0 : range_s / (most - 1);
    // The last point of each step stands for those before it; the fastest one stays anyway.
    for (std::size_t i = begin; i < end;) {
      std::size_t last = i;
      while (i > begin && last + 1 < end && front[last + 1].stable_s <= front[i].stable_s + step_s)
        ++last;
      lost_s = std::max(lost_s, front[last].stable_s - front[i].stable_s);
      kept.push_back(front[last]);
      i = last + 1;
    }
    begin = end;
  }
  front = std::move(kept);
  return lost_s;
}

}  // namespace brume::tuner
