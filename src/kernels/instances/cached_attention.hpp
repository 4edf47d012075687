/// @file The storages that cached_attention.cpp is made for, on hosts and devices: included at its
/// end.

namespace brume::kernels {

template void cached_attention<float>(const AttentionShape&, ConstMatrixOf<float>,
                                      const KeyCache<float>&, MatrixOf<float>,
                                      ConstVectorOf<float>);
template void cached_attention<bfloat16>(const AttentionShape&, ConstMatrixOf<bfloat16>,
                                         const KeyCache<bfloat16>&, MatrixOf<bfloat16>,
                                         ConstVectorOf<bfloat16>);
template void cached_attention<float16>(const AttentionShape&, ConstMatrixOf<float16>,
                                        const KeyCache<float16>&, MatrixOf<float16>,
                                        ConstVectorOf<float16>);

}  // namespace brume::kernels
