#include "kernels/heads.hpp"

#include <algorithm>

#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

/// Calls move(range of x, the same in y, its columns, its number among the parts that share it) for
/// all ranges of all parts.
template <class Whole, class Parts, class Move>
void each_range(const char* kernel, Whole* x, std::int64_t stride, std::int64_t tokens, Parts* y,
                const HeadBlocks& heads, Move move) {
  for_each(kernel, tokens, [=](std::int64_t n) {
    Whole* whole = x + n * stride;
    Parts* part = y + n * heads.width();
    for (const HeadBlocks::Block& block : heads.blocks) {
      const int width = block.width(), sharing = heads.parts / block.ranges;
      for (int p = 0; p < heads.parts && width > 0; ++p)
        move(whole + p / sharing * width, part + p * tokens * heads.width(), width, p % sharing);
      whole += block.columns;
      part += width;
    }
  });
}

}  // namespace

template <class Storage>
void cut_heads(ConstMatrixOf<Storage> x, const HeadBlocks& blocks, MatrixOf<Storage> y) {
  promise_heads("cut_heads", x, blocks, y);
  each_range(
      "cut_heads", x.data(), std::int64_t(x.stride(0)), x.extent_int(0), y.data(), blocks,
      [](const Storage* from, Storage* to, int count, int) { std::copy_n(from, count, to); });
}

template <class Storage>
void join_heads(ConstMatrixOf<Storage> y, const HeadBlocks& blocks, MatrixOf<Storage> x) {
  promise_heads("join_heads", x, blocks, y);
  each_range("join_heads", x.data(), std::int64_t(x.stride(0)), x.extent_int(0), y.data(), blocks,
             [](Storage* to, const Storage* from, int count, int index) {
               if (index == 0) return void(std::copy_n(from, count, to));
#pragma omp simd
               for (int c = 0; c < count; ++c) to[c] = Storage(float(to[c]) + float(from[c]));
             });
}

}  // namespace brume::kernels

#include "kernels/instances/heads.hpp"
