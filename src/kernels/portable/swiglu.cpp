#include "kernels/swiglu.hpp"

#include "kernels/activations.hpp"
#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

struct Gradients {
  float gate, value;
};

}  // namespace

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  promise_swiglu("swiglu_forward", u, a);
  for_each_row(
      "swiglu_forward", u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = a.extent_int(1);
        along(
            team, width, [&](int f) { return silu(u(n, f)).value * u(n, width + f); },
            [&](int f, float value) { a(n, f) = value; });
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
              const Gate at = silu(u(n, f));
              const float value = u(n, width + f), grad = da(n, f);
              return Gradients{grad * value * at.slope, grad * at.value};
            },
            [&](int f, const Gradients& of) {
              du(n, f) = of.gate;
              du(n, width + f) = of.value;
            });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
