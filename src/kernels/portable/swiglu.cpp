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

enum class Activation { silu, gelu, clamped };

/// A gate and its value's factor.
template <Activation kind>
KOKKOS_INLINE_FUNCTION GatedValue parts_of(float z, float value) {
  if constexpr (kind == Activation::clamped) return clamped(z, value);
  if constexpr (kind == Activation::gelu) return {gelu_gate(z), value, 1.0f};
  return {silu(z), value, 1.0f};
}

template <Activation kind, class Storage>
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
              const GatedValue parts = parts_of<kind>(at.gate, at.value);
              a(n, f) = g * (parts.gate.value * parts.factor);
            });
      });
}

template <Activation kind, class Storage>
void backward(const char* kernel, const ConstMatrixOf<Storage>& u, const ConstMatrixOf<Storage>& da,
              const MatrixOf<Storage>& du, const ConstVector& gates, const Vector& d_gates,
              Write write) {
  promise_swiglu(kernel, u, da);
  promise_swiglu(kernel, du, da);
  promise_gates(kernel, da, gates);
  promise_gates(kernel, da, d_gates);
  const bool adds = write == Write::accumulate;
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
              const GatedValue parts = parts_of<kind>(at.gate, at.value);
              const float scaled = g * at.grad;
              du(n, width + f) = scaled * parts.gate.value * parts.factor_slope;
              du(n, f) = scaled * parts.factor * parts.gate.slope;
              d_gate += at.grad * (parts.gate.value * parts.factor);
            });
        if (d_gates.data() == nullptr) return;
        d_gate = of_row(team, d_gate, [](float a, float b) { return a + b; });
        Kokkos::single(Kokkos::PerTeam(team),
                       [&]() { d_gates(n) = adds ? d_gates(n) + d_gate : d_gate; });
      });
}

}  // namespace

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates) {
  forward<Activation::silu, Storage>("swiglu_forward", u, a, gates);
}

template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du,
                     ConstVector gates, Vector d_gates, Write write) {
  backward<Activation::silu, Storage>("swiglu_backward", u, da, du, gates, d_gates, write);
}

template <class Storage>
void geglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  forward<Activation::gelu, Storage>("geglu_forward", u, a, {});
}

template <class Storage>
void geglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<Activation::gelu, Storage>("geglu_backward", u, da, du, {}, {}, Write::replace);
}

template <class Storage>
void clamped_swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates) {
  forward<Activation::clamped, Storage>("clamped_swiglu_forward", u, a, gates);
}

template <class Storage>
void clamped_swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da,
                             MatrixOf<Storage> du, ConstVector gates, Vector d_gates, Write write) {
  backward<Activation::clamped, Storage>("clamped_swiglu_backward", u, da, du, gates, d_gates,
                                         write);
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
