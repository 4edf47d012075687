/// @file Which tensors of Hugging Face's format hold which values of a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.hpp"
#include "interop/safetensors.hpp"
#include "model/model.hpp"

namespace brume::interop {

/// Rows that lie side by side in a tensor.
struct RowRun {
  std::string tensor;
  std::int64_t first = 0, count = 0;  ///< rows of the tensor; columns, where it is transposed
};

/// The places of experts' elements in a tensor of all experts. The element in part p, row r and
/// column c of an expert's weight [P, R, C] is p part + r row + c column behind the expert's first
/// one.
struct ExpertPlaces {
  std::int64_t parts, rows, columns;  ///< P, R and C; C is 1 for a bias
  std::int64_t part, row, column;
};

/// Where a parameter lies. A table or weight is seen as a matrix whose columns are its last
/// dimension, a gain or bias as one column; its rows are those of the runs, one after the other.
struct Placed {
  model::Parameter parameter;
  bool matrix = false;
  bool transposed = false;  ///< each tensor is the transpose, [columns, rows]
  std::vector<RowRun> runs = {};
  std::int64_t own_columns = 0;              ///< if they are not the last dimension
  std::optional<ExpertPlaces> experts = {};  ///< then there is one run, of all elements

  std::int64_t columns() const {
    return own_columns > 0 ? own_columns : matrix ? parameter.shape.back() : 1;
  }
  std::int64_t rows() const { return parameter.elements() / columns(); }
};

/// A whole model.
struct HuggingFaceLayout {
  std::vector<Placed> parameters;  ///< in the model's order
  std::vector<NewTensor> tensors;  ///< in that of the parameters
  /// Begins the names of all tensors but the head's; files of a model without a head leave it out.
  std::string prefix;
  std::string head;  ///< tensor of a head that is not tied
};

/// Begins the names of all tensors in an adapter's file.
inline constexpr std::string_view peft_prefix = "base_model.model.";

/// Tensors of a layer's experts in a file. Stacked: one holds all experts' first products, as
/// [experts, gate rows then up rows, inputs], and one all second ones, as the Transformers library
/// has them in memory. Interleaved experts of families::ExpertForm have no other form, but
/// turned: in files of MXFP4 each expert is transposed.
enum class ExpertTensors { separate, stacked, turned };

/// gpt as GPT-2: linear layers are transposed. llama as Llama, with biases of q, k and v as Qwen2,
/// with norms of q and k as Qwen3, and gemma as Gemma 2 and 3: gate and up, q, k and v are tensors
/// of their own; rotary positions turn features i and i + D/2, as here. falcon, and neox as
/// GPT-NeoX: q, k and v are one tensor, for each key head its query heads, its key and its value.
/// Latent attention as DeepSeek: the first products of keys and values are one tensor with that of
/// turned keys; heads end with their turned features, the two of a pair side by side.
/// gpt_oss as GPT-OSS: as Llama, but for its interleaved experts.
///
/// @throws Error(input)  for a parameter that these formats have no place for
/// @source  the models' files in github.com/huggingface/transformers, src/transformers/models
HuggingFaceLayout hugging_face_layout(const model::Config& config,
                                      ExpertTensors experts = ExpertTensors::separate);

/// The form of files that have a tensor of this name, as far as it says so.
std::optional<ExpertTensors> form_of_experts(std::string_view tensor);

/// The factors of a model's adapter, as PEFT has them: "base_model.model.", the module's name, then
/// ".lora_A.weight" [rank, inputs] or ".lora_B.weight" [outputs, rank]. No factor is transposed;
/// one that belongs to fused queries, keys and values has the rows of their weight. Modules that
/// are trained whole have their tensors of the model, after "base_model.model."; the token table of
/// a tied head is there twice. Experts are wrapped, first products within second ones:
/// "mlp.experts" has the outer factors, "mlp.experts.base_layer" the inner ones. A has the rows of
/// one expert after the other, B [outputs, rank experts] the columns of all experts side by side,
/// for each rank.
///
/// @throws Error(input)  for falcon's queries if key heads are fewer: PEFT has one first factor for
/// both
/// @source  github.com/huggingface/peft, src/peft/tuners/lora/layer.py
HuggingFaceLayout adapter_layout(const model::Config& config);

/// A slab of a whole parameter's weights at `data`.
engine::Slab whole_slab(const model::Parameter& parameter, float* data = nullptr);

/// Whether files may have a tensor of this name that holds nothing of a model: masks and rotary
/// frequencies, which older versions of the library saved.
bool is_buffer(std::string_view tensor);

}  // namespace brume::interop
