/// @file How many random cases a property test tries.
#pragma once

#include <cstdlib>

namespace brume::test {

/// `usual`, or what BRUME_TRIALS asks for where there is time.
inline int trials(int usual) {
  const char* const asked = std::getenv("BRUME_TRIALS");
  return asked ? std::atoi(asked) : usual;
}

}  // namespace brume::test
