/// @file The storages that muon.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void normalize<float>(ConstMatrix, const MatrixPart&, const double*, bool,
                               MatrixOf<float>);
template void normalize<bfloat16>(ConstMatrix, const MatrixPart&, const double*, bool,
                                  MatrixOf<bfloat16>);
template void normalize<float16>(ConstMatrix, const MatrixPart&, const double*, bool,
                                 MatrixOf<float16>);
template void scale_add<float>(float, ConstMatrixOf<float>, float, MatrixOf<float>);
template void scale_add<bfloat16>(float, ConstMatrixOf<bfloat16>, float, MatrixOf<bfloat16>);
template void scale_add<float16>(float, ConstMatrixOf<float16>, float, MatrixOf<float16>);
template void step_along<float>(float, float, ConstMatrixOf<float>, bool, const MatrixPart&, int,
                                std::int64_t, const UpdatedElements&);
template void step_along<bfloat16>(float, float, ConstMatrixOf<bfloat16>, bool, const MatrixPart&,
                                   int, std::int64_t, const UpdatedElements&);
template void step_along<float16>(float, float, ConstMatrixOf<float16>, bool, const MatrixPart&,
                                  int, std::int64_t, const UpdatedElements&);

}  // namespace brume::kernels
