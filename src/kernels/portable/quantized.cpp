#include "kernels/quantized.hpp"

#include "kernels/portable/launch.hpp"

namespace brume::kernels {

template <class Storage>
void dequantize(Quantization format, const std::byte* blocks, VectorOf<Storage> values) {
  promise(values.size() % quantized_block == 0, "dequantize", "values must be whole blocks");
  const int bytes = block_bytes(format);
  for_each(
      "dequantize", values.size(), KOKKOS_LAMBDA(std::int64_t i) {
        const std::byte* const block = blocks + i / quantized_block * bytes;
        const float scale = *reinterpret_cast<const float*>(block);
        const float value = unscaled_value(format, block + sizeof scale, int(i % quantized_block));
        values(i) = Storage(scale * value);
      });
}

// Devices have no such products: a copy of the values is made for each.
template <class Storage>
void affine_forward(ConstMatrixOf<Storage>, const QuantizedMatrix&, ConstVectorOf<Storage>,
                    ConstMatrixOf<Storage>, MatrixOf<Storage>) {
  promise(false, "affine_forward", "devices multiply no blocks");
}

template <class Storage>
bool takes_blocks(std::int64_t) {
  return false;
}

}  // namespace brume::kernels

#include "kernels/instances/quantized.hpp"
