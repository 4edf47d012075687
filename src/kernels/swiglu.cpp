#include "kernels/swiglu.hpp"

#include "kernels/host.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {

template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  promise(u.extent(0) == a.extent(0) && u.extent(1) == 2 * a.extent(1), "swiglu_forward",
          "u [N, 2 F] and a [N, F] must fit");
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
  promise(u.extent(0) == da.extent(0) && u.extent(1) == 2 * da.extent(1) && same_extents(u, du),
          "swiglu_backward", "u [N, 2 F], da [N, F] and du [N, 2 F] must fit");
  const int width = da.extent_int(1);
  for_each("swiglu_backward", u.extent(0), [=](std::int64_t n) {
    const Storage* const gate = &u(n, 0);
    const Storage* const value = gate + width;
    const Storage* const grad = &da(n, 0);
    Storage* const d_gate = &du(n, 0);
    Storage* const d_value = d_gate + width;
#pragma omp simd
    for (int f = 0; f < width; ++f) {
      // 1 - s as e^-z s: no digits cancel for large z.
      const float z = gate[f], decay = vector_exp(-z), s = 1.0f / (1.0f + decay);
      const float slope = s + z * s * (decay * s);
      const float through_gate = grad[f] * value[f] * slope;
      d_value[f] = grad[f] * (z * s);
      d_gate[f] = through_gate;
    }
  });
}

template void swiglu_forward<float>(ConstMatrixOf<float>, MatrixOf<float>);
template void swiglu_forward<bfloat16>(ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void swiglu_backward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, MatrixOf<float>);
template void swiglu_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                        MatrixOf<bfloat16>);

}  // namespace brume::kernels
