/// @file Token embedding, with learned positions or without.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// x[n,c] = scale token_table[tokens[n] - first,c] + position_table[t,c],
/// t = n mod T, the token's place in its sequence, or in its document; T = position_table.extent(0)
///
/// Tokens of other parts of the vocabulary, or of none, count as zeros, so the sum of all parts is
/// the whole. An empty
/// position table adds nothing, also in backward.
///
/// @param tokens          [N]
/// @param token_table     [R, C] tokens first to first + R
/// @param position_table  [T, C]
/// @param x               [N, C]
/// @param part            of the vocabulary
template <class Storage = float>
void embedding_forward(ConstTokens tokens, ConstMatrixOf<Storage> token_table,
                       ConstMatrixOf<Storage> position_table, MatrixOf<Storage> x,
                       VocabularyPart part = {}, float scale = 1.0f, Documents documents = {});

/// Adds dx, of a token scale dx, to the rows it came from, tokens in order. The tables' gradients
/// are always accumulated: rows no token names must hold a value already. An empty one: nobody
/// wants it.
template <class Storage = float>
void embedding_backward(ConstTokens tokens, ConstMatrixOf<Storage> dx, Matrix d_token_table,
                        Matrix d_position_table, VocabularyPart part = {}, float scale = 1.0f,
                        Documents documents = {});

}  // namespace brume::kernels
