#include "kernels/heads.hpp"

#include <algorithm>

#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

/// A range of a block in one token, and its places in the parts that share it.
template <class Whole, class Parts>
struct Range {
  Whole* whole;
  Parts* part;          ///< the first one's
  std::int64_t stride;  ///< from part to part
  int width, sharing;
};

/// Calls move(Range) for all ranges of all tokens.
template <class Whole, class Parts, class Move>
void each_range(const char* kernel, Whole* x, std::int64_t stride, std::int64_t tokens, Parts* y,
                const HeadBlocks& heads, Move move) {
  const std::int64_t to_next_part = tokens * heads.width();
  for_each(kernel, tokens, [=](std::int64_t n) {
    Whole* whole = x + n * stride;
    Parts* part = y + n * heads.width();
    for (const HeadBlocks::Block& block : heads.blocks) {
      const int width = block.width(), sharing = heads.parts / block.ranges;
      for (int r = 0; r < block.ranges && width > 0; ++r)
        move(Range<Whole, Parts>{whole + r * width, part + r * sharing * to_next_part, to_next_part,
                                 width, sharing});
      whole += block.columns;
      part += width;
    }
  });
}

}  // namespace

template <class Storage>
void cut_heads(ConstMatrixOf<Storage> x, const HeadBlocks& blocks, MatrixOf<Storage> y) {
  promise_heads("cut_heads", x, blocks, y);
  each_range("cut_heads", x.data(), std::int64_t(x.stride(0)), x.extent_int(0), y.data(), blocks,
             [](const Range<const Storage, Storage>& range) {
               for (int p = 0; p < range.sharing; ++p)
                 std::copy_n(range.whole, range.width, range.part + p * range.stride);
             });
}

template <class Storage>
void join_heads(ConstMatrixOf<Storage> y, const HeadBlocks& blocks, MatrixOf<Storage> x) {
  promise_heads("join_heads", x, blocks, y);
  each_range("join_heads", x.data(), std::int64_t(x.stride(0)), x.extent_int(0), y.data(), blocks,
             [](const Range<Storage, const Storage>& range) {
               if (range.sharing == 1) {
                 std::copy_n(range.part, range.width, range.whole);
                 return;
               }
               for (int c = 0; c < range.width; ++c) {
                 float sum = 0.0f;
                 for (int p = 0; p < range.sharing; ++p)
                   sum += float(range.part[p * range.stride + c]);
                 range.whole[c] = Storage(sum);
               }
             });
}

}  // namespace brume::kernels

#include "kernels/instances/heads.hpp"
