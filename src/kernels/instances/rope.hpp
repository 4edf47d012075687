/// @file The storages that rope.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void rope_forward<float>(ConstMatrix, int, MatrixOf<float>, Documents);
template void rope_forward<bfloat16>(ConstMatrix, int, MatrixOf<bfloat16>, Documents);
template void rope_forward<float16>(ConstMatrix, int, MatrixOf<float16>, Documents);
template void rope_backward<float>(ConstMatrix, int, MatrixOf<float>, Documents);
template void rope_backward<bfloat16>(ConstMatrix, int, MatrixOf<bfloat16>, Documents);
template void rope_backward<float16>(ConstMatrix, int, MatrixOf<float16>, Documents);

}  // namespace brume::kernels
