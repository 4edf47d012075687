/// @file The storages that heads.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void cut_heads<float>(ConstMatrixOf<float>, const HeadBlocks&, MatrixOf<float>);
template void cut_heads<bfloat16>(ConstMatrixOf<bfloat16>, const HeadBlocks&, MatrixOf<bfloat16>);
template void cut_heads<float16>(ConstMatrixOf<float16>, const HeadBlocks&, MatrixOf<float16>);
template void join_heads<float>(ConstMatrixOf<float>, const HeadBlocks&, MatrixOf<float>);
template void join_heads<bfloat16>(ConstMatrixOf<bfloat16>, const HeadBlocks&, MatrixOf<bfloat16>);
template void join_heads<float16>(ConstMatrixOf<float16>, const HeadBlocks&, MatrixOf<float16>);

}  // namespace brume::kernels
