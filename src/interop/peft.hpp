/// @file Adapters in the format of PEFT, and their merging into weights.
///
///   adapter_config.json          ranks, scales, targets and modules that are trained whole
///   adapter_model.safetensors    both factors of each target, these modules; see adapter_layout
///
/// @source  github.com/huggingface/peft, docs/source/developer_guides/checkpoint.md
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hugging_face_layout.hpp"
#include "interop/hugging_face.hpp"

namespace brume::interop {

inline constexpr const char* adapter_config_file = "adapter_config.json";
inline constexpr const char* adapter_tensor_file = "adapter_model.safetensors";

/// PEFT's name of experts' weights, which are no module; empty of others.
std::string_view parameter_of(model::Module module);

/// The values of a factor as its tensor has them.
std::vector<float> tensor_values(const Placed& placed, const FillSlabs& fill);

/// The file of an adapter's tensors in a directory.
/// @throws Error(input)  if adapter_config.json gives the model's targets another rank or scale
std::filesystem::path adapter_file(const std::filesystem::path& directory,
                                   const model::Config& config);

/// The factors of a linear layer's adapter.
struct Factors {
  const Placed *a = nullptr, *b = nullptr;
};
/// Factors by the tensor of their linear layer's weight; experts' by the parameter of all experts.
/// @param layout  outlives them
std::map<std::string, Factors> factors(const HuggingFaceLayout& layout);

/// The term that merging adds to a tensor of a linear layer, or of an expert: scale B A.
class AdapterTerm {
 public:
  /// @param dtype      that the sum is rounded to later
  /// @param first_row  of the weight of all experts, where the tensor begins
  AdapterTerm(const Factors& factors, const model::Adapter& adapter, Dtype dtype,
              const FillSlabs& fill, std::int64_t first_row = 0);

  /// Adds it to rows from `row` on, of which `values` holds `columns` columns from `column` on.
  MergeSums add(std::int64_t row, std::int64_t column, std::int64_t columns,
                std::span<float> values) const;

 private:
  std::int64_t rank_, width_, first_row_ = 0;
  float scale_;
  Dtype dtype_;
  std::vector<float> a_;  ///< [rank, width]
  std::vector<float> b_;  ///< [rows, rank]
};

}  // namespace brume::interop
