/// @file All strategies of one stage, evaluated in blocks.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "space.hpp"

namespace brume::tuner {

/// One strategy of a stage and what it costs.
struct Point {
  int layers = 0;
  int ckpt_layers = 0;
  int zero_level = 0;
  double optim_offload_ratio = 0.0;
  double act_offload_ratio = 0.0;
  double stable_s = 0.0;
  double delta_s = 0.0;
  double device_bytes = 0.0;  ///< peak, per rank
  double host_bytes = 0.0;    ///< per rank

  bool same_strategy(const Point& other) const;
};

/// The expressions of all stage roles of one model on one machine, compiled.
class Grid {
 public:
  Grid(const model::Config& model, const hardware::Profile& profile);

  /// Every strategy of stage `stage` of `shape` that the search allows, feasible or not.
  std::vector<Point> points(const Shape& shape, int stage, const deck::SearchKeys& search);

  static constexpr int num_expressions = 5;  ///< evaluated for each point

 private:
  struct Role {
    symbolic::Tape time;    ///< stable, delta
    symbolic::Tape memory;  ///< forward peak, backward peak, host
  };
  const Role& role(analyzer::StageRole wanted);

  const model::Config& model_;
  const hardware::Profile& profile_;
  std::map<std::pair<bool, bool>, std::unique_ptr<Role>> roles_;
};

/// Keeps the points that no other one beats in stable time, delta and, when it matters, host bytes.
/// Points of different layers do not compete. @return by layers, then by stable time
std::vector<Point> pareto_front(std::vector<Point> points, bool host_matters);

/// Leaves out points of long fronts, so that at most `most` of each number of layers remain: each
/// one left out has a kept one of no larger delta that is slower by at most the returned seconds.
double thin(std::vector<Point>& front, int most);

}  // namespace brume::tuner
