/// @file What pages are made of.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace brume::report {

inline constexpr int num_shades = 8;   ///< of what fills bars and lanes
inline constexpr int num_colours = 6;  ///< of lines and dots

/// A page that needs nothing but itself: no scripts, no network.
std::string page(const std::string& title, const std::string& body);

/// The style of a picture that is a file of its own.
std::string figure_style();

/// A row of a table. @param tag  th or td
std::string html_row(const std::vector<std::string>& cells, const char* tag);

/// A part of a bar.
struct Slice {
  int shade;
  double share;       ///< of the bar's length
  std::string title;  ///< shown where the pointer rests
};
std::string bar(const std::vector<Slice>& slices);

/// What the shades mean.
std::string legend(const std::vector<std::pair<int, std::string>>& shades);

}  // namespace brume::report
