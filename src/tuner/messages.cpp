#include "messages.hpp"

#include <algorithm>

namespace brume::tuner {
namespace {

bool no_slower(const analyzer::TiedTimes& a, const analyzer::TiedTimes& b) {
  return a.table_s <= b.table_s && a.gradient_s <= b.gradient_s;
}

}  // namespace

MessageTable::MessageTable(Grid& grid, const Frame& frame) : count_(frame.layouts.size()) {
  if (frame.num_stages == 1) return;
  const bool tied = grid.model().tied_head;
  for (const Layout& from : frame.layouts)
    for (const Layout& to : frame.layouts) {
      streams_s_.push_back(grid.stream_s(from, to));
      if (tied) tied_.push_back(grid.tied(from, to));
    }
  least_stream_s_ = *std::ranges::min_element(streams_s_);
  const int count = int(count_);
  for (int a = 0; a < count; ++a)
    for (int b = 0; b < count; ++b) {
      bool streams = true, tables = true;
      for (int other = 0; other < count && (streams || tables); ++other) {
        streams = streams && stream_s(other, a) <= stream_s(other, b) &&
                  stream_s(a, other) <= stream_s(b, other);
        tables =
            tables && (!tied || tuner::no_slower(tied_[index(other, a)], tied_[index(other, b)]));
      }
      no_slower_.push_back(streams ? 1 : 0);
      no_slower_as_last_.push_back(tables ? 1 : 0);
    }
}

analyzer::TiedTimes MessageTable::tied(int first, int last, double hidden_s) const {
  if (tied_.empty() || last < 0) return {};
  const analyzer::TiedTimes& times = tied_[index(first, last)];
  return {std::max(0.0, times.table_s - hidden_s), std::max(0.0, times.gradient_s - hidden_s)};
}

}  // namespace brume::tuner
