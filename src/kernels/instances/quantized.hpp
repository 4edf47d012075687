/// @file The storages that quantized.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void dequantize<float>(Quantization, const std::byte*, VectorOf<float>);
template void dequantize<bfloat16>(Quantization, const std::byte*, VectorOf<bfloat16>);
template void dequantize<float16>(Quantization, const std::byte*, VectorOf<float16>);
template void affine_forward<float>(ConstMatrixOf<float>, const QuantizedMatrix&,
                                    ConstVectorOf<float>, ConstMatrixOf<float>, MatrixOf<float>);
template void affine_forward<bfloat16>(ConstMatrixOf<bfloat16>, const QuantizedMatrix&,
                                       ConstVectorOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                       MatrixOf<bfloat16>);
template void affine_forward<float16>(ConstMatrixOf<float16>, const QuantizedMatrix&,
                                      ConstVectorOf<float16>, ConstMatrixOf<float16>,
                                      MatrixOf<float16>);
template bool takes_blocks<float>(std::int64_t);
template bool takes_blocks<bfloat16>(std::int64_t);
template bool takes_blocks<float16>(std::int64_t);

}  // namespace brume::kernels
