/// @file Names of number formats, by which typed tests are told apart.
#pragma once

#include <string>
#include <type_traits>

#include "kernels/types.hpp"

namespace brume::reference {

struct StorageName {
  template <class Storage>
  static std::string GetName(int) {
    if (std::is_same_v<Storage, float>) return "fp32";
    return std::is_same_v<Storage, kernels::bfloat16> ? "bf16" : "fp16";
  }
};

}  // namespace brume::reference
