/// @file Times of operators, of making factors of quantized blocks, and of updates, by a profile.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hardware/profile.hpp"
#include "model/model.hpp"

namespace brume::price {

using Values = std::map<std::string, double, std::less<>>;

/// The dims of an operator in numbers.
std::vector<std::int64_t> dims_of(const model::Operator& op, const Values& values);

hardware::Time operator_time(const model::Config& model, const hardware::Profile& profile,
                             const model::Operator& op, bool backward, const Values& values);

/// The time in which a product's factor is made of blocks: by its own rows, or as a copy. Products
/// of few rows on hosts do without, which this does not count: generation is faster there.
hardware::Time dequantize_time(const model::Config& model, const hardware::Profile& profile,
                               const model::Operator& op, const Values& values);

/// Kind of an update by this row in profiles; none has rows of steps of whole matrices.
std::string kind_of(const model::OptimizerRow& row, Moments moments);

/// The time of an update by the model's optimizer. A profile that knows AdamW alone gives its time
/// in proportion to the bytes that are moved.
hardware::Time update_time(const model::Config& model, const hardware::Profile& profile,
                           std::int64_t elements, model::UpdateUnit unit);

}  // namespace brume::price
