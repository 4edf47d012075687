/// @file Statistics of repeated measurements.
#pragma once

#include <vector>

namespace brume {

/// The middle value, of two middle ones the larger; `values` must not be empty.
double median(std::vector<double> values);

/// max_i |a_i - b_i| / |b_i|; infinite when the lengths differ or a difference is no number.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace brume
