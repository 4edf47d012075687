/// @file The kernel calls of one operator, with operands, ready to be timed.
#pragma once

#include <cstdint>
#include <vector>

#include "bench.hpp"
#include "model/model.hpp"

namespace brume::profiler {

/// An operator at one shape.
struct Item {
  model::OperatorKind kind;
  std::vector<std::int64_t> dims;  ///< as in model::Operator
  std::int64_t tokens;             ///< b T, rows of a pointwise operator
  double flops = 0.0;              ///< of both passes
  double bytes = 0.0;              ///< that both passes read and write
  bool forward_only = false;       ///< of generation: there is no backward
  int key_heads = 0;               ///< of attention to kept keys
};

/// The calls that are timed; they point into the operands. Without a backward the forward does it.
struct Passes {
  Work forward;
  Work backward;
};

/// The calls of an operator, in the model's precision.
/// @throws Error(resource) when there is no memory for the operands
Passes make_passes(const Item& item, const model::Config& model, Operands& operands);

/// What make_passes takes for one item [bytes]; nothing is taken here.
std::int64_t operand_bytes(const Item& item, const model::Config& model);

/// The optimizer's update by the node's processor; operands in host memory.
Work make_host_update(std::int64_t elements, const model::Config& model, Operands& operands);

/// y += x, element by element.
Work make_sum(std::int64_t elements, Operands& operands);

}  // namespace brume::profiler
