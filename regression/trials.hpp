/// @file How many random cases a property test tries.
#pragma once

#include <cstdlib>

namespace brume::test {

/// Whether another test has the same cases: half of them show that other kernels fit.
inline bool are_few() { return std::getenv("BRUME_FEW_TRIALS") != nullptr; }

/// `usual`, or what BRUME_TRIALS asks for where there is time.
inline int trials(int usual) {
  const char* const asked = std::getenv("BRUME_TRIALS");
  return asked ? std::atoi(asked) : are_few() ? (usual + 1) / 2 : usual;
}

}  // namespace brume::test
