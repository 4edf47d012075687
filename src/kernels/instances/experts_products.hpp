/// @file The storages that experts_products.cpp is made for: included at its end.

namespace brume::kernels {

template void experts_forward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, const Routes&,
                                     Write, MatrixOf<float>, Factors);
template void experts_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                        const Routes&, Write, MatrixOf<bfloat16>, Factors);
template void experts_forward<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                       const Routes&, Write, MatrixOf<float16>, Factors);
template void experts_backward_input<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                            const Routes&, Write, MatrixOf<float>, Factors);
template void experts_backward_input<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                               const Routes&, Write, MatrixOf<bfloat16>, Factors);
template void experts_backward_input<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                              const Routes&, Write, MatrixOf<float16>, Factors);
template void experts_backward_weight<float>(ConstMatrixOf<float>, ConstMatrixOf<float>,
                                             const Routes&, Write, Matrix, Factors);
template void experts_backward_weight<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                                const Routes&, Write, Matrix, Factors);
template void experts_backward_weight<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                               const Routes&, Write, Matrix, Factors);

}  // namespace brume::kernels
