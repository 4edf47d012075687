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

namespace {

/// The gate of GeGLU or SwiGLU.
template <bool gelu>
KOKKOS_INLINE_FUNCTION Gate gate_of(float z) {
  if constexpr (gelu) return gelu_gate(z);
  return silu(z);
}

template <bool gelu, class Storage>
void forward(const char* kernel, const ConstMatrixOf<Storage>& u, const MatrixOf<Storage>& a) {
  promise_swiglu(kernel, u, a);
  for_each_row(
      kernel, u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = a.extent_int(1);
        along(
            team, width,
            [&](int f) {
              return Column{u(n, f), u(n, width + f), 0.0f};
            },
            [&](int f, const Column& at) { a(n, f) = gate_of<gelu>(at.gate).value * at.value; });
      });
}

template <bool gelu, class Storage>
void backward(const char* kernel, const ConstMatrixOf<Storage>& u, const ConstMatrixOf<Storage>& da,
              const MatrixOf<Storage>& du) {
  promise_swiglu(kernel, u, da);
  promise_swiglu(kernel, du, da);
  for_each_row(
      kernel, u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = da.extent_int(1);
        along(
            team, width,
            [&](int f) {
              return Column{u(n, f), u(n, width + f), da(n, f)};
            },
            [&](int f, const Column& at) {
              const Gate gate = gate_of<gelu>(at.gate);
              du(n, width + f) = at.grad * gate.value;
              du(n, f) = at.grad * at.value * gate.slope;
            });
      });
}

}  // namespace

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  forward<false, Storage>("swiglu_forward", u, a);
}

template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<false, Storage>("swiglu_backward", u, da, du);
}

template <class Storage>
void geglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  forward<true, Storage>("geglu_forward", u, a);
}

template <class Storage>
void geglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<true, Storage>("geglu_backward", u, da, du);
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
