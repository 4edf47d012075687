/// @file The storages that embedding.cpp is made for, on hosts and devices: included at its end.

namespace brume::kernels {

template void embedding_forward<float>(ConstTokens, ConstMatrixOf<float>, ConstMatrixOf<float>,
                                       MatrixOf<float>, VocabularyPart, float, Documents);
template void embedding_forward<bfloat16>(ConstTokens, ConstMatrixOf<bfloat16>,
                                          ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>,
                                          VocabularyPart, float, Documents);
template void embedding_forward<float16>(ConstTokens, ConstMatrixOf<float16>,
                                         ConstMatrixOf<float16>, MatrixOf<float16>, VocabularyPart,
                                         float, Documents);
template void embedding_backward<float>(ConstTokens, ConstMatrixOf<float>, Matrix, Matrix,
                                        VocabularyPart, float, Documents);
template void embedding_backward<bfloat16>(ConstTokens, ConstMatrixOf<bfloat16>, Matrix, Matrix,
                                           VocabularyPart, float, Documents);
template void embedding_backward<float16>(ConstTokens, ConstMatrixOf<float16>, Matrix, Matrix,
                                          VocabularyPart, float, Documents);

}  // namespace brume::kernels
