/// @file The storages that swiglu.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void swiglu_forward<float>(ConstMatrixOf<float>, MatrixOf<float>, ConstVector);
template void swiglu_forward<bfloat16>(ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>, ConstVector);
template void swiglu_forward<float16>(ConstMatrixOf<float16>, MatrixOf<float16>, ConstVector);
template void swiglu_backward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, MatrixOf<float>,
                                     ConstVector, Vector, Write);
template void swiglu_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                        MatrixOf<bfloat16>, ConstVector, Vector, Write);
template void swiglu_backward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                       MatrixOf<float16>, ConstVector, Vector, Write);
template void clamped_swiglu_forward<float>(ConstMatrixOf<float>, MatrixOf<float>, ConstVector);
template void clamped_swiglu_forward<bfloat16>(ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>,
                                               ConstVector);
template void clamped_swiglu_forward<float16>(ConstMatrixOf<float16>, MatrixOf<float16>,
                                              ConstVector);
template void clamped_swiglu_backward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                             MatrixOf<float>, ConstVector, Vector, Write);
template void clamped_swiglu_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                                MatrixOf<bfloat16>, ConstVector, Vector, Write);
template void clamped_swiglu_backward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                               MatrixOf<float16>, ConstVector, Vector, Write);
template void geglu_forward<float>(ConstMatrixOf<float>, MatrixOf<float>);
template void geglu_forward<bfloat16>(ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void geglu_forward<float16>(ConstMatrixOf<float16>, MatrixOf<float16>);
template void geglu_backward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, MatrixOf<float>);
template void geglu_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                       MatrixOf<bfloat16>);
template void geglu_backward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                      MatrixOf<float16>);

}  // namespace brume::kernels
