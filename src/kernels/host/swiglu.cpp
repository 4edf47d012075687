#include "kernels/swiglu.hpp"

#include "kernels/activations.hpp"
#include "kernels/host/loops.hpp"

namespace brume::kernels {

namespace {

/// g of a row
inline float factor(const ConstVector& gates, std::int64_t n) {
  return gates.data() != nullptr ? gates(n) : 1.0f;
}

/// a = g product_of(gate, value)
template <class Storage, class Product>
void forward(const char* kernel, const ConstMatrixOf<Storage>& u, const MatrixOf<Storage>& a,
             const ConstVector& gates, Product product_of) {
  promise_swiglu(kernel, u, a);
  promise_gates(kernel, a, gates);
  const int width = a.extent_int(1);
  for_each(kernel, u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    Storage* const out = &a(n, 0);
    const float g = factor(gates, n);
#pragma omp simd
    for (int f = 0; f < width; ++f) out[f] = g * product_of(gate[f], value[f]);
  });
}

/// The gradient of the above, where parts_of gives a gate and its value's factor with their slopes.
template <class Storage, class Parts>
void backward(const char* kernel, const ConstMatrixOf<Storage>& u, const ConstMatrixOf<Storage>& da,
              const MatrixOf<Storage>& du, const ConstVector& gates, const Vector& d_gates,
              Write write, Parts parts_of) {
  promise_swiglu(kernel, u, da);
  promise_swiglu(kernel, du, da);
  promise_gates(kernel, da, gates);
  promise_gates(kernel, da, d_gates);
  const int width = da.extent_int(1);
  const bool adds = write == Write::accumulate;
  for_each(kernel, u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    const Storage* const grad = &da(n, 0);
    Storage* const d_gate = &du(n, 0);
    Storage* const d_value = d_gate + width;
    if (d_gates.data() != nullptr) {  // before du, which may be u
      const float sum = sum_terms(width, [=](int f) {
        const GatedValue at = parts_of(gate[f], value[f]);
        return grad[f] * (at.gate.value * at.factor);
      });
      d_gates(n) = adds ? d_gates(n) + sum : sum;
    }
    const float g = factor(gates, n);
#pragma omp simd
    for (int f = 0; f < width; ++f) {
      const GatedValue at = parts_of(gate[f], value[f]);
      const float scaled = g * grad[f], through_gate = scaled * at.factor * at.gate.slope;
      d_value[f] = scaled * at.gate.value * at.factor_slope;
      d_gate[f] = through_gate;
    }
  });
}

}  // namespace

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates) {
  forward<Storage>("swiglu_forward", u, a, gates,
                   [](float z, float value) { return z / (1.0f + vector_exp(-z)) * value; });
}

template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du,
                     ConstVector gates, Vector d_gates, Write write) {
  backward<Storage>("swiglu_backward", u, da, du, gates, d_gates, write, [](float z, float value) {
    return GatedValue{silu(z), value, 1.0f};
  });
}

template <class Storage>
void geglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  forward<Storage>("geglu_forward", u, a, {},
                   [](float z, float value) { return gelu_tanh(z) * value; });
}

template <class Storage>
void geglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  backward<Storage>("geglu_backward", u, da, du, {}, {}, Write::replace, [](float z, float value) {
    return GatedValue{gelu_gate(z), value, 1.0f};
  });
}

template <class Storage>
void clamped_swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates) {
  forward<Storage>("clamped_swiglu_forward", u, a, gates, [](float z, float value) {
    const GatedValue at = clamped(z, value);
    return at.gate.value * at.factor;
  });
}

template <class Storage>
void clamped_swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da,
                             MatrixOf<Storage> du, ConstVector gates, Vector d_gates, Write write) {
  backward<Storage>("clamped_swiglu_backward", u, da, du, gates, d_gates, write,
                    [](float z, float value) { return clamped(z, value); });
}

}  // namespace brume::kernels

#include "kernels/instances/swiglu.hpp"
