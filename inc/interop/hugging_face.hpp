/// @file Models in Hugging Face's format: config.json and safetensors, in and out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/progress.hpp"
#include "engine/engine.hpp"
#include "interop/safetensors.hpp"
#include "model/model.hpp"

namespace brume::interop {

/// Contents of files.
enum class FileKind { model, adapter };

/// Whether a directory is a model in this format, as far as names go.
bool is_hugging_face(const std::filesystem::path& directory);

/// The weights of a directory: model.safetensors, or the files that model.safetensors.index.json
/// names. Only headers are kept in memory; each read takes what it is asked for.
class PretrainedWeights {
 public:
  /// Opens the files and checks that they hold this model, each tensor once and with its shape;
  /// buffers that older versions of the library saved do not count. Of learned positions there may
  /// be more than the model has.
  ///
  /// @param kind  adapter: the files are PEFT's and hold the model's adapter, and the modules that
  ///              are trained whole besides it
  /// @throws Error(input) naming what is missing, too much, or of another shape
  PretrainedWeights(const std::filesystem::path& directory, const model::Config& config,
                    FileKind kind = FileKind::model);
  ~PretrainedWeights();

  /// Values of a parameter's slab from its element `first` on. @throws Error(input)
  void get(const engine::Slab& slab, std::int64_t first, std::span<float> values) const;

  /// Fills those slabs of weights whose parameters the files hold, piece by piece.
  /// @throws Error(input)
  void fill(const std::vector<engine::Slab>& slabs, Progress* progress = nullptr) const;

  /// Requires that a head in the files of a model whose head is tied is the token table, which both
  /// are read for. @throws Error(input)
  void require_tied() const;

  /// Whether the files hold a parameter of the model.
  bool has(const std::string& parameter) const;

  Dtype dtype() const;  ///< storage of most values
  /// The one of all values of a parameter of ours; f32 where they differ, or are not in the files.
  Dtype dtype(const std::string& parameter) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// All of a model's parameters, each whole, as slabs of weights without memory.
std::vector<engine::Slab> whole_weights(const model::Config& config);

/// Fills slabs of weights with their values.
using FillSlabs = std::function<void(std::vector<engine::Slab>& slabs)>;

/// The change of weights when an adapter is merged, over all elements of these weights.
struct MergeSums {
  double weights = 0.0;  ///< sum of squared weights
  double terms = 0.0;    ///< sum of squared terms of the adapter
  double kept = 0.0;     ///< sum of products of a term and the change of its rounded weight

  MergeSums& operator+=(const MergeSums& other);
};

/// The keys of the adapter that PEFT's files in a directory hold. @param config  the model alone
/// @throws Error(input) where the files hold no adapter of this model
deck::AdapterKeys adapter_keys(const std::filesystem::path& directory, const model::Config& config);

/// Writes the adapter of a model, and the modules that are trained whole besides it, as PEFT does:
/// adapter_config.json and adapter_model.safetensors.
/// @param base  directory of the model that it belongs to; empty: unknown
/// @throws Error(input)  for an adapter that PEFT has no counterpart of
/// @throws Error(storage), and what `fill` throws
void write_adapter(const std::filesystem::path& directory, const model::Config& config,
                   const deck::AdapterKeys& keys, const std::string& base, Dtype dtype,
                   const FillSlabs& fill);

/// Writes a model to a directory, its adapter merged into its weights: config.json, and safetensors
/// in files of about `max_file_bytes`, with an index where they are several. A tensor is read and
/// written in pieces of 128 MiB. Ranks that share the work write different files.
class HuggingFaceWriter {
 public:
  /// @param own  number formats of the parameters that have another one than `dtype`
  /// @throws Error(input)  for a model that the library has no counterpart of
  HuggingFaceWriter(std::filesystem::path directory, const model::Config& config, Dtype dtype,
                    std::int64_t max_file_bytes, const std::map<std::string, Dtype>& own = {});
  ~HuggingFaceWriter();

  int num_files() const;
  /// @throws Error(storage), and what `fill` throws
  MergeSums write_file(int number, const FillSlabs& fill) const;

  /// Last of all, the index and config.json: that of `original`, if it is there and describes this
  /// model, with what has changed; else a new one. @throws Error(storage)
  void finish(const std::filesystem::path& original) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Copies the tokenizer's files, and config.json, from one directory to another, made where it is
/// missing; what is not there is left out.
/// @return  names copied
/// @throws Error(input), Error(storage)
std::vector<std::string> copy_companions(const std::filesystem::path& from,
                                         const std::filesystem::path& to);

/// Tokens that end an answer, as eos_token_id of generation_config.json or else config.json says;
/// none where a folder has neither. @throws Error(input)
std::vector<std::int32_t> end_tokens(const std::filesystem::path& folder);

/// The token that a tokenizer puts before each text, as the post-processor of its tokenizer.json,
/// or tokenizer_config.json in the folder of another file, says; empty: none. @throws Error(input)
std::string begin_token(const std::filesystem::path& tokenizer);

}  // namespace brume::interop
