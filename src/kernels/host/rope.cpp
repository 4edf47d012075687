#include "kernels/rope.hpp"

#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

/// @param direction  1 forwards, -1 backwards
template <class Storage>
void turn(const char* kernel, const ConstMatrix& table, int head_dim, const MatrixOf<Storage>& x,
          const Documents& documents, float direction) {
  promise_rope(kernel, table, head_dim, x);
  const int half = table.extent_int(1) / 2;
  const std::int64_t length = table.extent(0);
  const int width = x.extent_int(1);
  for_each(kernel, x.extent(0), [=](std::int64_t n) {
    const float* const cosine = &table(documents.place(n, length), 0);
    const float* const sine = cosine + half;
    for (int first = 0; first < width; first += head_dim) {
      Storage* const low = &x(n, first);
      Storage* const high = low + half;
#pragma omp simd
      for (int i = 0; i < half; ++i) {
        const float a = low[i], b = high[i], s = direction * sine[i];
        low[i] = a * cosine[i] - b * s;
        high[i] = b * cosine[i] + a * s;
      }
    }
  });
}

}  // namespace

template <class Storage>
void rope_forward(ConstMatrix table, int head_dim, MatrixOf<Storage> x, Documents documents) {
  turn<Storage>("rope_forward", table, head_dim, x, documents, 1.0f);
}

template <class Storage>
void rope_backward(ConstMatrix table, int head_dim, MatrixOf<Storage> dx, Documents documents) {
  turn<Storage>("rope_backward", table, head_dim, dx, documents, -1.0f);
}

}  // namespace brume::kernels

#include "kernels/instances/rope.hpp"
