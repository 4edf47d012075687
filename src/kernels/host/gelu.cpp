/// @file Both forms of GELU.
#include "kernels/activations.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/pointwise.hpp"

namespace brume::kernels {
namespace {

/// a[n,f] = formula(u[n,f] + bias[f])
template <class Storage, class Formula>
void forward(const char* kernel, const ConstMatrixOf<Storage>& u,
             const ConstVectorOf<Storage>& bias, const MatrixOf<Storage>& a, Formula formula) {
  promise_activation(kernel, u, bias, a);
  const int width = u.extent_int(1);
  for_each(kernel, u.extent(0), [=](std::int64_t n) {
    const Storage* const in = &u(n, 0);
    const Storage* const b = bias.data();
    Storage* const out = &a(n, 0);
    if (b == nullptr) {
#pragma omp simd
      for (int f = 0; f < width; ++f) out[f] = formula(in[f]);
    } else {
#pragma omp simd
      for (int f = 0; f < width; ++f) out[f] = formula(in[f] + b[f]);
    }
  });
}

/// du[n,f] = da[n,f] slope(u[n,f] + bias[f])
template <class Storage, class Slope>
void backward(const char* kernel, const ConstMatrixOf<Storage>& u,
              const ConstVectorOf<Storage>& bias, const ConstMatrixOf<Storage>& da,
              const MatrixOf<Storage>& du, Slope slope) {
  promise_activation(kernel, u, bias, da);
  promise_activation(kernel, u, bias, du);
  const int width = u.extent_int(1);
  for_each(kernel, u.extent(0), [=](std::int64_t n) {
    const Storage* const in = &u(n, 0);
    const Storage* const b = bias.data();
    const Storage* const grad = &da(n, 0);
    Storage* const out = &du(n, 0);
    if (b == nullptr) {
#pragma omp simd
      for (int f = 0; f < width; ++f) out[f] = grad[f] * slope(in[f]);
    } else {
#pragma omp simd
      for (int f = 0; f < width; ++f) out[f] = grad[f] * slope(in[f] + b[f]);
    }
  });
}

}  // namespace

template <class Storage>
void gelu_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a) {
  forward<Storage>("gelu_forward", u, bias, a, [](float z) { return gelu_tanh(z); });
}

template <class Storage>
void gelu_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, ConstMatrixOf<Storage> da,
                   MatrixOf<Storage> du) {
  backward<Storage>("gelu_backward", u, bias, da, du, [](float z) { return gelu_tanh_slope(z); });
}

template <class Storage>
void gelu_erf_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a) {
  forward<Storage>("gelu_erf_forward", u, bias, a, [](float z) { return gelu_erf(z); });
}

template <class Storage>
void gelu_erf_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias,
                       ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<Storage>("gelu_erf_backward", u, bias, da, du,
                    [](float z) { return gelu_erf_slope(z); });
}

}  // namespace brume::kernels

#include "kernels/instances/gelu.hpp"
