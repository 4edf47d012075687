/// @file Arguments of Megatron-LM, and the message about a feature that it lacks.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "interop/megatron.hpp"

namespace brume::interop {

using Arguments = std::vector<MegatronArgument>;

/// @throws Error(input) unless Megatron-LM has `what`
void require_like(bool holds, const std::string& what);

/// A value as the shortest text that reads back the same.
template <typename T>
std::string as_argument(T value) {
  return fmt::format("{}", value);
}

void add_model(Arguments& arguments, const model::Config& model);
/// Tensor-parallel ranks cut each expert or have whole ones.
void add_experts(Arguments& arguments, const model::Config& model, const plan::Stage& stage);

}  // namespace brume::interop
