#include "kernels/swiglu.hpp"

#include "kernels/activations.hpp"
#include "kernels/host/loops.hpp"

namespace brume::kernels {

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  promise_swiglu("swiglu_forward", u, a);
  const int width = a.extent_int(1);
  for_each("swiglu_forward", u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    Storage* const out = &a(n, 0);
#pragma omp simd
    for (int f = 0; f < width; ++f) out[f] = gate[f] / (1.0f + vector_exp(-gate[f])) * value[f];
  });
}

template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  promise_swiglu("swiglu_backward", u, da);
  promise_swiglu("swiglu_backward", du, da);
  const int width = da.extent_int(1);
  for_each("swiglu_backward", u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    const Storage* const grad = &da(n, 0);
    Storage* const d_gate = &du(n, 0);
    Storage* const d_value = d_gate + width;
#pragma omp simd
    for (int f = 0; f < width; ++f) {
      const Gate at = silu(gate[f]);
      const float through_gate = grad[f] * value[f] * at.slope;
      d_value[f] = grad[f] * at.value;
      d_gate[f] = through_gate;
    }
  });
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
