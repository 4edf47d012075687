/// @file A model's weights in safetensors files: which files and tensors there are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coded_tensor.hpp"
#include "hugging_face_layout.hpp"
#include "interop/hugging_face.hpp"

namespace brume::interop {

/// Values that are read at once.
inline constexpr std::int64_t piece_elements = std::int64_t{1} << 21;

struct PretrainedWeights::Impl {
  Impl(const std::filesystem::path& directory, const model::Config& config, FileKind kind);

  void open(const std::filesystem::path& directory);
  void open_files_of_index(const std::filesystem::path& directory);
  void add_file(const std::filesystem::path& path);
  void find_names();
  void check_tensors() const;
  void check_shapes() const;
  std::string name_in_files(const std::string& tensor) const;
  const TensorFile& file_of(const std::string& tensor) const { return *places.at(tensor); }
  Dtype dtype_of(const std::string& tensor) const;
  void find_codes(BlockShape declared);
  void find_extra_layers(const model::Config& config);
  void read(const std::string& tensor, std::int64_t first, std::span<float> values) const;
  void read_rows(const Placed& placed, std::int64_t row, std::int64_t rows, std::int64_t column,
                 std::int64_t columns, std::span<float> values) const;
  void read_experts(const Placed& placed, std::int64_t row, std::int64_t rows, std::int64_t column,
                    std::int64_t columns, std::span<float> values) const;
  void read_transposed(const RowRun& run, std::int64_t stride, std::int64_t column,
                       std::int64_t columns, std::span<float> values) const;

  std::string name;  ///< of the directory, or the adapter's file
  bool tied;
  HuggingFaceLayout layout;
  std::vector<std::unique_ptr<TensorFile>> files;
  std::map<std::string, const TensorFile*> places;  ///< of all tensors, by their names there
  std::map<std::string, const Placed*> parameters;
  std::map<std::string, std::unique_ptr<CodedTensor>> codes;  ///< by their names there
  std::string prefix, head;                                   ///< in the files, of the layout's
  std::set<std::string> extra_layers;  ///< what names of tensors of these begin with
  bool has_spare_head = false;  ///< files may have the head of a tied table, which is not read
  const char *noun = "model", *another = "config.json and [model] describe another model";
  const char* without_head = "with tied_head = true the head is the token table";
  const char* untied = "though config.json says that it is: set tied_head = false under [model]";
};

}  // namespace brume::interop
