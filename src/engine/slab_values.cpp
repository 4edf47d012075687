/// @file Values of slabs: in memory or on disk, rounded or in blocks.
#include <algorithm>
#include <array>
#include <type_traits>

#include "base/text.hpp"
#include "device/device.hpp"
#include "engine/slab.hpp"
#include "model/storage.hpp"
#include "open_blocks.hpp"

namespace brume::engine {
namespace {

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

}  // namespace

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

}  // namespace brume::engine
