/// @file Reading a model's weights from safetensors files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "coded_tensor.hpp"
#include "deck/json.hpp"
#include "eight_bits.hpp"
#include "hugging_face_config.hpp"
#include "hugging_face_layout.hpp"
#include "interop/hugging_face.hpp"
#include "peft.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using engine::Slab;
using nlohmann::json;

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr const char* pickled_file = "pytorch_model.bin";
constexpr const char* pickled_index = "pytorch_model.bin.index.json";
constexpr std::size_t largest_index_bytes = std::size_t{64} << 20;
constexpr std::int64_t piece_elements = std::int64_t{1} << 21;

/// The first few of a list of names, for a message.
std::string few(const std::vector<std::string>& names) {
  constexpr std::size_t most = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i)
    text += (i ? ", " : "") + shown(names[i]);
  return names.size() > most ? text + fmt::format(" and {} more", names.size() - most) : text;
}

std::string plural(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// The tensors that an index promises, by file. @throws Error(input)
std::map<std::string, std::vector<std::string>> read_index(const fs::path& path) {
  const json index = deck::load_json(path.string(), largest_index_bytes);
  const json* map =
      index.is_object() && index.contains("weight_map") ? &index["weight_map"] : nullptr;
  require(map != nullptr && map->is_object() && !map->empty(), Failure::input,
          "{}: needs a 'weight_map' of tensors and their files", path.string());
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // A name from outside must not lead out of the directory.
    constexpr std::size_t longest_name = 255;  // that a file system has
    require(name.ends_with(".safetensors") && name.size() <= longest_name &&
                name.find('/') == std::string::npos && name.find('\0') == std::string::npos,
            Failure::input,
            "{}: tensor {} must lie in a *.safetensors file beside the index, found {}",
            path.string(), shown(tensor), deck::describe_json(file));
    files[name].push_back(tensor);
  }
  constexpr std::size_t most_files = 10000;
  require(files.size() <= most_files, Failure::input, "{}: names {} files, at most {} are read",
          path.string(), files.size(), most_files);
  return files;
}

/// Blocks of 8-bit weights, from a directory's config.json; the library's where it has none.
BlockShape declared_blocks(const fs::path& directory) {
  constexpr BlockShape usual{128, 128};
  std::error_code none;
  const fs::path path = directory / "config.json";
  if (!fs::exists(path, none)) return usual;
  const json config = deck::load_json(path.string(), largest_index_bytes);
  const auto at = [](const json& object, const char* key) {
    return object.is_object() && object.contains(key) ? object[key] : json();
  };
  const json blocks = at(at(config, "quantization_config"), "weight_block_size");
  if (blocks.is_null()) return usual;
  bool usable = blocks.is_array() && blocks.size() == 2;
  for (const json& extent : usable ? blocks : json::array())
    usable = usable && extent.is_number_unsigned() && extent > 0 && extent <= 1 << 20;
  require(usable, Failure::input, "{}: 'weight_block_size' must be a list of two sizes, found {}",
          path.string(), deck::describe_json(blocks));
  return {blocks[0].get<std::int64_t>(), blocks[1].get<std::int64_t>()};
}

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

}  // namespace

bool is_hugging_face(const fs::path& directory) {
  std::error_code none;
  return std::ranges::any_of(
      std::initializer_list<const char*>{single_file, index_file, pickled_file, pickled_index},
      [&](const char* name) { return fs::exists(directory / name, none); });
}

struct PretrainedWeights::Impl {
  Impl(const fs::path& directory, const model::Config& config, FileKind kind);

  void open(const fs::path& directory);
  void open_files_of_index(const fs::path& directory);
  void add_file(const fs::path& path);
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

PretrainedWeights::Impl::Impl(const fs::path& directory, const model::Config& config, FileKind kind)
    : name(directory.string()), tied(config.tied_head) {
  if (kind == FileKind::adapter) {
    layout = adapter_layout(config);
    noun = "adapter";
    another = "[training.adapter] describes another adapter";
    without_head = untied =
        "but this model's head is tied: save the table with ensure_weight_tying = true in PEFT";
    prefix = layout.prefix;
    head = layout.head;
    add_file(adapter_file(directory, config));
    name = files.front()->name();
  } else {
    open(directory);
    has_spare_head = tied;
    ExpertTensors experts = ExpertTensors::separate;
    for (const auto& [tensor, file] : places) experts = form_of_experts(tensor).value_or(experts);
    layout = hugging_face_layout(config, experts);
    find_names();
    find_codes(declared_blocks(directory));
    find_extra_layers(config);
  }
  for (const Placed& placed : layout.parameters) parameters[placed.parameter.name] = &placed;
  check_tensors();
  check_shapes();
}

void PretrainedWeights::Impl::open(const fs::path& directory) {
  std::error_code none;
  if (fs::exists(directory / single_file, none)) return add_file(directory / single_file);
  for (const char* pickled : {pickled_file, pickled_index})
    require(!fs::exists(directory / pickled, none) || fs::exists(directory / index_file, none),
            Failure::input,
            "{}: has its weights in Python's pickle format: found {}, expected {} or {}. Load the "
            "model with the Transformers library and write it with save_pretrained",
            name, pickled, single_file, index_file);
  require(fs::exists(directory / index_file, none), Failure::input,
          "{}: holds neither {} nor {}: files of other formats are not read, but the Transformers "
          "library's save_pretrained writes these",
          name, single_file, index_file);
  open_files_of_index(directory);
}

void PretrainedWeights::Impl::open_files_of_index(const fs::path& directory) {
  for (const auto& [file, tensors] : read_index(directory / index_file)) {
    add_file(directory / file);
    for (const std::string& tensor : tensors)
      require(files.back()->tensors().contains(tensor), Failure::input,
              "{}: holds no tensor {}, which {} names there: a file is missing or of another model",
              files.back()->name(), shown(tensor), index_file);
  }
}

void PretrainedWeights::Impl::add_file(const fs::path& path) {
  files.push_back(std::make_unique<TensorFile>(path));
  for (const auto& [tensor, entry] : files.back()->tensors()) {
    const auto [at, is_new] = places.emplace(tensor, files.back().get());
    require(is_new, Failure::input, "{}: has tensor {}, which {} has too", files.back()->name(),
            shown(tensor), at->second->name());
  }
}

/// Finds what stands before the token table's name: nothing in files of a model without a head, and
/// more than the layout's prefix where the model was saved as a part of something, such as
/// torch.compile's "_orig_mod.". The head is such a part too, or stands alone.
void PretrainedWeights::Impl::find_names() {
  prefix = layout.prefix;
  head = layout.head;
  const std::string table = layout.tensors.front().name.substr(prefix.size());
  std::vector<std::string> found;
  for (const auto& [tensor, file] : places)
    if (tensor == table || tensor.ends_with("." + table))
      found.push_back(tensor.substr(0, tensor.size() - table.size()));
  if (found.size() != 1) return;
  prefix = found[0];
  if (!prefix.ends_with(layout.prefix)) return;
  const std::string whole = prefix.substr(0, prefix.size() - layout.prefix.size()) + layout.head;
  if (places.contains(whole)) head = whole;
}

std::string PretrainedWeights::Impl::name_in_files(const std::string& tensor) const {
  if (tensor == layout.head) return head;
  return prefix + tensor.substr(layout.prefix.size());
}

void PretrainedWeights::Impl::find_codes(BlockShape declared) {
  const FileOf files = [&](const std::string& tensor) -> const TensorFile* {
    const auto place = places.find(tensor);
    return place == places.end() ? nullptr : place->second;
  };
  for (const NewTensor& tensor : layout.tensors) {
    const std::string found = name_in_files(tensor.name);
    if (auto coded = coded_tensor(found, files, declared)) codes.emplace(found, std::move(coded));
  }
}

/// Finds layers behind the model's that predict later tokens: they project two tokens to one.
void PretrainedWeights::Impl::find_extra_layers(const model::Config& config) {
  if (architecture(config).extra_layers.empty()) return;
  constexpr std::string_view projection = "eh_proj.weight";
  const std::string layers = prefix + config.family->tensors.layers;
  for (const auto& [tensor, file] : places) {
    if (!tensor.starts_with(layers) || !tensor.ends_with(projection)) continue;
    const std::string layer = tensor.substr(0, tensor.size() - projection.size());
    if (std::atoi(layer.c_str() + layers.size()) >= config.num_layers) extra_layers.insert(layer);
  }
}

Dtype PretrainedWeights::Impl::dtype_of(const std::string& tensor) const {
  const auto found = codes.find(tensor);
  return found == codes.end() ? file_of(tensor).dtype(tensor) : found->second->dtype();
}

/// That each tensor of the model is there, and no other.
void PretrainedWeights::Impl::check_tensors() const {
  std::vector<std::string> missing, extra;
  std::set<std::string> known;
  for (const NewTensor& tensor : layout.tensors) {
    const std::string found = name_in_files(tensor.name);
    known.insert(found);
    if (!places.contains(found) && !codes.contains(found)) missing.push_back(found);
  }
  // The dtype of codes that are not read is named rather than their scales.
  const auto scales_others = [&](const std::string& tensor) {
    return std::ranges::any_of(eight_bit_parts, [&](const std::string& part) {
      if (!tensor.ends_with(part)) return false;
      const auto of = places.find(tensor.substr(0, tensor.size() - part.size()));
      return of != places.end() && !readable(of->second->tensors().at(of->first).dtype);
    });
  };
  const auto is_part = [&](const std::string& tensor) {
    if (codes.contains(scaled_by(tensor)) || scales_others(tensor)) return true;
    const auto behind = codes.upper_bound(tensor);  // names that begin like it come before
    return behind != codes.begin() && is_part_of_codes(tensor, std::prev(behind)->first);
  };
  const auto is_extra = [&](const std::string& tensor) {
    return std::ranges::any_of(extra_layers,
                               [&](const std::string& layer) { return tensor.starts_with(layer); });
  };
  for (const auto& [tensor, file] : places)
    if (!known.contains(tensor) && !is_extra(tensor) && !is_buffer(tensor) &&
        !(has_spare_head && tensor == head) && !is_part(tensor))
      extra.push_back(tensor);
  require(missing.empty(), Failure::input,
          "{}: lacks {} of the {}: {}{}: a file is missing, or {}{}", name,
          plural(missing.size(), "tensor"), noun, few(missing),
          extra.empty() ? "" : "; others are there: " + few(extra), another,
          missing.size() == 1 && missing[0] == head ? fmt::format("; {}", without_head) : "");
  require(
      extra.empty(), Failure::input,
      "{}: has {} that the {} has no place for: {}: {}, or these belong to something beside it and "
      "must be left out of the files",
      name, plural(extra.size(), "tensor"), noun, few(extra), another);
}

void PretrainedWeights::Impl::check_shapes() const {
  for (const NewTensor& tensor : layout.tensors) {
    const std::string found_name = name_in_files(tensor.name);
    const auto in_codes = codes.find(found_name);
    const bool coded = in_codes != codes.end();
    const TensorFile& file = coded ? in_codes->second->file() : file_of(found_name);
    const std::vector<std::int64_t>& found =
        coded ? in_codes->second->shape() : file.tensors().at(found_name).shape;
    dtype_of(found_name);
    // Positions beyond those that the model uses are left where they are.
    const bool is_position = tensor.name == layout.prefix + "wpe.weight";
    const bool longer = is_position && found.size() == 2 && found[1] == tensor.shape[1] &&
                        found[0] > tensor.shape[0];
    require(found == tensor.shape || longer, Failure::input,
            "{}: tensor {} has shape [{}], the {} needs [{}]: {}{}", file.name(), shown(found_name),
            fmt::join(found, ", "), noun, fmt::join(tensor.shape, ", "), another,
            is_position ? "; seq_len must be at most the positions that there are" : "");
  }
}

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

namespace {

/// The slab as a part of the matrix that a file has, whose rows a rank has whole.
Slab as_placed(Slab slab, const Placed& placed) {
  if (placed.own_columns == 0) return slab;
  for (std::vector<std::int64_t>* const shape : {&slab.shape, &slab.global_shape})
    *shape = {shape->front(), placed.own_columns};
  slab.offset = {slab.offset.front(), 0};
  return slab;
}

}  // namespace

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

void PretrainedWeights::require_tied() const {
  const std::string& head_tensor = impl_->head;
  if (!impl_->tied || !impl_->places.contains(head_tensor)) return;
  const std::string table = impl_->layout.tensors.front().name;
  const auto& head = impl_->file_of(head_tensor).tensors().at(head_tensor);
  const std::vector<std::int64_t>& shape = impl_->layout.tensors.front().shape;
  bool same = head.shape == shape;
  std::vector<float> ours, theirs;
  for (std::int64_t first = 0; same && first < head.elements; first += piece_elements) {
    ours.resize(std::size_t(std::min(piece_elements, head.elements - first)));
    theirs.resize(ours.size());
    impl_->read(table, first, ours);
    impl_->read(impl_->layout.head, first, theirs);
    same = std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)) == 0;
  }
  require(same, Failure::input, "{}: tensor {} is not the token table, {}", impl_->name,
          shown(head_tensor), impl_->untied);
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
