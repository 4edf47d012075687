#include <utility>

#include "kernels/matmul.hpp"
#include "kernels/muon.hpp"
#include "kernels/promises.hpp"

namespace brume::kernels {

template <class Storage>
MatrixOf<Storage> orthogonalize(MatrixOf<Storage> x, MatrixOf<Storage> spare,
                                MatrixOf<Storage> gram, MatrixOf<Storage> gram_squared,
                                int iterations) {
  promise(x.extent(0) <= x.extent(1) && same_extents(x, spare) &&
              same_extents(gram, gram_squared) && gram.extent(0) == x.extent(0) &&
              gram.extent(1) == x.extent(0),
          "orthogonalize", "x and spare must be [m, n] with m <= n, both Gram matrices [m, m]");
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  for (int i = 0; i < iterations; ++i) {
    linear_forward<Storage>(x, x, Write::replace, gram);
    linear_forward<Storage>(gram, gram, Write::replace, gram_squared);
    scale_add<Storage>(b, gram, c, gram_squared);
    linear_backward_input<Storage>(gram_squared, x, Write::replace, spare);
    scale_add<Storage>(a, x, 1.0f, spare);
    std::swap(x, spare);
  }
  return x;
}

template MatrixOf<float> orthogonalize<float>(MatrixOf<float>, MatrixOf<float>, MatrixOf<float>,
                                              MatrixOf<float>, int);
template MatrixOf<bfloat16> orthogonalize<bfloat16>(MatrixOf<bfloat16>, MatrixOf<bfloat16>,
                                                    MatrixOf<bfloat16>, MatrixOf<bfloat16>, int);
template MatrixOf<float16> orthogonalize<float16>(MatrixOf<float16>, MatrixOf<float16>,
                                                  MatrixOf<float16>, MatrixOf<float16>, int);

}  // namespace brume::kernels
