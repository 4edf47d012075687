/// @file Pictures as SVG files of their own, for pages that Brume does not write.
#pragma once

#include <string>
#include <vector>

#include "report/plan_page.hpp"

namespace brume::report {

/// Horizontal bars, in groups of one bar per series.
struct BarChart {
  struct Group {
    std::string name;
    std::vector<double> values;  ///< one per series; NaN: none
  };
  std::string title;
  std::string unit;                 ///< follows each value
  std::vector<std::string> series;  ///< names in the legend, if there are several
  std::vector<Group> groups;
};
std::string figure(const BarChart& chart);

/// Points of a logarithmic x axis, with a horizontal line at y = 1.
struct RatioChart {
  struct Series {
    std::string name;
    std::vector<double> x, ratio;  ///< equally many
  };
  std::string title;
  std::string x_name;
  std::string y_name;
  std::vector<Series> series;
};
std::string figure(const RatioChart& chart);

/// A plan: its stages on devices, memory of a device, timeline of a step.
std::string figure(const PlanPage& page);

}  // namespace brume::report
