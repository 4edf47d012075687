/// @file Mist's measurements and predictions, read from data/mist.
#pragma once

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "mist/counting.hpp"

namespace brume::mist {

/// The words of the lines of a file under regression/data/mist, comments left out.
inline std::vector<std::istringstream> data_lines(const std::string& file) {
  std::ifstream in(std::string(BRUME_REGRESSION_DIR "/data/mist/") + file);
  require(in.good(), Failure::bug, "no file data/mist/{}", file);
  std::vector<std::istringstream> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    std::ranges::replace(line, ',', ' ');
    lines.emplace_back(line);
  }
  return lines;
}

inline std::istream& operator>>(std::istream& in, Link& link) {
  return in >> link.gib_per_s >> link.latency_s;
}

inline std::istream& operator>>(std::istream& in, Strategy& s) {
  return in >> s.microbatch >> s.dp >> s.tp >> s.shard_weights >> s.shard_grads >>
         s.shard_optimizer >> s.offload_weights >> s.offload_grads >> s.offload_optimizer >>
         s.offload_saved;
}

inline std::map<std::string, Hardware> hardware_by_name() {
  std::map<std::string, Hardware> all;
  for (std::istringstream& line : data_lines("l4_hardware.csv")) {
    std::string name;
    line >> name;
    Hardware& hardware = all[name];
    for (auto& row : hardware.links)
      for (Link& link : row) line >> link;
    line >> hardware.copy_in >> hardware.copy_out;
    for (double& slowdown : hardware.slowdowns) line >> slowdown;
    line >> hardware.memory_gib;
    require(!line.fail(), Failure::bug, "a hardware template has 65 numbers");
  }
  return all;
}

/// A measured operator, and what a collective over tp attached to it reduces.
struct MistOperatorRow {
  std::string name;
  Operator op;
  double forward_gib = 0.0;
  double backward_gib = 0.0;
};

/// The operators of each layer by the name of their set and the layer: block, embedding or head.
class MistOperators {
 public:
  MistOperators() {
    for (const char* file : {"l4_operators.csv", "analyzer_operators.csv", "tuner_operators.csv"})
      for (std::istringstream& line : data_lines(file)) add(line);
  }

  /// @param tp  ranks of the group that reduces, on one node
  LayerTime time(const std::string& set, const std::string& layer, const Hardware& hardware,
                 int tp) const {
    std::vector<Operator> operators;
    double accumulate_s = 0.0;
    for (const MistOperatorRow& row : rows(set, layer)) {
      if (row.name == "accumulate") {
        accumulate_s = row.op.forward_s;
        continue;
      }
      const auto reduce_s = [&](double gib) {
        return collective_s(hardware, Collective::all_reduce, gib, 1, tp);
      };
      operators.push_back(row.op);
      operators.back().reduce_forward_s = reduce_s(row.forward_gib);
      operators.back().reduce_backward_s = reduce_s(row.backward_gib);
    }
    return layer_time(operators, accumulate_s);
  }

  const std::vector<MistOperatorRow>& rows(const std::string& set, const std::string& layer) const {
    return rows_.at(set + "/" + layer);
  }

  /// The same, if there is such a set.
  std::optional<LayerTime> find(const std::string& set, const std::string& layer,
                                const Hardware& hardware, int tp) const {
    if (!rows_.contains(set + "/" + layer)) return {};
    return time(set, layer, hardware, tp);
  }

 private:
  void add(std::istringstream& line) {
    std::string set, layer;
    MistOperatorRow row;
    line >> set >> layer >> row.name >> row.op.count >> row.op.forward_s >> row.op.backward_s >>
        row.forward_gib >> row.backward_gib;
    require(!line.fail(), Failure::bug, "an operator has 8 columns");
    rows_[set + "/" + layer].push_back(row);
  }

  std::map<std::string, std::vector<MistOperatorRow>> rows_;
};

/// A plan, and what Mist prints for it.
struct Expectation {
  std::string name;
  std::string operators;  ///< of a block; l4: measured on an L4
  std::string operators_of_ends;
  Case mist;
  Prediction printed;
};

/// Sets the kind of a model's layers: gpt, llama or falcon.
inline void set_layers(Model& model, const std::string& kind) {
  model.gated = kind == "llama";
  model.parallel = kind == "falcon";
}

inline Expectation mist_expectation(std::istringstream& line, const MistOperators& operators) {
  Expectation e;
  Model& m = e.mist.model;
  std::string family, hardware;
  line >> e.name >> family >> m.flash >> m.hidden >> m.ffn >> m.heads >> m.sequence >> m.vocab >>
      hardware >> e.mist.microbatches >> e.mist.ends >> e.operators >> e.operators_of_ends >>
      e.printed.iteration_s;
  require(!line.fail(), Failure::bug, "a case has 25 columns");
  set_layers(m, family);
  e.mist.hardware = hardware_by_name().at(hardware);
  const auto time = [&](const char* layer) {
    return operators.time(e.operators_of_ends, layer, e.mist.hardware, e.mist.ends.tp);
  };
  e.mist.embedding = time("embedding");
  e.mist.head = time("head");
  return e;
}

inline void add_stage(std::istringstream& line, const MistOperators& operators, Expectation& e) {
  Stage stage;
  StagePrediction printed;
  line >> stage.layers >> stage.recomputed >> stage.nodes >> stage.ranks_per_node >>
      stage.strategy >> printed.stable_s >> printed.delta_s >> printed.peak_forward_mib >>
      printed.peak_backward_mib;
  require(!line.fail(), Failure::bug, "a stage has 19 columns");
  stage.block = operators.time(e.operators, "block", e.mist.hardware, stage.strategy.tp);
  e.mist.stages.push_back(stage);
  e.printed.stages.push_back(printed);
}

inline std::vector<Expectation> expectations() {
  const MistOperators operators;
  std::vector<Expectation> all;
  for (std::istringstream& line : data_lines("analyzer.csv")) {
    std::string kind;
    line >> kind;
    if (kind == "case")
      all.push_back(mist_expectation(line, operators));
    else
      add_stage(line, operators, all.back());
  }
  return all;
}

}  // namespace brume::mist
