#include "kernels/swiglu.hpp"

#include "kernels/activations.hpp"
#include "kernels/host/loops.hpp"

namespace brume::kernels {

namespace {

/// a = value_of(gate) value
template <class Storage, class Value>
void forward(const char* kernel, const ConstMatrixOf<Storage>& u, const MatrixOf<Storage>& a,
             Value value_of) {
  promise_swiglu(kernel, u, a);
  const int width = a.extent_int(1);
  for_each(kernel, u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    Storage* const out = &a(n, 0);
#pragma omp simd
    for (int f = 0; f < width; ++f) out[f] = value_of(gate[f]) * value[f];
  });
}

/// The gradient of the above, where gate_of gives value_of and its slope.
template <class Storage, class GateOf>
void backward(const char* kernel, const ConstMatrixOf<Storage>& u, const ConstMatrixOf<Storage>& da,
              const MatrixOf<Storage>& du, GateOf gate_of) {
  promise_swiglu(kernel, u, da);
  promise_swiglu(kernel, du, da);
  const int width = da.extent_int(1);
  for_each(kernel, u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    const Storage* const grad = &da(n, 0);
    Storage* const d_gate = &du(n, 0);
    Storage* const d_value = d_gate + width;
#pragma omp simd
    for (int f = 0; f < width; ++f) {
      const Gate at = gate_of(gate[f]);
      const float through_gate = grad[f] * value[f] * at.slope;
      d_value[f] = grad[f] * at.value;
      d_gate[f] = through_gate;
    }
  });
}

}  // namespace

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  forward<Storage>("swiglu_forward", u, a, [](float z) { return z / (1.0f + vector_exp(-z)); });
}

template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<Storage>("swiglu_backward", u, da, du, [](float z) { return silu(z); });
}

template <class Storage>
void geglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  forward<Storage>("geglu_forward", u, a, [](float z) { return gelu_tanh(z); });
}

template <class Storage>
void geglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<Storage>("geglu_backward", u, da, du, [](float z) { return gelu_gate(z); });
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
