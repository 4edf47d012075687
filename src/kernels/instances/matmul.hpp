/// @file The storages that matmul.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void linear_forward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, Write,
                                    MatrixOf<float>, Factors);
template void linear_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>, Write,
                                       MatrixOf<bfloat16>, Factors);
template void linear_forward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>, Write,
                                      MatrixOf<float16>, Factors);
template void linear_backward_input<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, Write,
                                           MatrixOf<float>, Factors);
template void linear_backward_input<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                              Write, MatrixOf<bfloat16>, Factors);
template void linear_backward_input<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>, Write,
                                             MatrixOf<float16>, Factors);
template void linear_backward_weight<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, Write,
                                            Matrix, Factors);
template void linear_backward_weight<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                               Write, Matrix, Factors);
template void linear_backward_weight<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>, Write,
                                              Matrix, Factors);

template void affine_forward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                    ConstVectorOf<float>, ConstMatrixOf<float>, MatrixOf<float>,
                                    Factors);
template void affine_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                       ConstVectorOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                       MatrixOf<bfloat16>, Factors);
template void affine_forward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                      ConstVectorOf<float16>, ConstMatrixOf<float16>,
                                      MatrixOf<float16>, Factors);
template void affine_backward_parameters<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, Write,
                                                Matrix, Vector, Factors);
template void affine_backward_parameters<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                                   Write, Matrix, Vector, Factors);
template void affine_backward_parameters<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                                  Write, Matrix, Vector, Factors);
template void gelu_affine_forward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                         ConstVectorOf<float>, MatrixOf<float>, MatrixOf<float>,
                                         Factors);
template void gelu_affine_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                            ConstVectorOf<bfloat16>, MatrixOf<bfloat16>,
                                            MatrixOf<bfloat16>, Factors);
template void gelu_affine_forward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                           ConstVectorOf<float16>, MatrixOf<float16>,
                                           MatrixOf<float16>, Factors);
template void gelu_affine_backward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                          ConstMatrixOf<float>, MatrixOf<float>, Factors);
template void gelu_affine_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                             ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>, Factors);
template void gelu_affine_backward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                            ConstMatrixOf<float16>, MatrixOf<float16>, Factors);

}  // namespace brume::kernels
