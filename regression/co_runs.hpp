/// @file Co-runs measured on GPUs, and how well fitted interference predicts those it has not seen.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "hardware/interference_fit.hpp"

namespace brume::test {

using CoRuns = std::vector<hardware::CoRun>;

/// Nodes of a group and its ranks on each.
using Shape = std::pair<int, int>;

/// The co-runs of one machine.
using Shapes = std::map<Shape, CoRuns>;

/// Reads data/mist/co_runs.csv, by machine.
inline std::map<std::string, Shapes> read_co_runs(const std::string& path) {
  std::ifstream file(path);
  require(file.good(), Failure::input, "cannot read {}", path);
  std::map<std::string, Shapes> machines;
  std::string line;
  while (std::getline(file, line) && line.starts_with('#')) continue;  // ends at the titles
  while (std::getline(file, line)) {
    std::ranges::replace(line, ',', ' ');
    std::istringstream cells(line);
    std::string machine;
    Shape shape;
    hardware::CoRun co_run;
    cells >> machine >> shape.first >> shape.second;
    for (double& alone_s : co_run.alone_s) cells >> alone_s, alone_s *= 1e-3;
    cells >> co_run.together_s, co_run.together_s *= 1e-3;
    require(!cells.fail(), Failure::input, "{}: cannot read '{}'", path, line);
    machines[machine][shape].push_back(co_run);
  }
  return machines;
}

/// A random half of the co-runs of each shape, and the rest.
inline std::pair<Shapes, Shapes> halves(Shapes all, unsigned seed) {
  std::mt19937 random(seed);
  Shapes rest;
  for (auto& [shape, co_runs] : all) {
    std::ranges::shuffle(co_runs, random);
    const auto middle = co_runs.begin() + std::ptrdiff_t(co_runs.size() / 2);
    rest[shape].assign(middle, co_runs.end());
    co_runs.erase(middle, co_runs.end());
  }
  return {all, rest};
}

/// Mean of |predict(alone_s) / together_s - 1|.
template <class Predict>
double mean_error(const Predict& predict, const CoRuns& co_runs) {
  double sum = 0.0;
  for (const hardware::CoRun& c : co_runs) sum += std::abs(predict(c.alone_s) / c.together_s - 1.0);
  return sum / double(co_runs.size());
}

inline double mean_error(const hardware::Interference& model, const CoRuns& co_runs) {
  return mean_error([&](const auto& alone_s) { return model.overlapped_s(alone_s); }, co_runs);
}

/// A table for each shape.
using Models = std::map<Shape, hardware::Interference>;

inline double mean_error(const Models& models, const Shapes& shapes) {
  double sum = 0.0, count = 0.0;
  for (const auto& [shape, co_runs] : shapes) {
    sum += mean_error(models.at(shape), co_runs) * double(co_runs.size());
    count += double(co_runs.size());
  }
  return sum / count;
}

/// One table from the co-runs of all shapes.
inline Models fit_pooled(const Shapes& shapes) {
  CoRuns pooled;
  for (const auto& [shape, co_runs] : shapes)
    pooled.insert(pooled.end(), co_runs.begin(), co_runs.end());
  const hardware::Interference model = hardware::fit_interference(pooled);
  Models models;
  for (const auto& [shape, co_runs] : shapes) models[shape] = model;
  return models;
}

/// A table for each shape from its own co-runs.
inline Models fit_each(const Shapes& shapes) {
  Models models;
  for (const auto& [shape, co_runs] : shapes) models[shape] = hardware::fit_interference(co_runs);
  return models;
}

/// For each shape its own table, where that predicts one half of these co-runs from the other
/// better than the pooled one does; else the pooled one.
inline Models fit_better(const Shapes& shapes) {
  const auto [train, check] = halves(shapes, 1);
  const Models pooled = fit_pooled(train), each = fit_each(train);
  Models models = fit_pooled(shapes), own = fit_each(shapes);
  for (const auto& [shape, co_runs] : check)
    if (mean_error(each.at(shape), co_runs) < mean_error(pooled.at(shape), co_runs))
      models[shape] = own[shape];
  return models;
}

}  // namespace brume::test
