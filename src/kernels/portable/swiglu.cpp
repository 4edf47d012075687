#include "kernels/swiglu.hpp"

#include "kernels/activations.hpp"
#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

/// What a column is made of: its gate, its value, and for a gradient that of their product.
struct Column {
  float gate, value, grad;
};

/// g of a row
KOKKOS_INLINE_FUNCTION float factor(const ConstVector& gates, int n) {
  return gates.data() != nullptr ? gates(n) : 1.0f;
}

/// The gate of GeGLU or SwiGLU.
template <bool gelu>
KOKKOS_INLINE_FUNCTION Gate gate_of(float z) {
  if constexpr (gelu) return gelu_gate(z);
  return silu(z);
}

template <bool gelu, class Storage>
void forward(const char* kernel, const ConstMatrixOf<Storage>& u, const MatrixOf<Storage>& a,
             const ConstVector& gates) {
  promise_swiglu(kernel, u, a);
  promise_gates(kernel, a, gates);
  for_each_row(
      kernel, u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = a.extent_int(1);
        const float g = factor(gates, n);
        along(
            team, width,
            [&](int f) {
              return Column{u(n, f), u(n, width + f), 0.0f};
            },
            [&](int f, const Column& at) {
              a(n, f) = g * (gate_of<gelu>(at.gate).value * at.value);
            });
      });
}

template <bool gelu, class Storage>
void backward(const char* kernel, const ConstMatrixOf<Storage>& u, const ConstMatrixOf<Storage>& da,
              const MatrixOf<Storage>& du, const ConstVector& gates, const Vector& d_gates) {
  promise_swiglu(kernel, u, da);
  promise_swiglu(kernel, du, da);
  promise_gates(kernel, da, gates);
  promise_gates(kernel, da, d_gates);
  for_each_row(
      kernel, u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = da.extent_int(1);
        const float g = factor(gates, n);
        float d_gate = 0.0f;
        along(
            team, width,
            [&](int f) {
              return Column{u(n, f), u(n, width + f), da(n, f)};
            },
            [&](int f, const Column& at) {
              const Gate gate = gate_of<gelu>(at.gate);
              const float scaled = g * at.grad;
              du(n, width + f) = scaled * gate.value;
              du(n, f) = scaled * at.value * gate.slope;
              d_gate += at.grad * (gate.value * at.value);
            });
        if (d_gates.data() == nullptr) return;
        d_gate = of_row(team, d_gate, [](float a, float b) { return a + b; });
        Kokkos::single(Kokkos::PerTeam(team), [&]() { d_gates(n) = d_gate; });
      });
}

}  // namespace

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates) {
  forward<false, Storage>("swiglu_forward", u, a, gates);
}

template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du,
                     ConstVector gates, Vector d_gates) {
  backward<false, Storage>("swiglu_backward", u, da, du, gates, d_gates);
}

template <class Storage>
void geglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  forward<true, Storage>("geglu_forward", u, a, {});
}

template <class Storage>
void geglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<true, Storage>("geglu_backward", u, da, du, {}, {});
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
