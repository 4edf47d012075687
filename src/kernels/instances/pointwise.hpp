/// @file The storages that pointwise.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void add_bias<float>(ConstMatrixOf<float>, ConstVectorOf<float>, MatrixOf<float>);
template void add_bias<bfloat16>(ConstMatrixOf<bfloat16>, ConstVectorOf<bfloat16>,
                                 MatrixOf<bfloat16>);
template void add_bias<float16>(ConstMatrixOf<float16>, ConstVectorOf<float16>, MatrixOf<float16>);
template void add_residual<float>(ConstMatrixOf<float>, MatrixOf<float>);
template void add_residual<bfloat16>(ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void add_residual<float16>(ConstMatrixOf<float16>, MatrixOf<float16>);
template void copy<float>(ConstVectorOf<float>, VectorOf<float>);
template void copy<bfloat16>(ConstVectorOf<bfloat16>, VectorOf<bfloat16>);
template void copy<float16>(ConstVectorOf<float16>, VectorOf<float16>);
template void scale<float>(float, MatrixOf<float>);
template void scale<bfloat16>(float, MatrixOf<bfloat16>);
template void scale<float16>(float, MatrixOf<float16>);
template void bias_backward<float>(ConstMatrixOf<float>, Write, Vector);
template void bias_backward<bfloat16>(ConstMatrixOf<bfloat16>, Write, Vector);
template void bias_backward<float16>(ConstMatrixOf<float16>, Write, Vector);

}  // namespace brume::kernels
