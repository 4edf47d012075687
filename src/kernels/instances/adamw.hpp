/// @file The storages that adamw.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void adamw_step<bfloat16>(const AdamW&, const double*, ConstVector, Vector, Vector, Vector,
                                   VectorOf<bfloat16>);
template void adamw_step<float16>(const AdamW&, const double*, ConstVector, Vector, Vector, Vector,
                                  VectorOf<float16>);

}  // namespace brume::kernels
