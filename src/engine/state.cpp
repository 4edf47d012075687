#include "state.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.hpp"

namespace brume::engine {
namespace {

using schedule::Buffer;
using schedule::Content;
using schedule::Tier;

const Buffer* find(const schedule::Program& program, Content content, Tier tier, int block,
                   std::string_view prefix) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.persistent && buffer.content == content && buffer.tier == tier &&
        buffer.block == block && buffer.name.starts_with(prefix))
      return &buffer;
  return nullptr;
}

/// One parameter's piece of this rank, before it is cut by what lies where.
Slab whole_piece(const model::Parameter& parameter, const model::Piece& piece) {
  return {.name = parameter.name,
          .kind = {},
          .global_shape = parameter.shape,
          .offset = piece.offset,
          .shape = piece.shape,
          .first = 0,
          .elements = piece.elements,
          .data = nullptr,
          .owned = false};
}

/// Adds the part of each piece that lies in `data`, which holds elements [first, first + elements)
/// of the block.
void add_range(std::vector<Slab>& slabs, const model::Block& block, const model::Layout& layout,
               const char* kind, std::int64_t first, std::int64_t elements, float* data, int tp,
               int tp_rank, bool dp_owner) {
  for (const model::Piece& piece : layout.pieces) {
    const std::int64_t begin = std::max(first, piece.first);
    const std::int64_t end = std::min(first + elements, piece.first + piece.elements);
    if (begin >= end) continue;
    const model::Parameter& parameter = block.parameters[std::size_t(piece.parameter)];
    Slab slab = whole_piece(parameter, piece);
    slab.kind = kind;
    slab.first = begin - piece.first;
    slab.elements = end - begin;
    slab.data = data + (begin - first);
    slab.owned = dp_owner && (parameter.splits(tp) || tp_rank == 0);
    slabs.push_back(std::move(slab));
  }
}

/// Place in the whole tensor of element `index` of a slice.
std::int64_t global_index(const Slab& slab, std::int64_t index) {
  std::int64_t global = 0, stride = 1;
  for (std::size_t d = slab.shape.size(); d-- > 0;) {
    global += (slab.offset[d] + index % slab.shape[d]) * stride;
    index /= slab.shape[d];
    stride *= slab.global_shape[d];
  }
  return global;
}

}  // namespace

std::vector<Slab> slabs(const schedule::Program& program, const plan::Plan& plan,
                        const model::Config& model, const Arena& arena) {
  const plan::Place place = plan::place(plan, program.rank);
  const plan::Stage& stage = plan.stages[std::size_t(place.stage)];
  const auto [first_block, last_block] = plan::block_range(plan, place.stage);
  const std::vector<model::Block> blocks = model::blocks(model);
  std::vector<Slab> all;
  for (int block = first_block; block <= last_block; ++block) {
    const model::Block& described = blocks[std::size_t(block)];
    const model::Layout layout = model::layout(described, stage.tp, place.tp_rank, stage.dp);
    const auto data = [&](const Buffer& buffer) {
      return reinterpret_cast<float*>(arena.at(buffer));
    };
    const Buffer* weights = find(program, Content::weights, Tier::device, block, described.name);
    add_range(all, described, layout, "weight", 0, layout.elements, data(*weights), stage.tp,
              place.tp_rank, place.dp_rank == 0);

    const bool sharded = stage.zero_level >= 1;
    std::int64_t next = sharded ? place.dp_rank * (layout.elements / stage.dp) : 0;
    for (Tier tier : {Tier::device, Tier::host}) {
      const Buffer* moments = find(program, Content::optimizer, tier, block, described.name);
      if (moments == nullptr) continue;
      const std::int64_t elements = moments->bytes / 2 / std::int64_t(sizeof(float));
      const bool owner = sharded || place.dp_rank == 0;
      add_range(all, described, layout, "m", next, elements, data(*moments), stage.tp,
                place.tp_rank, owner);
      add_range(all, described, layout, "v", next, elements, data(*moments) + elements, stage.tp,
                place.tp_rank, owner);
      next += elements;
    }
  }
  if (const Buffer* tied = find(program, Content::weights, Tier::device, 0, "tied.")) {
    const model::Layout layout = model::layout(blocks[0], stage.tp, place.tp_rank, stage.dp);
    const model::Piece& table = layout.piece(blocks[0], ".token");
    Slab copy = whole_piece(blocks[0].parameters[std::size_t(table.parameter)], table);
    copy.kind = "weight";
    copy.data = reinterpret_cast<float*>(arena.at(*tied));
    all.push_back(std::move(copy));
  }
  return all;
}

void initialise(std::vector<Slab>& slabs, const model::Config& model, std::uint64_t seed) {
  std::map<std::string, model::Parameter> parameters;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& parameter : block.parameters)
      parameters[parameter.name] = parameter;
  for (Slab& slab : slabs) {
    if (slab.kind != "weight") {
      std::fill_n(slab.data, slab.elements, 0.0f);
      continue;
    }
    const model::Parameter& parameter = parameters.at(slab.name);
    for (std::int64_t i = 0; i < slab.elements; ++i)
      slab.data[i] = model::initial_value(parameter, global_index(slab, slab.first + i), seed);
  }
}

}  // namespace brume::engine
