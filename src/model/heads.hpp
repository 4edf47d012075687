/// @file Heads that tensor parallelism cuts where it divides them, and repeats where it does not.
#pragma once

#include "symbolic/expr.hpp"

namespace brume::model {

using symbolic::Expr;

/// 1 where tp does not divide the heads, so that every tp rank holds all of them; else 0.
inline Expr heads_are_whole(int heads) {
  const Expr tp = Expr::variable("tp");
  return less(floor(double(heads) / tp) * tp, double(heads));
}

/// Heads on one tp rank.
inline Expr local_heads(int heads) {
  return select(heads_are_whole(heads), double(heads), double(heads) / Expr::variable("tp"));
}

}  // namespace brume::model
