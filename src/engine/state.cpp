#include "state.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <future>
#include <iterator>
#include <map>
#include <thread>
#include <tuple>
#include <type_traits>

#include "base/error.hpp"
#include "device/device.hpp"
#include "model/storage.hpp"
#include "plan/rules.hpp"

namespace brume::engine {

/// A block is quantized when all its values have come.
struct OpenBlocks {
  struct Block {
    std::array<float, quantized_block> values;
    std::bitset<quantized_block> known;
  };
  std::map<std::int64_t, Block> blocks = {};  ///< by index in the slab
};

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

/// The initial values of elements [first, first + values.size()) of a slab: each thread makes a
/// part of them.
void initial_values(const model::Parameter& parameter, const Slab& slab, std::int64_t first,
                    std::span<float> values, std::uint64_t seed, int threads) {
  const auto make = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row = slab.shape.back();  // its elements follow each other in the tensor too
    for (std::int64_t i = begin, global = 0; i < end; ++i, ++global) {
      const std::int64_t index = slab.first + first + i;
      if (i == begin || index % row == 0) global = global_index(slab, index);
      values[i] = model::initial_value(parameter, global, seed);
    }
  };
  const std::int64_t count = std::ssize(values);
  constexpr std::int64_t worth_a_thread = 1 << 14;
  const std::int64_t parts = std::clamp<std::int64_t>(count / worth_a_thread, 1, threads);
  std::vector<std::jthread> others;
  for (std::int64_t part = 1; part < parts; ++part)
    others.emplace_back(make, count * part / parts, count * (part + 1) / parts);
  make(0, count / parts);
}

/// Elements of a buffer through which values of slabs go: 32 MiB, or what the largest slab needs.
std::int64_t largest_piece(const std::vector<Slab>& slabs) {
  std::int64_t most = 0;
  for (const Slab& slab : slabs) most = std::max(most, slab.elements);
  return std::min(most, std::int64_t{8} << 20);
}

/// each(first, count) for pieces of at most `most` that make up [0, elements).
template <typename Each>
void for_pieces(std::int64_t elements, std::int64_t most, Each&& each) {
  for (std::int64_t first = 0; first < elements; first += most)
    each(first, std::min(most, elements - first));
}

model::Precision storage_of(const Slab& slab) {
  return slab.data ? model::Precision::fp32 : slab.storage;
}

std::byte* memory_of(const Slab& slab) {
  return slab.data ? reinterpret_cast<std::byte*>(slab.data) : slab.rounded;
}

void read_bytes(const Slab& slab, std::int64_t first, std::span<std::byte> bytes) {
  if (slab.disk)
    slab.disk->read(slab.disk_byte + first, bytes);
  else
    device::copy_now(bytes.data(), memory_of(slab) + first, std::ssize(bytes));
}

void write_bytes(const Slab& slab, std::int64_t first, std::span<const std::byte> bytes) {
  if (slab.disk)
    slab.disk->write(slab.disk_byte + first, bytes);
  else
    device::copy_now(memory_of(slab) + first, bytes.data(), std::ssize(bytes));
}

/// each(block, within, count, done) for the blocks of values [first, first + size) of a slab: count
/// values from place `within` of the block on, which are number `done` and the next of the range.
template <typename Each>
void for_blocks(std::int64_t first, std::int64_t size, Each&& each) {
  for (std::int64_t done = 0; done < size;) {
    const std::int64_t at = first + done, within = at % quantized_block;
    const std::int64_t count = std::min(quantized_block - within, size - done);
    each(at / quantized_block, within, count, done);
    done += count;
  }
}

void get_quantized(const Slab& slab, std::int64_t first, std::span<float> values) {
  const int bytes = block_bytes(slab.quantization);
  const std::int64_t begin = first / quantized_block,
                     end = ceil_div(first + std::ssize(values), std::int64_t{quantized_block});
  std::vector<std::byte> blocks(std::size_t((end - begin) * bytes));
  read_bytes(slab, begin * bytes, blocks);
  std::array<float, quantized_block> all;
  for_blocks(first, std::ssize(values), [&](auto block, auto within, auto count, auto done) {
    dequantize_block(slab.quantization, blocks.data() + (block - begin) * bytes, all);
    std::copy_n(all.begin() + within, count, values.begin() + done);
  });
}

/// Values are rounded to the format of checkpoints first: so are their scales, and a checkpoint
/// gives the same blocks again.
void set_quantized(const Slab& slab, std::int64_t first, std::span<const float> unrounded) {
  std::vector<float> values(unrounded.begin(), unrounded.end());
  model::with_storage(slab.storage, [&]<class Storage>() {
    for (float& value : values) value = float(Storage(value));
  });
  const int bytes = block_bytes(slab.quantization);
  std::vector<std::byte> blocks;  // whole ones, which follow each other
  std::int64_t first_block = 0;
  for_blocks(first, std::ssize(values), [&](auto block, auto within, auto count, auto done) {
    if (count == quantized_block) {
      if (blocks.empty()) first_block = block;
      blocks.resize(blocks.size() + std::size_t(bytes));
      quantize_block(slab.quantization,
                     std::span(values).subspan(done).template first<quantized_block>(),
                     blocks.data() + blocks.size() - bytes);
      return;
    }
    OpenBlocks::Block& open = slab.open_blocks->blocks[block];
    for (std::int64_t i = 0; i < count; ++i) {
      open.values[std::size_t(within + i)] = values[std::size_t(done + i)];
      open.known.set(std::size_t(within + i));
    }
    if (!open.known.all()) return;
    std::array<std::byte, block_bytes(Quantization::int8)> room;
    quantize_block(slab.quantization, open.values, room.data());
    write_bytes(slab, block * bytes, std::span(room).first(std::size_t(bytes)));
    slab.open_blocks->blocks.erase(block);
  });
  if (!blocks.empty()) write_bytes(slab, first_block * bytes, blocks);
}

constexpr std::int64_t zeros_in_cache = 1 << 18;  ///< that are written from, again and again

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
  const std::vector<model::Block> blocks = model::blocks(model);
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
  const std::vector<model::Block> blocks = model::blocks(model);
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

std::int64_t global_index(const Slab& slab, std::int64_t index) {
  std::int64_t global = 0, stride = 1;
  for (std::size_t d = slab.shape.size(); d-- > 0;) {
    global += (slab.offset[d] + index % slab.shape[d]) * stride;
    index /= slab.shape[d];
    stride *= slab.global_shape[d];
  }
  return global;
}

std::vector<float> values(const Slab& slab) {
  std::vector<float> all(std::size_t(slab.elements));
  get_values(slab, 0, all);
  return all;
}

void get_values(const Slab& slab, std::int64_t first, std::span<float> values) {
  if (slab.quantization != Quantization::none) return get_quantized(slab, first, values);
  model::with_storage(storage_of(slab), [&]<class Storage>() {
    const std::int64_t byte = first * std::int64_t(sizeof(Storage));
    if constexpr (std::is_same_v<Storage, float>) {
      read_bytes(slab, byte, std::as_writable_bytes(values));
    } else {
      std::vector<Storage> narrow(values.size());
      read_bytes(slab, byte, std::as_writable_bytes(std::span(narrow)));
      std::ranges::copy(narrow, values.begin());
    }
  });
}

void set_values(const Slab& slab, std::int64_t first, std::span<const float> values) {
  if (slab.quantization != Quantization::none) return set_quantized(slab, first, values);
  model::with_storage(storage_of(slab), [&]<class Storage>() {
    const std::int64_t byte = first * std::int64_t(sizeof(Storage));
    if constexpr (std::is_same_v<Storage, float>)
      return write_bytes(slab, byte, std::as_bytes(values));
    const std::vector<Storage> narrow(values.begin(), values.end());
    write_bytes(slab, byte, std::as_bytes(std::span(narrow)));
  });
}

void initialise(std::vector<Slab>& slabs, const model::Config& model, std::uint64_t seed,
                int threads) {
  std::map<std::string, model::Parameter> parameters;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& parameter : block.parameters)
      parameters[parameter.name] = parameter;
  const std::int64_t room = largest_piece(slabs);
  // A master weight and the rounded one beside it have the same value, which is made once.
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, std::vector<const Slab*>> alike;
  const std::vector<float> zeros(std::size_t(std::min(room, zeros_in_cache)));
  for (const Slab& slab : slabs)
    if (slab.kind == "weight")
      alike[{slab.name, slab.first, slab.elements}].push_back(&slab);
    else
      for_pieces(slab.elements, std::ssize(zeros), [&](std::int64_t first, std::int64_t count) {
        set_values(slab, first, std::span(zeros).first(std::size_t(count)));
      });

  struct Piece {
    const std::vector<const Slab*>* slabs;
    std::int64_t first, count;
  };
  std::vector<Piece> pieces;
  for (const auto& entry : alike) {
    const std::vector<const Slab*>& same = entry.second;
    for_pieces(same.front()->elements, room, [&](std::int64_t first, std::int64_t count) {
      pieces.push_back({&same, first, count});
    });
  }
  // This thread takes values to their places while others make the next ones.
  std::array<std::vector<float>, 2> rooms;
  for (std::vector<float>& values : rooms) values.resize(std::size_t(room));
  const auto values_of = [&](std::size_t i) {
    return std::span(rooms[i % 2]).first(std::size_t(pieces[i].count));
  };
  const auto make = [&](std::size_t i) {
    const Slab& slab = *pieces[i].slabs->front();
    return std::async(std::launch::async, [&, i] {
      initial_values(parameters.at(slab.name), slab, pieces[i].first, values_of(i), seed, threads);
    });
  };
  std::future<void> made;
  if (!pieces.empty()) made = make(0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    made.get();
    if (i + 1 < pieces.size()) made = make(i + 1);
    for (const Slab* slab : *pieces[i].slabs) set_values(*slab, pieces[i].first, values_of(i));
  }
}

}  // namespace brume::engine
