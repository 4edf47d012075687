/// @file Both forms of GELU.
#include "kernels/activations.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

struct Tanh {
  static constexpr float value(float z) { return gelu_tanh(z); }
  static constexpr float slope(float z) { return gelu_tanh_slope(z); }
};
struct Erf {
  static constexpr float value(float z) { return gelu_erf(z); }
  static constexpr float slope(float z) { return gelu_erf_slope(z); }
};

/// What the form is of: u[n,f] + bias[f], where there is a bias.
template <class Storage>
KOKKOS_INLINE_FUNCTION float argument(const ConstMatrixOf<Storage>& u,
                                      const ConstVectorOf<Storage>& bias, int n, int f) {
  return u(n, f) + optional(bias.data(), &u(n, 0), f);
}

/// What a gradient is made of.
struct Operands {
  float z, grad;
};

template <class Form, class Storage>
void forward(const char* kernel, const ConstMatrixOf<Storage>& u,
             const ConstVectorOf<Storage>& bias, const MatrixOf<Storage>& a) {
  promise_activation(kernel, u, bias, a);
  for_each_row(
      kernel, u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        along(
            team, u.extent_int(1), [&](int f) { return argument<Storage>(u, bias, n, f); },
            [&](int f, float z) { a(n, f) = Form::value(z); });
      });
}

template <class Form, class Storage>
void backward(const char* kernel, const ConstMatrixOf<Storage>& u,
              const ConstVectorOf<Storage>& bias, const ConstMatrixOf<Storage>& da,
              const MatrixOf<Storage>& du) {
  promise_activation(kernel, u, bias, da);
  promise_activation(kernel, u, bias, du);
  for_each_row(
      kernel, u.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        along(
            team, u.extent_int(1),
            [&](int f) {
              return Operands{argument<Storage>(u, bias, n, f), da(n, f)};
            },
            [&](int f, const Operands& at) { du(n, f) = at.grad * Form::slope(at.z); });
      });
}

}  // namespace

template <class Storage>
void gelu_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a) {
  forward<Tanh, Storage>("gelu_forward", u, bias, a);
}

template <class Storage>
void gelu_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, ConstMatrixOf<Storage> da,
                   MatrixOf<Storage> du) {
  backward<Tanh, Storage>("gelu_backward", u, bias, da, du);
}

template <class Storage>
void gelu_erf_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a) {
  forward<Erf, Storage>("gelu_erf_forward", u, bias, a);
}

template <class Storage>
void gelu_erf_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias,
                       ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<Erf, Storage>("gelu_erf_backward", u, bias, da, du);
}

}  // namespace brume::kernels

#include "kernels/instances/gelu.hpp"
