#include <cmath>

#include "kernels/rope.hpp"

namespace brume::kernels {

std::vector<float> rope_table(const std::vector<double>& frequencies, int seq_len,
                              double magnitude) {
  std::vector<float> table;
  for (int t = 0; t < seq_len; ++t) {
    for (double f : frequencies) table.push_back(float(magnitude * std::cos(t * f)));
    for (double f : frequencies) table.push_back(float(magnitude * std::sin(t * f)));
  }
  return table;
}

}  // namespace brume::kernels
