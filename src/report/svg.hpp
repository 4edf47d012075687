/// @file Pictures as SVG, to stand in a page: curves over steps, and what channels do over time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/trace.hpp"
#include "schedule/account.hpp"

namespace brume::report {

/// Shade of an activity, the same in all pictures.
int shade_of(schedule::Activity activity);

struct Point {
  double x, y;
  std::string label = {};  ///< next to a dot; empty: none
};

struct Series {
  std::string name;
  int colour = 0;  ///< of the page's palette
  bool pale = false;
  bool dots = false;          ///< instead of a line
  std::vector<Point> points;  ///< x rises; those that are not finite leave a gap
};

struct Mark {
  double x;
  std::string text;
  bool fault = false;
};

struct Chart {
  std::string title;
  std::string x_name;          ///< below the axis
  std::vector<Series> series;  ///< named in a legend where there are several
  std::vector<Mark> marks;     ///< vertical lines, of those within a pixel the first
};

/// Text with what HTML gives a meaning to written out.
std::string escaped(std::string_view text);

/// Of many points those are drawn that are lowest and highest within a pixel's width.
std::string svg(const Chart& chart);

/// A lane for each channel at work, from 0 to `end_s`, in the shades of activities.
std::string svg(const io::RankTimeline& timeline, double end_s);

/// The same without its frame.
struct Lanes {
  std::string body;
  double height;
};
Lanes timeline_lanes(const io::RankTimeline& timeline, double end_s, double width);

}  // namespace brume::report
