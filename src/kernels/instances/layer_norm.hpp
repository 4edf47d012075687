/// @file The storages that layer_norm.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void layer_norm_forward<float>(ConstMatrixOf<float>, ConstVectorOf<float>,
                                        ConstVectorOf<float>, float, MatrixOf<float>, Vector,
                                        Vector);
template void layer_norm_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                           ConstVectorOf<bfloat16>, float, MatrixOf<bfloat16>,
                                           Vector, Vector);
template void layer_norm_forward<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>,
                                          ConstVectorOf<float16>, float, MatrixOf<float16>, Vector,
                                          Vector);
template void layer_norm_apply<float>(ConstMatrixOf<float>, ConstVectorOf<float>,
                                      ConstVectorOf<float>, ConstVector, ConstVector,
                                      MatrixOf<float>);
template void layer_norm_apply<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                         ConstVectorOf<bfloat16>, ConstVector, ConstVector,
                                         MatrixOf<bfloat16>);
template void layer_norm_apply<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>,
                                        ConstVectorOf<float16>, ConstVector, ConstVector,
                                        MatrixOf<float16>);
template void layer_norm_backward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                         ConstVectorOf<float>, ConstVector, ConstVector,
                                         ConstMatrixOf<float>, MatrixOf<float>, Write, Vector,
                                         Vector);
template void layer_norm_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                            ConstVectorOf<bfloat16>, ConstVector, ConstVector,
                                            ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>, Write,
                                            Vector, Vector);
template void layer_norm_backward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                           ConstVectorOf<float16>, ConstVector, ConstVector,
                                           ConstMatrixOf<float16>, MatrixOf<float16>, Write, Vector,
                                           Vector);

}  // namespace brume::kernels
