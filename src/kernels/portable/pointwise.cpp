#include "kernels/pointwise.hpp"

#include "device/device.hpp"
#include "kernels/portable/launch.hpp"

namespace brume::kernels {

template <class Storage>
void add_bias(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> bias, MatrixOf<Storage> y) {
  promise(same_extents(x, y) && is_row_of(bias, x), "add_bias",
          "x [N, C], bias [C] and y [N, C] must fit");
  for_each_row(
      "add_bias", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        along(
            team, x.extent_int(1), [&](int c) { return x(n, c) + bias(c); },
            [&](int c, float value) { y(n, c) = value; });
      });
}

template <class Storage>
void bias_backward(ConstMatrixOf<Storage> dy, Write write, Vector db) {
  promise(is_row_of(db, dy), "bias_backward", "dy [N, C] and db [C] must fit");
  sum_columns<1>(
      "bias_backward", dy.extent(0), dy.extent(1), write, {db.data()},
      KOKKOS_LAMBDA(std::int64_t n, std::int64_t c, float* sum) { sum[0] += dy(n, c); });
}

void add(ConstVector x, Vector y) {
  promise(x.size() == y.size(), "add", "x and y must have one length");
  for_each(
      "add", x.size(), KOKKOS_LAMBDA(std::int64_t i) { y(i) += x(i); });
}

template <class Storage>
void add_residual(ConstMatrixOf<Storage> x, MatrixOf<Storage> y) {
  promise(same_extents(x, y), "add_residual", "x and y [N, C] must fit");
  const std::int64_t width = y.extent_int(1);
  for_each(
      "add_residual", y.size(), KOKKOS_LAMBDA(std::int64_t i) {
        Storage& value = y(i / width, i % width);
        value = value + x(i / width, i % width);
      });
}

template <class Storage>
void copy(ConstVectorOf<Storage> x, VectorOf<Storage> y) {
  promise(x.size() == y.size(), "copy", "x and y must have one length");
  device::copy(y.data(), x.data(), std::int64_t(x.size() * sizeof(Storage)));
}

template <class Storage>
void scale(float factor, MatrixOf<Storage> y) {
  const std::int64_t width = y.extent_int(1);
  for_each(
      "scale", y.size(), KOKKOS_LAMBDA(std::int64_t i) {
        Storage& value = y(i / width, i % width);
        value = Storage(factor * float(value));
      });
}

void fill(float value, Vector y) {
  for_each(
      "fill", y.size(), KOKKOS_LAMBDA(std::int64_t i) { y(i) = value; });
}

void sum_squares(ConstVector x, Write write, double* sum) {
  constexpr std::int64_t least = 4096, most_pieces = 4096;
  const std::int64_t count = x.size();
  const std::int64_t piece = std::max(least, (count + most_pieces - 1) / most_pieces);
  const std::int64_t pieces = (count + piece - 1) / piece;
  double* const partial = workspace_of<double>(pieces);
  for_each_row(
      "sum_squares", pieces, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t first = team.league_rank() * piece;
        const int here = int(count - first < piece ? count - first : piece);
        const double own = sum_along<double>(team, here, [&](int i) {
          const double value = x(first + i);
          return value * value;
        });
        Kokkos::single(Kokkos::PerTeam(team), [&]() { partial[team.league_rank()] = own; });
      });
  store_sum("sum_squares", partial, pieces, 1.0, write, sum);
}

}  // namespace brume::kernels

#include "kernels/instances/pointwise.hpp"
