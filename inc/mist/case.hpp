/// @file Conversion of model, plan, cluster and profile to the input of Mist's counting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "hardware/cluster.hpp"
#include "hardware/profile.hpp"
#include "mist/counting.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "price/price.hpp"

namespace brume::mist {

/// Options of Mist's counting in addition to model, plan and machine: deck table `analysis`.
struct Options {
  bool plain_attention = false;     ///< attention keeps its matrix of scores
  bool ends_data_parallel = false;  ///< embedding and head over all devices of the last stage
};

/// Biases are not counted. @throws Error(input) for heads that share keys or have another width
Model model_of(const model::Config& model, bool plain_attention);

/// Links that the profile lacks get 4.5 GiB/s, as Mist's templates do; without 28 slowdowns they
/// follow from the pairwise coefficients.
/// @throws Error(input) when the profile has no `transfers` of a kind
Hardware hardware_of(const hardware::Profile& profile, const hardware::Cluster& cluster);

/// One operator of a layer as Mist has it: what is looked up in a profile, and the bytes that its
/// collectives over tp reduce.
struct OperatorShape {
  std::string kind;
  std::vector<std::int64_t> dims;
  int count = 1;
  int group = 0;  ///< 0: runs outside tp's group
  double reduce_forward_bytes = 0.0;
  double reduce_backward_bytes = 0.0;
};

/// Operators that do not compute, of kinds that only Mist measures, cost nothing without a row.
///
///   add, dropout, dropout_inline, identity, view, cast {N, C} · mean {elements} ·
///   batched_matmul {B, M, N, K} · softmax {B, T, T} · rms_norm, swiglu {N, C}; others as in
///   model::Operator
enum class Layer { block, embedding, head };
std::vector<OperatorShape> operators_of(const Model& model, Layer layer, int microbatch, int tp);

/// Measured, interpolated or roofline times; what costs nothing stays out.
std::vector<price::OperatorPrice> operator_prices(const Model& model,
                                                  const hardware::Profile& profile, Layer layer,
                                                  int microbatch, int tp);

/// The times of all operators, summed by Mist's rules.
LayerTime layer_time(const Model& model, const Hardware& hardware, const hardware::Profile& profile,
                     Layer layer, int microbatch, int tp);

/// Embedding and head are spread as the last stage with optimizer state sharded, or over its
/// devices by data alone.
Strategy ends_of(const plan::Plan& plan, bool data_parallel);

/// @throws Error(input) for plans that Mist cannot count
Case case_of(const plan::Plan& plan, const model::Config& model, const hardware::Profile& profile,
             const hardware::Cluster& cluster, const Options& options);

/// The plan's prediction by Mist's counting, which knows no host memory.
analyzer::Prediction described(const Case& mist);

/// Times and memory of each stage, and where its operator times come from, for people.
std::string explain(const plan::Plan& plan, const Case& mist, const hardware::Profile& profile);

}  // namespace brume::mist
