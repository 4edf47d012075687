/// @file Reading a model's weights from safetensors files.
#include "pretrained_weights.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using engine::Slab;

/// The rows of a slab, as those of its parameter.
class SlabRows {
 public:
  SlabRows(const Slab& slab, bool matrix) : slab_(slab), leading_(slab.shape.size()) {
    if (!matrix) return;
    --leading_;
    columns_ = slab.shape.back();
    first_column_ = slab.offset.back();
  }

  std::int64_t columns() const { return columns_; }
  std::int64_t first_column() const { return first_column_; }  ///< of the whole parameter

  /// Row of the whole parameter that is row `row` of the slab's slice.
  std::int64_t whole_row(std::int64_t row) const {
    std::int64_t whole = 0, stride = 1;
    for (std::size_t d = leading_; d-- > 0;) {
      whole += (slab_.offset[d] + row % slab_.shape[d]) * stride;
      row /= slab_.shape[d];
      stride *= slab_.global_shape[d];
    }
    return whole;
  }
  /// Rows from `row` on that follow each other in the whole parameter.
  std::int64_t consecutive(std::int64_t row) const {
    const std::int64_t extent = slab_.shape[leading_ - 1];
    return extent - row % extent;
  }

 private:
  const Slab& slab_;
  std::size_t leading_;
  std::int64_t columns_ = 1, first_column_ = 0;
};

/// The slab as a part of the matrix that a file has, whose rows a rank has whole.
Slab as_placed(Slab slab, const Placed& placed) {
  if (placed.own_columns == 0) return slab;
  for (std::vector<std::int64_t>* const shape : {&slab.shape, &slab.global_shape})
    *shape = {shape->front(), placed.own_columns};
  slab.offset = {slab.offset.front(), 0};
  return slab;
}

}  // namespace

void PretrainedWeights::Impl::read(const std::string& tensor, std::int64_t first,
                                   std::span<float> values) const {
  const std::string found = name_in_files(tensor);
  if (const auto in_codes = codes.find(found); in_codes != codes.end())
    return in_codes->second->read(first, values);
  file_of(found).read(found, first, values);
}

/// Rows [row, row + rows) and columns [column, column + columns) of a parameter.
void PretrainedWeights::Impl::read_rows(const Placed& placed, std::int64_t row, std::int64_t rows,
                                        std::int64_t column, std::int64_t columns,
                                        std::span<float> values) const {
  if (placed.experts) return read_experts(placed, row, rows, column, columns, values);
  const std::int64_t width = placed.columns();
  std::int64_t before = 0;  // rows of earlier runs
  for (const RowRun& run : placed.runs) {
    const std::int64_t begin = std::max(row, before),
                       end = std::min(row + rows, before + run.count);
    const RowRun part{run.tensor, run.first + begin - before, end - begin};
    before += run.count;
    if (part.count <= 0) continue;
    const auto room =
        values.subspan(std::size_t((begin - row) * columns), std::size_t(part.count * columns));
    if (placed.transposed)
      read_transposed(part, placed.rows(), column, columns, room);
    else if (columns == width)
      read(part.tensor, part.first * width, room);
    else
      for (std::int64_t i = 0; i < part.count; ++i)
        read(part.tensor, (part.first + i) * width + column,
             room.subspan(std::size_t(i * columns), std::size_t(columns)));
  }
}

/// The same of a tensor of interleaved experts: runs of its elements from the first to the last one
/// of a row, or of the rows of a part, whichever lie closer.
void PretrainedWeights::Impl::read_experts(const Placed& placed, std::int64_t row,
                                           std::int64_t rows, std::int64_t column,
                                           std::int64_t columns, std::span<float> values) const {
  const ExpertPlaces& at = *placed.experts;
  const std::string& tensor = placed.runs.front().tensor;
  std::vector<float> line;
  for (std::int64_t done = 0; done < rows;) {
    const std::int64_t part = (row + done) / at.rows, first = (row + done) % at.rows;
    const std::int64_t count = std::min(rows - done, at.rows - first);
    const std::int64_t begin = part / at.parts * at.parts * at.rows * at.columns +
                               part % at.parts * at.part + first * at.row + column * at.column;
    // Outer steps of lines, inner ones of their elements.
    const bool by_rows = at.column == 1;
    const std::int64_t lines = by_rows ? count : columns, elements = by_rows ? columns : count;
    const std::int64_t step = by_rows ? at.row : at.column, inner = by_rows ? 1 : at.row;
    line.resize(std::size_t((elements - 1) * inner + 1));
    for (std::int64_t i = 0; i < lines; ++i) {
      read(tensor, begin + i * step, line);
      for (std::int64_t j = 0; j < elements; ++j)
        values[std::size_t(by_rows ? (done + i) * columns + j : (done + j) * columns + i)] =
            line[std::size_t(j * inner)];
    }
    done += count;
  }
}

/// The same of a transposed tensor whose rows are `stride` long: a few of its rows at a time.
void PretrainedWeights::Impl::read_transposed(const RowRun& run, std::int64_t stride,
                                              std::int64_t column, std::int64_t columns,
                                              std::span<float> values) const {
  constexpr std::int64_t band = 16;  // a cache line of values
  std::vector<float> lines(std::size_t(band * run.count));
  for (std::int64_t first = 0; first < columns; first += band) {
    const std::int64_t count = std::min(band, columns - first);
    for (std::int64_t i = 0; i < count; ++i)
      read(run.tensor, (column + first + i) * stride + run.first,
           std::span(lines).subspan(std::size_t(i * run.count), std::size_t(run.count)));
    for (std::int64_t row = 0; row < run.count; ++row)
      for (std::int64_t i = 0; i < count; ++i)
        values[row * columns + first + i] = lines[i * run.count + row];
  }
}

PretrainedWeights::PretrainedWeights(const fs::path& directory, const model::Config& config,
                                     FileKind kind)
    : impl_(std::make_unique<Impl>(directory, config, kind)) {}

PretrainedWeights::~PretrainedWeights() = default;

void PretrainedWeights::get(const Slab& slab, std::int64_t first, std::span<float> values) const {
  const Placed& placed = *impl_->parameters.at(slab.name);
  const Slab seen = as_placed(slab, placed);
  const SlabRows rows(seen, placed.matrix);
  const std::int64_t columns = rows.columns(), end = slab.first + first + std::ssize(values);
  for (std::int64_t at = slab.first + first; at < end;) {
    // Whole rows, or a part of one where the range begins or ends.
    const std::int64_t row = at / columns, column = at % columns;
    const bool whole = column == 0 && end - at >= columns;
    const std::int64_t num_rows = whole ? std::min((end - at) / columns, rows.consecutive(row)) : 1;
    const std::int64_t width = whole ? columns : std::min(columns - column, end - at);
    impl_->read_rows(
        placed, rows.whole_row(row), num_rows, rows.first_column() + column, width,
        values.subspan(std::size_t(at - slab.first - first), std::size_t(num_rows * width)));
    at += num_rows * width;
  }
}

void PretrainedWeights::fill(const std::vector<Slab>& slabs, Progress* progress) const {
  std::vector<float> buffer;
  for (const Slab& slab : slabs)
    for (std::int64_t first = 0; first < slab.elements && has(slab.name); first += piece_elements) {
      buffer.resize(std::size_t(std::min(piece_elements, slab.elements - first)));
      get(slab, first, buffer);
      engine::set_values(slab, first, buffer);
      if (progress) progress->add(double(buffer.size()));
    }
}

bool PretrainedWeights::has(const std::string& parameter) const {
  return impl_->parameters.contains(parameter);
}

Dtype PretrainedWeights::dtype() const {
  std::map<Dtype, std::int64_t> elements;
  for (const NewTensor& tensor : impl_->layout.tensors) {
    const std::string found = impl_->name_in_files(tensor.name);
    elements[impl_->dtype_of(found)] += tensor.elements();
  }
  return std::ranges::max_element(elements, {}, &std::pair<const Dtype, std::int64_t>::second)
      ->first;
}

Dtype PretrainedWeights::dtype(const std::string& parameter) const {
  std::set<Dtype> found;
  const auto placed = impl_->parameters.find(parameter);
  if (placed == impl_->parameters.end()) return Dtype::f32;
  for (const RowRun& run : placed->second->runs) {
    const std::string tensor = impl_->name_in_files(run.tensor);
    found.insert(impl_->dtype_of(tensor));
  }
  return found.size() == 1 ? *found.begin() : Dtype::f32;
}

std::vector<Slab> whole_weights(const model::Config& config) {
  std::vector<Slab> slabs;
  for (const model::Block& block : model::blocks(config))
    for (const model::Parameter& parameter : block.parameters) {
      slabs.push_back(whole_slab(parameter));
      slabs.back().owned = true;
    }
  return slabs;
}

}  // namespace brume::interop
