/// @file What Mist's tuner was asked and found, read from data/mist.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mist/tuner.hpp"
#include "mist_cases.hpp"

namespace brume::mist {

/// One way to cut devices and batch, and the fastest plan that Mist found for it.
struct MistSolve {
  int tp = 1;
  int stages = 1;
  int microbatches = 1;
  double best_s = 0.0;
};

struct MistTuning {
  std::string name;
  Job job;
  Space space;
  double best_s = 0.0;
  double tuning_s = 0.0;  ///< on two cores, without imports
  double resident_mib = 0.0;
  std::vector<MistSolve> solves;
};

/// Times of layers from the operators that the tuning used.
inline LayerTimes mist_layer_times(std::shared_ptr<const MistOperators> operators,
                                   const std::string& table, const std::string& family,
                                   const Model& model, const Hardware& hardware) {
  const std::string hidden = std::to_string(int(model.hidden));
  const std::string block = table + "-" + family + "-" + hidden + (model.flash ? "-flash" : "");
  const std::string ends = table + "-ends-" + hidden;
  return [=](Layer layer, int microbatch, int tp) {
    const std::string size = "-s" + std::to_string(int(model.sequence)) + "-b" +
                             std::to_string(microbatch) + "-tp" + std::to_string(tp);
    if (layer == Layer::block) return operators->find(block + size, "block", hardware, tp);
    return operators->find(ends + size, layer == Layer::head ? "head" : "embedding", hardware, tp);
  };
}

inline MistTuning mist_tuning(std::istringstream& line,
                              std::shared_ptr<const MistOperators> operators) {
  MistTuning t;
  Model& m = t.job.model;
  std::string family, hardware, table;
  int most_tp = 1;
  bool zero_2_and_3 = true, recompute_some = true, offload_layers = true, offload_optimizer = true,
       offload_saved = true;
  line >> t.name >> family >> m.flash >> m.hidden >> m.ffn >> m.heads >> m.sequence >> m.vocab >>
      t.job.num_layers >> hardware >> t.job.nodes >> t.job.ranks_per_node >> t.job.global_batch >>
      table >> most_tp >> zero_2_and_3 >> recompute_some >> offload_layers >> offload_optimizer >>
      offload_saved >> t.best_s >> t.tuning_s >> t.resident_mib;
  require(!line.fail(), Failure::bug, "a tuning has 24 columns");
  set_layers(m, family);
  t.job.hardware = hardware_by_name().at(hardware);
  t.job.time = mist_layer_times(std::move(operators), table, family, m, t.job.hardware);
  for (int tp = 2; tp <= most_tp; tp *= 2) t.space.tp.push_back(tp);
  if (!recompute_some) t.space.recompute = Recompute::all;
  if (!zero_2_and_3) t.space.zero_levels = {1};
  if (!offload_layers) t.space.offload_weights = t.space.offload_grads = {0.0};
  if (!offload_optimizer) t.space.offload_optimizer = {0.0};
  if (!offload_saved) t.space.offload_saved = {0.0};
  return t;
}

inline std::vector<MistTuning> mist_tunings() {
  const auto operators = std::make_shared<const MistOperators>();
  std::vector<MistTuning> all;
  for (std::istringstream& line : data_lines("tuner.csv")) {
    std::string kind;
    line >> kind;
    if (kind == "run") {
      all.push_back(mist_tuning(line, operators));
      continue;
    }
    MistSolve solve;
    line >> solve.tp >> solve.stages >> solve.microbatches >> solve.best_s;
    require(!line.fail(), Failure::bug, "a solve has 5 columns");
    all.back().solves.push_back(solve);
  }
  return all;
}

}  // namespace brume::mist
