/// @file Columns of heads in parts, one for each rank that shares a sequence.
#pragma once

#include <array>

#include "kernels/types.hpp"

namespace brume::kernels {

/// Blocks of columns side by side, such as those of queries, keys and values. A block is cut into
/// equal ranges. Each of P parts has one range of each block: its own one, or where a block has
/// fewer ranges, one that it shares with the parts next to it.
struct HeadBlocks {
  struct Block {
    int columns = 0;
    int ranges = 1;  ///< R, which divides its columns and P

    constexpr int width() const { return columns / ranges; }
  };
  std::array<Block, 3> blocks = {};
  int parts = 1;  ///< P

  constexpr int columns() const {  ///< C
    return blocks[0].columns + blocks[1].columns + blocks[2].columns;
  }
  constexpr int width() const {  ///< W, columns of a part
    return blocks[0].width() + blocks[1].width() + blocks[2].width();
  }
};

/// y[p N + n, :] = range p R / P of each block of x[n, :], side by side, p < P.
///
/// @param x  [N, C]
/// @param y  P N W elements, in rows of any length
template <class Storage = float>
void cut_heads(ConstMatrixOf<Storage> x, const HeadBlocks& blocks, MatrixOf<Storage> y);

/// x from y: a range is the sum of its parts' ranges, in their order, in fp32. Each kernel is the
/// backward of the other one where no range is shared; else this one is the backward of
/// `cut_heads`.
template <class Storage = float>
void join_heads(ConstMatrixOf<Storage> y, const HeadBlocks& blocks, MatrixOf<Storage> x);

}  // namespace brume::kernels
