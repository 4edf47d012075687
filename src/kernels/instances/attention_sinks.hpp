/// @file The storages that attention_sinks.cpp is made for, on hosts and devices: included at its
/// end.

namespace brume::kernels {

template void attention_backward_sinks<float>(const AttentionShape&, ConstVectorOf<float>,
                                              ConstMatrixOf<float>, ConstVector,
                                              ConstMatrixOf<float>, Write, Vector);
template void attention_backward_sinks<bfloat16>(const AttentionShape&, ConstVectorOf<bfloat16>,
                                                 ConstMatrixOf<bfloat16>, ConstVector,
                                                 ConstMatrixOf<bfloat16>, Write, Vector);
template void attention_backward_sinks<float16>(const AttentionShape&, ConstVectorOf<float16>,
                                                ConstMatrixOf<float16>, ConstVector,
                                                ConstMatrixOf<float16>, Write, Vector);

}  // namespace brume::kernels
