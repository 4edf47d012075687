#include "kernels/heads.hpp"

#include "kernels/portable/launch.hpp"

namespace brume::kernels {

/// The place of a column of a block matrix among the parts that have it.
struct PartColumn {
  int first_part, sharing, column;
};

namespace {

/// Blocks are named one by one: an index that a device computes would need memory for them.
KOKKOS_INLINE_FUNCTION PartColumn part_column(const HeadBlocks& heads, int column) {
  HeadBlocks::Block block = heads.blocks[0];
  int before = 0;
  const auto pass = [&](const HeadBlocks::Block& next) {
    if (column < block.columns) return false;
    column -= block.columns;
    before += block.width();
    block = next;
    return true;
  };
  if (pass(heads.blocks[1])) pass(heads.blocks[2]);
  const int width = block.width(), sharing = heads.parts / block.ranges;
  return {column / width * sharing, sharing, before + column % width};
}

}  // namespace

template <class Storage>
void cut_heads(ConstMatrixOf<Storage> x, const HeadBlocks& blocks, MatrixOf<Storage> y) {
  promise_heads("cut_heads", x, blocks, y);
  const std::int64_t tokens = x.extent_int(0);
  Storage* const parts = y.data();
  for_each_row(
      "cut_heads", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        along(
            team, x.extent_int(1), [&](int c) { return x(n, c); },
            [&](int c, Storage value) {
              const PartColumn at = part_column(blocks, c);
              for (int p = at.first_part; p < at.first_part + at.sharing; ++p)
                parts[(p * tokens + n) * blocks.width() + at.column] = value;
            });
      });
}

template <class Storage>
void join_heads(ConstMatrixOf<Storage> y, const HeadBlocks& blocks, MatrixOf<Storage> x) {
  promise_heads("join_heads", x, blocks, y);
  const std::int64_t tokens = x.extent_int(0);
  const Storage* const parts = y.data();
  for_each_row(
      "join_heads", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        along(
            team, x.extent_int(1),
            [&](int c) {
              const PartColumn at = part_column(blocks, c);
              const auto of_part = [&](int p) {
                return parts[(p * tokens + n) * blocks.width() + at.column];
              };
              float sum = 0.0f;
              for (int p = at.first_part; p < at.first_part + at.sharing; ++p)
                sum += float(of_part(p));
              return sum;
            },
            [&](int c, float value) { x(n, c) = Storage(value); });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/heads.hpp"
