/// @file Optimizers as rows: the state of an element, the unit of an update, and its price.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/moments.hpp"
#include "base/quantization.hpp"
#include "model/precision.hpp"

namespace brume::model {

struct Config;
struct Layout;

/// Elements of a block by their state: those behind Layout::full_state_elements have less.
enum class StateOf { all, full, lean };

/// One number that is kept for each trained element.
struct StateField {
  const char* name;                     ///< kind of its slabs, in checkpoints too
  Precision storage = Precision::fp32;  ///< format of values; blocks have it in checkpoints only
  bool positive = false;                ///< never below 0
  Quantization quantization = Quantization::none;  ///< format in blocks
  StateOf of = StateOf::all;                       ///< elements that have it

  /// Bytes of so many elements: whole blocks of quantized ones.
  constexpr std::int64_t bytes(std::int64_t elements) const {
    return quantization == Quantization::none
               ? elements * weight_bytes(storage)
               : elements / quantized_block * block_bytes(quantization);
  }
  constexpr double element_bytes() const {
    return double(bytes(quantized_block)) / quantized_block;
  }
  /// The field in this format, unless it names another.
  constexpr StateField in(Moments moments) const {
    StateField field = *this;
    if (storage != Precision::fp32) return field;
    if (moments == Moments::bf16) field.storage = Precision::bf16;
    if (moments == Moments::fp8)
      field.quantization = positive ? Quantization::ufloat8 : Quantization::float8;
    return field;
  }
};

/// Smallest part of a parameter that an update can work on alone.
enum class UpdateUnit {
  element,
  matrix  ///< each matrix of the model, also where a plan cuts it
};

/// One optimizer. `kernels::update_kernels` has the kernel of elements under the same name.
struct OptimizerRow {
  const char* name;  ///< value of training.optimizer.name; kind of its rows in profiles
  std::span<const StateField> fields;  ///< one or more
  double flops = 0.0;                  ///< FLOPs per element
  /// Updates what is no matrix of a layer, where this one updates whole matrices; else null. Its
  /// first fields are this one's.
  const OptimizerRow* of_elements = nullptr;

  UpdateUnit unit() const { return of_elements ? UpdateUnit::matrix : UpdateUnit::element; }
  const OptimizerRow& elementwise() const { return of_elements ? *of_elements : *this; }

  /// Bytes per element that an update reads and writes: the gradient once, the weight and the state
  /// twice, all of the weight in fp32; of whole matrices the gradient, in whose place the direction
  /// of the step comes, and the state.
  ///
  /// @param moments  format of fields that do not name another
  constexpr double moved_bytes(Moments moments = Moments::fp32) const {
    double bytes =
        of_elements ? 2.0 * grad_bytes : grad_bytes + 2.0 * weight_bytes(Precision::fp32);
    for (const StateField& field : fields) bytes += 2.0 * field.in(moments).element_bytes();
    return bytes;
  }
};

inline constexpr int orthogonalize_iterations = 5;  ///< steps of Muon's iteration

extern const OptimizerRow adamw, lion, sgd, muon;

/// Kind of rows of profiles for updates of elements by the model's optimizer.
std::string update_kind(const OptimizerRow& row, Moments moments);

/// @throws Error(input) if no row has this name
const OptimizerRow& optimizer(std::string_view name);
/// @throws Error(input) where no format is called so
Moments moments(std::string_view name);

/// Fields of elements' state, in the order of a buffer, which holds them one after another: those
/// of the model's optimizer, and below fp32 the master weight as a "weight". An element has those
/// of its kind, in the order of the optimizer's row.
std::vector<StateField> state_fields(const Config& config);
/// Bytes of an element with full state, and of one behind Layout::full_state_elements.
double optimizer_bytes(const Config& config);
double lean_optimizer_bytes(const Config& config);

/// A field of a range of a block's elements within the range's buffer.
struct FieldPart {
  StateField field;
  std::int64_t first, elements;  ///< elements of the block's layout
  std::int64_t first_byte;
};
/// The fields of `elements` elements from `first` on.
std::vector<FieldPart> state_parts(const Config& config, const Layout& layout, std::int64_t first,
                                   std::int64_t elements);
std::int64_t state_bytes(const Config& config, const Layout& layout, std::int64_t first,
                         std::int64_t elements);

}  // namespace brume::model
