#include "kernels/host.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {
namespace {

// (1 + tanh(t)) / 2 = 1 / (1 + e^-2t), so gelu(z) = z s(z) with s = 1 / (1 + e^-w) and
// w = 2 sqrt(2/pi) (z + 0.044715 z^3). No digits cancel for negative z, as they would in 1 + tanh.
constexpr float slope = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float cubic = 0.044715f;

inline float gelu(float z) {
  const float w = slope * z * (1.0f + cubic * z * z);
  return z / (1.0f + vector_exp(-w));
}

/// gelu'(z) = s + z s (1 - s) w'(z),  1 - s = e^-w s
inline float gelu_slope(float z) {
  const float decay = vector_exp(-slope * z * (1.0f + cubic * z * z));
  const float s = 1.0f / (1.0f + decay);
  return s + z * s * (decay * s) * (slope * (1.0f + 3.0f * cubic * z * z));
}

}  // namespace

template <class Storage>
void gelu_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a) {
  promise(same_extents(u, a) && bias.extent(0) == u.extent(1), "gelu_forward",
          "u [N, F], bias [F] and a [N, F] must fit");
  const int width = u.extent_int(1);
  for_each("gelu_forward", u.extent(0), [=](std::int64_t n) {
    const Storage* const in = &u(n, 0);
    const Storage* const b = bias.data();
    Storage* const out = &a(n, 0);
#pragma omp simd
    for (int f = 0; f < width; ++f) out[f] = gelu(in[f] + b[f]);
  });
}

template <class Storage>
void gelu_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, ConstMatrixOf<Storage> da,
                   MatrixOf<Storage> du) {
  promise(same_extents(u, da) && same_extents(u, du) && bias.extent(0) == u.extent(1),
          "gelu_backward", "u [N, F], bias [F], da [N, F] and du [N, F] must fit");
  const int width = u.extent_int(1);
  for_each("gelu_backward", u.extent(0), [=](std::int64_t n) {
    const Storage* const in = &u(n, 0);
    const Storage* const b = bias.data();
    const Storage* const grad = &da(n, 0);
    Storage* const out = &du(n, 0);
#pragma omp simd
    for (int f = 0; f < width; ++f) out[f] = grad[f] * gelu_slope(in[f] + b[f]);
  });
}

template void gelu_forward<float>(ConstMatrixOf<float>, ConstVectorOf<float>, MatrixOf<float>);
template void gelu_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                     MatrixOf<bfloat16>);
template void gelu_backward<float>(ConstMatrixOf<float>, ConstVectorOf<float>, ConstMatrixOf<float>,
                                   MatrixOf<float>);
template void gelu_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                      ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);

}  // namespace brume::kernels
