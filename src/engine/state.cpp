#include "state.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "open_blocks.hpp"
#include "plan/rules.hpp"

namespace brume::engine {
namespace {

using schedule::Buffer;
using schedule::Content;

/// Place of a field of elements [first, first + elements) of a block, in memory or on disk.
struct Range {
  model::StateField field;
  std::int64_t first, elements;
  std::byte* memory = nullptr;
  device::ScratchFile* disk = nullptr;
  std::int64_t disk_byte = 0;

  /// Whether these are floats, which slabs have as `data`.
  bool is_wide() const {
    return field.storage == model::Precision::fp32 && field.quantization == Quantization::none;
  }
};

/// Adds the part of each piece that lies in `range`. This rank writes the parameters that it
/// `owns`. Whole matrices lack fields of full state, also where their elements have room for them.
template <typename Owns>
void add_range(std::vector<Slab>& slabs, const model::Block& block, const model::Layout& layout,
               const Range& range, Owns&& owns) {
  const bool of_elements = range.field.of == model::StateOf::full;
  for (const model::Piece& piece : layout.pieces) {
    const std::int64_t begin = std::max(range.first, piece.first);
    const std::int64_t end = std::min(range.first + range.elements, piece.first + piece.elements);
    const model::Parameter& parameter = block.parameters[piece.parameter];
    if (begin >= end || (of_elements && parameter.unit == model::UpdateUnit::matrix)) continue;
    const std::int64_t skipped_bytes = range.field.bytes(begin - range.first);
    std::byte* const memory = range.memory ? range.memory + skipped_bytes : nullptr;
    const Quantization quantization = range.field.quantization != Quantization::none
                                          ? range.field.quantization
                                          : parameter.quantization;
    const bool quantized = quantization != Quantization::none;
    slabs.push_back({.name = parameter.name,
                     .kind = range.field.name,
                     .global_shape = parameter.shape,
                     .offset = piece.offset,
                     .shape = piece.shape,
                     .first = parameter.stored_values(begin - piece.first),
                     .elements = parameter.stored_values(end - begin),
                     .data = range.is_wide() ? reinterpret_cast<float*>(memory) : nullptr,
                     .rounded = range.is_wide() ? nullptr : memory,
                     .storage = parameter.in_fp32 ? model::Precision::fp32 : range.field.storage,
                     .disk = range.disk,
                     .disk_byte = range.disk_byte + skipped_bytes,
                     .quantization = quantization,
                     .open_blocks = quantized ? std::make_shared<OpenBlocks>() : nullptr,
                     .owned = owns(piece.parameter),
                     .dense = parameter.expert_dim < 0});
  }
}

}  // namespace

std::vector<Slab> slabs_of(const schedule::Program& program, const plan::Plan& plan,
                           const model::Config& model) {
  return slabs(program, plan, model, nullptr);
}

std::vector<Slab> slabs(const schedule::Program& program, const plan::Plan& plan,
                        const model::Config& model, const Arena* arena) {
  const plan::Place place = plan::place(plan, program.rank);
  const plan::Stage& stage = plan.stages[place.stage];
  std::vector<plan::BlockRange> here;
  for (int index : plan::stages_beside(plan, place.stage))
    here.push_back(plan::block_range(plan, index));
  const plan::Sharded<bool> shards = plan::sharded(stage);
  const std::vector<model::Block> blocks = model::blocks(model, stage.split().division());
  std::vector<Slab> all;
  for (const Buffer& buffer : program.buffers) {
    const bool weights = buffer.content == Content::weights;
    if (!buffer.persistent || !(weights || buffer.content == Content::optimizer)) continue;
    const model::Block& block = blocks[buffer.block];
    const model::Layout layout = plan::layout(block, place);
    const bool sharded = weights ? shards.weights : shards.optimizer;
    // A tied head has a copy of the table of another stage's embedding.
    const bool copy = std::ranges::none_of(here, [&](const plan::BlockRange& blocks) {
      return blocks.first <= buffer.block && buffer.block <= blocks.last;
    });
    // Of what several ranks hold each writes a part.
    const auto owns = [&](int parameter) {
      model::AxisSet holders = place.holders(block.parameters[parameter]);
      if (sharded) holders = holders.without(model::Axis::shard);
      const bool split = block.parameters[parameter].splits(stage.tp);
      return !copy && (split || place.at[model::Axis::tp] == 0) &&
             (buffer.block + parameter) % place.mesh.size(holders) == place.index(holders);
    };
    const bool rounds = model.precision != model::Precision::fp32;
    const bool on_disk = buffer.tier == schedule::Tier::disk;
    std::byte* const bytes = on_disk || !arena ? nullptr : arena->at(buffer);
    if (weights && rounds) {
      // What is trained has a master, which a checkpoint holds in its place.
      add_range(
          all, block, layout,
          {{"weight", model.precision}, buffer.first_element, buffer.elements, bytes},
          [&](int parameter) { return block.parameters[parameter].frozen && owns(parameter); });
      continue;
    }
    const model::FieldPart whole{{"weight"}, buffer.first_element, buffer.elements, 0};
    for (const auto& [field, first, elements, first_byte] :
         weights ? std::vector{whole}
                 : model::state_parts(model, layout, buffer.first_element, buffer.elements)) {
      Range range{field, first, elements};
      if (on_disk) {
        range.disk = arena ? &arena->disk() : nullptr;
        range.disk_byte = buffer.offset + first_byte;
      } else if (bytes) {
        range.memory = bytes + first_byte;
      }
      add_range(all, block, layout, range, owns);
    }
  }
  return all;
}

std::int64_t keep_exactly(std::vector<Slab>& slabs, const std::set<std::string>& names,
                          device::ScratchFile* disk) {
  std::int64_t bytes = 0;
  std::vector<Slab> exact;
  for (Slab& slab : slabs) {
    const bool rounds = slab.rounded && slab.storage != model::Precision::fp32;
    if (!rounds || !slab.owned || !names.contains(slab.name)) continue;
    Slab& whole = exact.emplace_back(slab);
    slab.owned = false;
    whole.rounded = nullptr;
    whole.storage = model::Precision::fp32;
    whole.disk = disk;
    whole.disk_byte = bytes;
    bytes += whole.elements * std::int64_t(sizeof(float));
  }
  std::ranges::move(exact, std::back_inserter(slabs));
  return bytes;
}

std::vector<Slab> gradients(const schedule::Program& program, const plan::Plan& plan,
                            const model::Config& model, const Arena& arena) {
  const plan::Place place = plan::place(plan, program.rank);
  const std::vector<model::Block> blocks =
      model::blocks(model, plan.stages[std::size_t(place.stage)].split().division());
  std::vector<Slab> all;
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.persistent || buffer.content != Content::grads) continue;
    const model::Block& block = blocks[buffer.block];
    add_range(all, block, plan::layout(block, place),
              {{"grad"}, buffer.first_element, buffer.bytes / model::grad_bytes, arena.at(buffer)},
              [](int) { return false; });
  }
  return all;
}

std::int64_t largest_piece(const std::vector<Slab>& slabs) {
  std::int64_t most = 0;
  for (const Slab& slab : slabs) most = std::max(most, slab.elements);
  return std::min(most, std::int64_t{8} << 20);
}

std::vector<std::string> nonfinite_parameters(const std::vector<Slab>& slabs) {
  std::vector<std::string> names;
  std::vector<float> room(std::size_t(largest_piece(slabs)));
  const auto is_nonfinite = [&](const Slab& slab) {
    for (std::int64_t first = 0; first < slab.elements; first += std::ssize(room)) {
      const auto piece = std::span(room).first(
          std::size_t(std::min<std::int64_t>(std::ssize(room), slab.elements - first)));
      get_values(slab, first, piece);
      if (!std::ranges::all_of(piece, [](float value) { return std::isfinite(value); }))
        return true;
    }
    return false;
  };
  for (const Slab& slab : slabs)
    if ((slab.kind == "weight" || slab.kind == "grad") &&
        std::ranges::find(names, slab.name) == names.end() && is_nonfinite(slab))
      names.push_back(slab.name);
  return names;
}

}  // namespace brume::engine
