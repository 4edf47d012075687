#include "kernels/swiglu.hpp"

#include "kernels/activations.hpp"
#include "kernels/host/loops.hpp"

namespace brume::kernels {

namespace {

/// g of a row
inline float factor(const ConstVector& gates, std::int64_t n) {
  return gates.data() != nullptr ? gates(n) : 1.0f;
}

/// a = g value_of(gate) value
template <class Storage, class Value>
void forward(const char* kernel, const ConstMatrixOf<Storage>& u, const MatrixOf<Storage>& a,
             const ConstVector& gates, Value value_of) {
  promise_swiglu(kernel, u, a);
  promise_gates(kernel, a, gates);
  const int width = a.extent_int(1);
  for_each(kernel, u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    Storage* const out = &a(n, 0);
    const float g = factor(gates, n);
#pragma omp simd
    for (int f = 0; f < width; ++f) out[f] = g * (value_of(gate[f]) * value[f]);
  });
}

/// The gradient of the above, where gate_of gives value_of and its slope.
template <class Storage, class GateOf>
void backward(const char* kernel, const ConstMatrixOf<Storage>& u, const ConstMatrixOf<Storage>& da,
              const MatrixOf<Storage>& du, const ConstVector& gates, const Vector& d_gates,
              GateOf gate_of) {
  promise_swiglu(kernel, u, da);
  promise_swiglu(kernel, du, da);
  promise_gates(kernel, da, gates);
  promise_gates(kernel, da, d_gates);
  const int width = da.extent_int(1);
  for_each(kernel, u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    const Storage* const grad = &da(n, 0);
    Storage* const d_gate = &du(n, 0);
    Storage* const d_value = d_gate + width;
    if (d_gates.data() != nullptr)  // before du, which may be u
      d_gates(n) =
          sum_terms(width, [=](int f) { return grad[f] * (gate_of(gate[f]).value * value[f]); });
    const float g = factor(gates, n);
#pragma omp simd
    for (int f = 0; f < width; ++f) {
      const Gate at = gate_of(gate[f]);
      const float scaled = g * grad[f], through_gate = scaled * value[f] * at.slope;
      d_value[f] = scaled * at.value;
      d_gate[f] = through_gate;
    }
  });
}

}  // namespace

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates) {
  forward<Storage>("swiglu_forward", u, a, gates,
                   [](float z) { return z / (1.0f + vector_exp(-z)); });
}

template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du,
                     ConstVector gates, Vector d_gates) {
  backward<Storage>("swiglu_backward", u, da, du, gates, d_gates, [](float z) { return silu(z); });
}

template <class Storage>
void geglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  forward<Storage>("geglu_forward", u, a, {}, [](float z) { return gelu_tanh(z); });
}

template <class Storage>
void geglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<Storage>("geglu_backward", u, da, du, {}, {}, [](float z) { return gelu_gate(z); });
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
