/// @file The storages that rms_norm.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void rms_norm_forward<float>(ConstMatrixOf<float>, ConstVectorOf<float>, float,
                                      MatrixOf<float>, Vector, float, ConstMatrixOf<float>);
template void rms_norm_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>, float,
                                         MatrixOf<bfloat16>, Vector, float,
                                         ConstMatrixOf<bfloat16>);
template void rms_norm_forward<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>, float,
                                        MatrixOf<float16>, Vector, float, ConstMatrixOf<float16>);
template void rms_norm_apply<float>(ConstMatrixOf<float>, ConstVectorOf<float>, ConstVector,
                                    MatrixOf<float>, float);
template void rms_norm_apply<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                       ConstVector, MatrixOf<bfloat16>, float);
template void rms_norm_apply<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>, ConstVector,
                                      MatrixOf<float16>, float);
template void rms_norm_backward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                       ConstVectorOf<float>, ConstVector, ConstMatrixOf<float>,
                                       MatrixOf<float>, Write, Vector, float);
template void rms_norm_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                          ConstVectorOf<bfloat16>, ConstVector,
                                          ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>, Write,
                                          Vector, float);
template void rms_norm_backward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                         ConstVectorOf<float16>, ConstVector,
                                         ConstMatrixOf<float16>, MatrixOf<float16>, Write, Vector,
                                         float);

}  // namespace brume::kernels
