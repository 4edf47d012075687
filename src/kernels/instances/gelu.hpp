/// @file The storages that gelu.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void gelu_forward<float>(ConstMatrixOf<float>, ConstVectorOf<float>, MatrixOf<float>);
template void gelu_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                     MatrixOf<bfloat16>);
template void gelu_forward<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>,
                                    MatrixOf<float16>);
template void gelu_backward<float>(ConstMatrixOf<float>, ConstVectorOf<float>, ConstMatrixOf<float>,
                                   MatrixOf<float>);
template void gelu_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                      ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void gelu_backward<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>,
                                     ConstMatrixOf<float16>, MatrixOf<float16>);
template void gelu_erf_forward<float>(ConstMatrixOf<float>, ConstVectorOf<float>, MatrixOf<float>);
template void gelu_erf_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                         MatrixOf<bfloat16>);
template void gelu_erf_forward<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>,
                                        MatrixOf<float16>);
template void gelu_erf_backward<float>(ConstMatrixOf<float>, ConstVectorOf<float>,
                                       ConstMatrixOf<float>, MatrixOf<float>);
template void gelu_erf_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                          ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void gelu_erf_backward<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>,
                                         ConstMatrixOf<float16>, MatrixOf<float16>);

}  // namespace brume::kernels
