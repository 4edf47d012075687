/// @file Times of steps by Brume and by PyTorch, and of their products alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "step_cases.hpp"

namespace brume::perf {

using Sums = std::map<std::string, double>;

/// Seconds of a step: whole steps, and of one rank its tasks by kind and its kernels by name.
struct Steps {
  std::vector<double> step_s;
  std::vector<Sums> task_s, kernel_s;
};

/// Adds the steps of one round.
void add_brume(const Case& c, const Split& split, Steps& steps);
/// @return false when there is no PyTorch
bool add_pytorch(const Case& c, const Split& split, bool compiled, Steps& steps);

/// The step's products, each measured alone but on all ranks at once [s], by kind of task.
std::map<std::string, double> products_s(const Case& c, const Split& split);

}  // namespace brume::perf
