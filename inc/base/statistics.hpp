/// @file What is said of repeated measurements.
#pragma once

#include <vector>

namespace brume {

/// The middle value, of two middle ones the larger; `values` must not be empty.
double median(std::vector<double> values);

}  // namespace brume
