/// @file Optimizers as rows: the state of an element, the unit of an update, and its price.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "model/precision.hpp"

namespace brume::model {

struct Config;

/// One number that is kept for each trained element.
struct StateField {
  const char* name;  ///< kind of its slabs, in checkpoints too
  Precision storage = Precision::fp32;

  constexpr int bytes() const { return weight_bytes(storage); }
};

/// Smallest part of a parameter that an update can work on alone.
enum class UpdateUnit {
  element,
  matrix  ///< whole parameters, which no plan may cut
};

/// One optimizer. `kernels::update_kernels` has its kernel under the same name.
struct OptimizerRow {
  const char* name;  ///< value of training.optimizer.name; kind of its rows in profiles
  std::span<const StateField> fields;  ///< one or more
  UpdateUnit unit = UpdateUnit::element;
  double flops = 0.0;  ///< FLOPs per element

  /// Bytes per element that an update reads and writes: the gradient once, the weight and the state
  /// twice, all of the weight in fp32.
  constexpr double moved_bytes() const {
    double bytes = grad_bytes + 2.0 * weight_bytes(Precision::fp32);
    for (const StateField& field : fields) bytes += 2.0 * field.bytes();
    return bytes;
  }
};

extern const OptimizerRow adamw, lion, sgd;

/// @throws Error(input) if no row has this name
const OptimizerRow& optimizer(std::string_view name);

/// Fields of an element's state, in the order of a buffer, which holds them one after another:
/// those of the model's optimizer, and below fp32 the master weight as a "weight".
std::vector<StateField> state_fields(const Config& config);
/// Bytes of all fields of an element.
int optimizer_bytes(const Config& config);

}  // namespace brume::model
