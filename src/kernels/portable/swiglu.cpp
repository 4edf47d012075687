#include "kernels/swiglu.hpp"

#include "kernels/activations.hpp"
#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

/// What a column is made of: its gate, its value, and for a gradient that of their product.
struct Column {
  float gate, value, grad;
};

}  // namespace

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  promise_swiglu("swiglu_forward", u, a);
  for_each_row(
      "swiglu_forward", u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = a.extent_int(1);
        along(
            team, width,
            [&](int f) {
              return Column{u(n, f), u(n, width + f), 0.0f};
            },
            [&](int f, const Column& at) { a(n, f) = silu(at.gate).value * at.value; });
      });
}

template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  promise_swiglu("swiglu_backward", u, da);
  promise_swiglu("swiglu_backward", du, da);
  for_each_row(
      "swiglu_backward", u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = da.extent_int(1);
        along(
            team, width,
            [&](int f) {
              return Column{u(n, f), u(n, width + f), da(n, f)};
            },
            [&](int f, const Column& at) {
              const Gate gate = silu(at.gate);
              du(n, width + f) = at.grad * gate.value;
              du(n, f) = at.grad * at.value * gate.slope;
            });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
