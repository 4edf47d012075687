/// @file The storages that latent.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void expand_keys<float>(ConstMatrixOf<float>, const LatentShape&, MatrixOf<float>,
                                 ConstMatrixOf<float>);
template void expand_keys<bfloat16>(ConstMatrixOf<bfloat16>, const LatentShape&, MatrixOf<bfloat16>,
                                    ConstMatrixOf<bfloat16>);
template void expand_keys<float16>(ConstMatrixOf<float16>, const LatentShape&, MatrixOf<float16>,
                                   ConstMatrixOf<float16>);
template void expand_keys_backward<float>(ConstMatrixOf<float>, const LatentShape&, MatrixOf<float>,
                                          MatrixOf<float>);
template void expand_keys_backward<bfloat16>(ConstMatrixOf<bfloat16>, const LatentShape&,
                                             MatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void expand_keys_backward<float16>(ConstMatrixOf<float16>, const LatentShape&,
                                            MatrixOf<float16>, MatrixOf<float16>);
template void narrow_values<float>(ConstMatrixOf<float>, const LatentShape&, MatrixOf<float>);
template void narrow_values<bfloat16>(ConstMatrixOf<bfloat16>, const LatentShape&,
                                      MatrixOf<bfloat16>);
template void narrow_values<float16>(ConstMatrixOf<float16>, const LatentShape&, MatrixOf<float16>);
template void narrow_values_backward<float>(ConstMatrixOf<float>, const LatentShape&,
                                            MatrixOf<float>);
template void narrow_values_backward<bfloat16>(ConstMatrixOf<bfloat16>, const LatentShape&,
                                               MatrixOf<bfloat16>);
template void narrow_values_backward<float16>(ConstMatrixOf<float16>, const LatentShape&,
                                              MatrixOf<float16>);
template void copy_latents<float>(ConstMatrixOf<float>, const LatentShape&, MatrixOf<float>);
template void copy_latents<bfloat16>(ConstMatrixOf<bfloat16>, const LatentShape&,
                                     MatrixOf<bfloat16>);
template void copy_latents<float16>(ConstMatrixOf<float16>, const LatentShape&, MatrixOf<float16>);

}  // namespace brume::kernels
