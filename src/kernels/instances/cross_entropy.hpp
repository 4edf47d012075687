/// @file The storages that cross_entropy.cpp is made for, on hosts and devices: included at its
/// end.

namespace brume::kernels {

template void cross_entropy<float>(MatrixOf<float>, ConstTokens, float, bool, Write, double*, float,
                                   double*);
template void cross_entropy<bfloat16>(MatrixOf<bfloat16>, ConstTokens, float, bool, Write, double*,
                                      float, double*);
template void cross_entropy<float16>(MatrixOf<float16>, ConstTokens, float, bool, Write, double*,
                                     float, double*);
template void cross_entropy_part<float>(MatrixOf<float>, ConstTokens, VocabularyPart, Matrix,
                                        float);
template void cross_entropy_part<bfloat16>(MatrixOf<bfloat16>, ConstTokens, VocabularyPart, Matrix,
                                           float);
template void cross_entropy_part<float16>(MatrixOf<float16>, ConstTokens, VocabularyPart, Matrix,
                                          float);
template void cross_entropy_combine<float>(MatrixOf<float>, ConstTokens, VocabularyPart,
                                           ConstMatrix, int, float, Write, double*, float, double*);
template void cross_entropy_combine<bfloat16>(MatrixOf<bfloat16>, ConstTokens, VocabularyPart,
                                              ConstMatrix, int, float, Write, double*, float,
                                              double*);
template void cross_entropy_combine<float16>(MatrixOf<float16>, ConstTokens, VocabularyPart,
                                             ConstMatrix, int, float, Write, double*, float,
                                             double*);

}  // namespace brume::kernels
