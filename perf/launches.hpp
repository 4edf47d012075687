/// @file What kernels of a device would do, noted instead of done: a twin of the kernels for
/// benchmarks that reckon.
#pragma once

#include <string>
#include <vector>

namespace brume::perf {

struct Launch {
  std::string kernel;
  double bytes;            ///< of device memory, read and written: each array once
  double flops;            ///< of matrix products
  double fp8_flops = 0.0;  ///< of those of factors in 8 bits
};

/// Launches noted so far, by any kernel or copy.
std::vector<Launch>& launches();

}  // namespace brume::perf
