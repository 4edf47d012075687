/// @file Blocks of quantized values of which some have come.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>

#include "base/quantization.hpp"

namespace brume::engine {

/// A block is quantized when all its values have come.
struct OpenBlocks {
  struct Block {
    std::array<float, quantized_block> values;
    std::bitset<quantized_block> known;
  };
  std::map<std::int64_t, Block> blocks = {};  ///< by index in the slab
};

}  // namespace brume::engine
