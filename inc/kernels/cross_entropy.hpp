/// @file Softmax cross-entropy over the vocabulary, fused with its gradient.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// *loss = scale sum_n (log sum_v exp(logits[n,v]) - logits[n,targets[n]])  over n with targets[n]
/// >= 0  (+ *loss when accumulating), summed in double precision, in a fixed order
///
/// Replaces the logits by d loss / d logits = scale (softmax - onehot) if `with_gradient`, with
/// zero for ignored tokens; otherwise the logits may be capped and stay as they were.
///
/// @param logits   [N, V] in; gradient out
/// @param targets  [N] below 0: ignored; from V on: the loss is NaN
/// @param scale    1 / number of target tokens of the global batch
/// @param cap      c: the logits that count are c tanh(logits / c); 0: the logits
/// @param misses   if given: how many targets have a smaller logit than another token, replaced or
///                 added to like the loss
template <class Storage = float>
void cross_entropy(MatrixOf<Storage> logits, ConstTokens targets, float scale, bool with_gradient,
                   Write write, double* loss, float cap = 0.0f, double* misses = nullptr);

// The same where each rank has some columns of the logits: every rank takes statistics of its own
// part, ranks exchange them, and each combines all of them in the order of the parts. So all have
// the same bits of the loss, and each its part of the gradient.

/// Numbers of a token and a part: top = max_v logits[n,v], sum_v exp(logits[n,v] - top), and the
/// target's logit, 0 where it is of another part.
inline constexpr int num_statistics = 3;

/// @param logits      [N, R] in; what cross_entropy_combine expects out
/// @param targets     [N] of the whole vocabulary, as above
/// @param statistics  [N, 3]
template <class Storage = float>
void cross_entropy_part(MatrixOf<Storage> logits, ConstTokens targets, VocabularyPart part,
                        Matrix statistics, float cap = 0.0f);

/// Replaces what cross_entropy_part left of the logits by their gradient.
///
/// @param statistics  [P, 3 N] of all parts
/// @param index       of this part, among P
/// @param loss        the sum over all parts, as are the misses
template <class Storage = float>
void cross_entropy_combine(MatrixOf<Storage> logits, ConstTokens targets, VocabularyPart part,
                           ConstMatrix statistics, int index, float scale, Write write,
                           double* loss, float cap = 0.0f, double* misses = nullptr);

}  // namespace brume::kernels
