/// @file The storages that experts.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void router_forward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, Matrix,
                                    ConstVectorOf<float>);
template void router_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>, Matrix,
                                       ConstVectorOf<bfloat16>);
template void router_forward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>, Matrix,
                                      ConstVectorOf<float16>);
template void router_backward<float>(ConstMatrix, ConstMatrixOf<float>, ConstMatrixOf<float>, Write,
                                     Matrix, MatrixOf<float>);
template void router_backward<bfloat16>(ConstMatrix, ConstMatrixOf<bfloat16>,
                                        ConstMatrixOf<bfloat16>, Write, Matrix, MatrixOf<bfloat16>);
template void router_backward<float16>(ConstMatrix, ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                       Write, Matrix, MatrixOf<float16>);
template void sigmoid_forward<float>(ConstMatrixOf<float>, Vector);
template void sigmoid_forward<bfloat16>(ConstMatrixOf<bfloat16>, Vector);
template void sigmoid_forward<float16>(ConstMatrixOf<float16>, Vector);
template void sigmoid_backward<float>(ConstMatrixOf<float>, ConstVector, MatrixOf<float>);
template void sigmoid_backward<bfloat16>(ConstMatrixOf<bfloat16>, ConstVector, MatrixOf<bfloat16>);
template void sigmoid_backward<float16>(ConstMatrixOf<float16>, ConstVector, MatrixOf<float16>);
template void dispatch<float>(ConstMatrixOf<float>, const Routes&, MatrixOf<float>);
template void dispatch<bfloat16>(ConstMatrixOf<bfloat16>, const Routes&, MatrixOf<bfloat16>);
template void dispatch<float16>(ConstMatrixOf<float16>, const Routes&, MatrixOf<float16>);
template void combine<float>(ConstMatrixOf<float>, const Routes&, ConstMatrixOf<float>,
                             MatrixOf<float>);
template void combine<bfloat16>(ConstMatrixOf<bfloat16>, const Routes&, ConstMatrixOf<bfloat16>,
                                MatrixOf<bfloat16>);
template void combine<float16>(ConstMatrixOf<float16>, const Routes&, ConstMatrixOf<float16>,
                               MatrixOf<float16>);
template void add_experts_bias<float>(ConstMatrixOf<float>, const Routes&, ConstVector,
                                      MatrixOf<float>);
template void add_experts_bias<bfloat16>(ConstMatrixOf<bfloat16>, const Routes&, ConstVector,
                                         MatrixOf<bfloat16>);
template void add_experts_bias<float16>(ConstMatrixOf<float16>, const Routes&, ConstVector,
                                        MatrixOf<float16>);
template void experts_bias_backward<float>(ConstMatrixOf<float>, const Routes&, ConstVector, Write,
                                           Matrix);
template void experts_bias_backward<bfloat16>(ConstMatrixOf<bfloat16>, const Routes&, ConstVector,
                                              Write, Matrix);
template void experts_bias_backward<float16>(ConstMatrixOf<float16>, const Routes&, ConstVector,
                                             Write, Matrix);
template void experts_bias_backward_gates<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                                 const Routes&, Vector);
template void experts_bias_backward_gates<bfloat16>(ConstMatrixOf<bfloat16>,
                                                    ConstMatrixOf<bfloat16>, const Routes&, Vector);
template void experts_bias_backward_gates<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                                   const Routes&, Vector);

}  // namespace brume::kernels
