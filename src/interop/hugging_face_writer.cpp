/// @file Writing a model's weights as safetensors files.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "hugging_face_config.hpp"
#include "hugging_face_layout.hpp"
#include "interop/hugging_face.hpp"
#include "peft.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using engine::Slab;
using nlohmann::json;

/// Rows come one after the other, and a piece stays in caches and in the heap's hands; of columns
/// each piece reads a little of every row.
constexpr std::int64_t rows_piece_elements = std::int64_t{2} << 20;
constexpr std::int64_t columns_piece_elements = std::int64_t{32} << 20;

std::int64_t tensor_bytes(const NewTensor& tensor) {
  return tensor.elements() * dtype_bytes(tensor.dtype);
}

}  // namespace

struct HuggingFaceWriter::Impl {
  /// Rows of a tensor that are rows of a parameter.
  struct Section {
    std::int64_t first, count;
    const Placed* placed;
    std::int64_t parameter_first;
  };

  void divide(std::int64_t max_file_bytes);
  void find_sections();
  void set_dtypes(const std::map<std::string, Dtype>& own);
  std::string file_name(std::size_t number) const;
  std::string index_text() const;
  MergeSums write(TensorWriter& file, const NewTensor& tensor, const FillSlabs& fill) const;
  MergeSums write_rows(TensorWriter& file, const std::vector<Section>& sections, std::int64_t rows,
                       const FillSlabs& fill, const std::optional<AdapterTerm>& term) const;
  MergeSums write_transposed(TensorWriter& file, const Placed& placed, const FillSlabs& fill,
                             const std::optional<AdapterTerm>& term) const;
  void write_experts(TensorWriter& file, const Placed& placed, const FillSlabs& fill) const;

  fs::path directory;
  model::Config config;
  Dtype dtype;
  HuggingFaceLayout layout, adapter;
  std::map<std::string, Factors> factors;
  std::vector<std::vector<NewTensor>> files;
  std::map<std::string, std::vector<Section>> sections;  ///< by tensor, in its order
};

/// Fills one file after the other; a tensor that is larger than a file may be has one of its own.
void HuggingFaceWriter::Impl::divide(std::int64_t max_file_bytes) {
  std::int64_t room = 0;
  for (const NewTensor& tensor : layout.tensors) {
    const std::int64_t bytes = tensor_bytes(tensor);
    if (files.empty() || bytes > room) {
      files.emplace_back();
      room = max_file_bytes;
    }
    files.back().push_back(tensor);
    room -= bytes;
  }
}

void HuggingFaceWriter::Impl::find_sections() {
  for (const Placed& placed : layout.parameters) {
    std::int64_t row = 0;
    for (const RowRun& run : placed.runs) {
      sections[run.tensor].push_back({run.first, run.count, &placed, row});
      row += run.count;
    }
  }
  for (auto& [tensor, all] : sections) std::ranges::sort(all, {}, &Section::first);
}

/// A tensor of several parameters with different formats gets the one that holds all of them.
void HuggingFaceWriter::Impl::set_dtypes(const std::map<std::string, Dtype>& own) {
  for (NewTensor& tensor : layout.tensors) {
    std::set<Dtype> found;
    for (const Section& section : sections.at(tensor.name)) {
      const model::Parameter& parameter = section.placed->parameter;
      const auto at = own.find(parameter.name);
      found.insert(parameter.in_fp32 ? Dtype::f32 : at == own.end() ? dtype : at->second);
    }
    tensor.dtype = found.size() == 1 ? *found.begin() : Dtype::f32;
  }
}

std::string HuggingFaceWriter::Impl::file_name(std::size_t number) const {
  if (files.size() == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", number + 1, files.size());
}

std::string HuggingFaceWriter::Impl::index_text() const {
  std::int64_t bytes = 0;
  json map = json::object();
  for (std::size_t number = 0; number < files.size(); ++number)
    for (const NewTensor& tensor : files[number]) {
      map[tensor.name] = file_name(number);
      bytes += tensor_bytes(tensor);
    }
  return json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(2) + "\n";
}

MergeSums HuggingFaceWriter::Impl::write(TensorWriter& file, const NewTensor& tensor,
                                         const FillSlabs& fill) const {
  const std::vector<Section>& parts = sections.at(tensor.name);
  std::optional<AdapterTerm> term;
  const model::Parameter& first = parts.front().placed->parameter;
  const std::string& of = first.id.is_of_experts() ? first.name : tensor.name;
  if (const auto found = factors.find(of); found != factors.end())
    term.emplace(found->second, config.adapter, tensor.dtype, fill, parts.front().parameter_first);
  if (parts.front().placed->experts) {
    write_experts(file, *parts.front().placed, fill);
    return {};
  }
  if (parts.front().placed->transposed)
    return write_transposed(file, *parts.front().placed, fill, term);
  return write_rows(file, parts, tensor.shape.front(), fill, term);
}

MergeSums HuggingFaceWriter::Impl::write_rows(TensorWriter& file, const std::vector<Section>& parts,
                                              std::int64_t rows, const FillSlabs& fill,
                                              const std::optional<AdapterTerm>& term) const {
  MergeSums sums;
  const std::int64_t columns = parts.front().placed->columns();
  const std::int64_t step = std::max<std::int64_t>(1, rows_piece_elements / columns);
  std::vector<float> values;
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t end = std::min(rows, first + step);
    values.resize(std::size_t((end - first) * columns));
    std::vector<Slab> slabs;
    for (const Section& part : parts) {
      const std::int64_t from = std::max(first, part.first);
      const std::int64_t to = std::min(end, part.first + part.count);
      if (from >= to) continue;
      Slab slab = whole_slab(part.placed->parameter, values.data() + (from - first) * columns);
      slab.first = (part.parameter_first + from - part.first) * columns;
      slab.elements = (to - from) * columns;
      slabs.push_back(std::move(slab));
    }
    fill(slabs);
    if (term) sums += term->add(first, 0, columns, values);
    file.write(values);
  }
  return sums;
}

/// A few columns of the parameter at a time, which are rows of the tensor.
MergeSums HuggingFaceWriter::Impl::write_transposed(TensorWriter& file, const Placed& placed,
                                                    const FillSlabs& fill,
                                                    const std::optional<AdapterTerm>& term) const {
  MergeSums sums;
  const std::int64_t columns = placed.columns(), rows = placed.rows();
  const std::int64_t step = std::max<std::int64_t>(1, columns_piece_elements / rows);
  std::vector<float> values, turned;
  for (std::int64_t first = 0; first < columns; first += step) {
    const std::int64_t count = std::min(step, columns - first);
    values.resize(std::size_t(rows * count));
    turned.resize(values.size());
    std::vector<Slab> slabs{whole_slab(placed.parameter, values.data())};
    slabs[0].offset.back() = first;
    slabs[0].shape.back() = count;
    slabs[0].elements = rows * count;
    fill(slabs);
    if (term) sums += term->add(0, first, count, values);
    constexpr std::int64_t tile = 16;  // a cache line of values
    for (std::int64_t band = 0; band < count; band += tile)
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = band; i < std::min(band + tile, count); ++i)
          turned[i * rows + row] = values[row * count + i];
    file.write(turned);
  }
  return sums;
}

/// A few columns of an expert at a time, which are rows of the tensor.
void HuggingFaceWriter::Impl::write_experts(TensorWriter& file, const Placed& placed,
                                            const FillSlabs& fill) const {
  const ExpertPlaces& at = *placed.experts;
  const std::int64_t rows = at.parts * at.rows;
  const std::int64_t step = std::max<std::int64_t>(1, columns_piece_elements / rows);
  std::vector<float> values, turned;
  for (std::int64_t expert = 0; expert < config.num_experts; ++expert)
    for (std::int64_t first = 0; first < at.columns; first += step) {
      const std::int64_t count = std::min(step, at.columns - first);
      values.resize(std::size_t(rows * count));
      turned.resize(values.size());
      std::vector<Slab> slabs{whole_slab(placed.parameter, values.data())};
      slabs[0].offset.front() = expert, slabs[0].shape.front() = 1;
      if (placed.matrix) slabs[0].offset.back() = first, slabs[0].shape.back() = count;
      slabs[0].elements = rows * count;
      fill(slabs);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t c = 0; c < count; ++c)
          turned[std::size_t(c * at.column + row % at.rows * at.row + row / at.rows * at.part)] =
              values[std::size_t(row * count + c)];
      file.write(turned);
    }
}

HuggingFaceWriter::HuggingFaceWriter(fs::path directory, const model::Config& config, Dtype dtype,
                                     std::int64_t max_file_bytes,
                                     const std::map<std::string, Dtype>& own)
    : impl_(std::make_unique<Impl>()) {
  hugging_face_config(config, dtype);  // refuses what has no counterpart
  impl_->directory = std::move(directory);
  impl_->config = config;
  impl_->dtype = dtype;
  impl_->layout = hugging_face_layout(config);
  impl_->adapter = adapter_layout(config);
  impl_->factors = factors(impl_->adapter);
  impl_->find_sections();
  impl_->set_dtypes(own);
  impl_->divide(max_file_bytes);
}

HuggingFaceWriter::~HuggingFaceWriter() = default;

int HuggingFaceWriter::num_files() const { return int(impl_->files.size()); }

MergeSums HuggingFaceWriter::write_file(int number, const FillSlabs& fill) const {
  MergeSums sums;
  const std::vector<NewTensor>& tensors = impl_->files[number];
  TensorWriter file(impl_->directory / impl_->file_name(std::size_t(number)), tensors);
  // A header has its names in order, but says itself where values lie.
  for (const NewTensor& tensor : tensors) sums += impl_->write(file, tensor, fill);
  file.commit();
  return sums;
}

void HuggingFaceWriter::finish(const fs::path& original) const {
  if (num_files() > 1)
    brume::write_file(impl_->directory / "model.safetensors.index.json", impl_->index_text());
  const json config = hugging_face_config(impl_->config, impl_->dtype, original);
  brume::write_file(impl_->directory / "config.json", config.dump(2) + "\n");
}

}  // namespace brume::interop
