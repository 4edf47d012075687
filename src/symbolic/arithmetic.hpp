/// @file What an operation makes of two numbers.
#pragma once

#include <cmath>

#include "base/error.hpp"
#include "symbolic/expr.hpp"

namespace brume::symbolic {

/// Calls over(f) with the operation as f(a, b), of which floor takes `a` alone.
/// @throws Error(bug) of an operation that is not arithmetic
template <class Over>
auto arithmetic(Op op, Over over) {
  switch (op) {
    case Op::add: return over([](double a, double b) { return a + b; });
    case Op::subtract: return over([](double a, double b) { return a - b; });
    case Op::multiply: return over([](double a, double b) { return a * b; });
    case Op::divide: return over([](double a, double b) { return a / b; });
    case Op::max: return over([](double a, double b) { return a < b ? b : a; });
    case Op::min: return over([](double a, double b) { return b < a ? b : a; });
    case Op::floor: return over([](double a, double) { return std::floor(a); });
    case Op::less: return over([](double a, double b) { return a < b ? 1.0 : 0.0; });
    default: throw Error(Failure::bug, "not an arithmetic operation");
  }
}

inline double apply(Op op, double a, double b) {
  return arithmetic(op, [&](auto f) { return f(a, b); });
}

}  // namespace brume::symbolic
