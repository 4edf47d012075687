/// @file Softmax cross-entropy over the vocabulary, fused with its gradient.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// loss = scale sum_n (log sum_v exp(logits[n,v]) - logits[n,targets[n]])  over n with targets[n]
/// >= 0
///
/// With `with_gradient` the logits are replaced by d loss / d logits = scale (softmax - onehot),
/// zero for ignored tokens; otherwise they stay as they are.
///
/// @param logits   [N, V] in; gradient out
/// @param targets  [N] below 0: ignored; else below V
/// @param scale    1 / number of target tokens of the global batch
/// @return         the scaled sum, in double precision
/// @throws Error(bug)  when a target is V or above
template <class Storage = float>
double cross_entropy(MatrixOf<Storage> logits, ConstTokens targets, float scale,
                     bool with_gradient);

}  // namespace brume::kernels
