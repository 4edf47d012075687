#include "kernels/rope.hpp"

#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

/// Two values that turn together, half a head apart.
struct Turned {
  float low, high;
};

/// @param direction  1 forwards, -1 backwards
template <class Storage>
void turn(const char* kernel, const ConstMatrix& table, int head_dim, const MatrixOf<Storage>& x,
          const Documents& documents, float direction) {
  promise_rope(kernel, table, head_dim, x);
  const int half = table.extent_int(1) / 2;
  const int length = table.extent_int(0);
  for_each_row(
      kernel, x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), t = documents.place(n, length);
        const auto low_of = [&](int pair) { return pair / half * head_dim + pair % half; };
        along(
            team, x.extent_int(1) / head_dim * half,
            [&](int pair) {
              const int i = pair % half, low = low_of(pair);
              const float a = x(n, low), b = x(n, low + half);
              const float cosine = table(t, i), sine = direction * table(t, half + i);
              return Turned{a * cosine - b * sine, b * cosine + a * sine};
            },
            [&](int pair, const Turned& at) {
              x(n, low_of(pair)) = at.low;
              x(n, low_of(pair) + half) = at.high;
            });
      });
}

}  // namespace

template <class Storage>
void rope_forward(ConstMatrix table, int head_dim, MatrixOf<Storage> x, Documents documents) {
  turn<Storage>("rope_forward", table, head_dim, x, documents, 1.0f);
}

template <class Storage>
void rope_backward(ConstMatrix table, int head_dim, MatrixOf<Storage> dx, Documents documents) {
  turn<Storage>("rope_backward", table, head_dim, dx, documents, -1.0f);
}

}  // namespace brume::kernels

#include "kernels/instances/rope.hpp"
