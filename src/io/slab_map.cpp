#include "slab_map.hpp"

#include <algorithm>

namespace brume::io {
namespace {

/// Index of the row of `source` that holds row `row` of `destination`; -1 when there is none. A row
/// runs along the last dimension.
std::int64_t matching_row(const engine::Slab& source, const engine::Slab& destination,
                          std::int64_t row) {
  std::int64_t result = 0, stride = 1;
  for (std::size_t d = source.shape.size() - 1; d-- > 0;) {
    const std::int64_t global = destination.offset[d] + row % destination.shape[d];
    const std::int64_t local = global - source.offset[d];
    if (local < 0 || local >= source.shape[d]) return -1;
    result += local * stride;
    stride *= source.shape[d];
    row /= destination.shape[d];
  }
  return result;
}

void append(std::vector<Run>& runs, Run run) {
  if (!runs.empty() && runs.back().from + runs.back().count == run.from &&
      runs.back().to + runs.back().count == run.to)
    runs.back().count += run.count;
  else
    runs.push_back(run);
}

}  // namespace

bool is_sound(const engine::Slab& slab) {
  const std::size_t dims = slab.global_shape.size();
  if (dims < 1 || dims > 8 || slab.offset.size() != dims || slab.shape.size() != dims) return false;
  constexpr std::int64_t most = std::int64_t{1} << 48;
  std::int64_t slice = 1;
  for (std::size_t d = 0; d < dims; ++d) {
    if (slab.shape[d] < 1 || slab.shape[d] > most / slice || slab.offset[d] < 0 ||
        slab.offset[d] > slab.global_shape[d] - slab.shape[d])
      return false;
    slice *= slab.shape[d];
  }
  return slab.first >= 0 && slab.elements >= 1 && slab.first <= slice - slab.elements;
}

std::vector<Run> shared_runs(const engine::Slab& source, const engine::Slab& destination) {
  std::vector<Run> runs;
  const std::int64_t width = destination.shape.back();
  const std::int64_t last = destination.first + destination.elements;
  for (std::int64_t at = destination.first, next; at < last; at = next) {
    next = std::min(last, (at / width + 1) * width);
    const std::int64_t row = matching_row(source, destination, at / width);
    if (row < 0) continue;
    // Columns of the whole tensor, cut to those of the source's slice, then to its flat range.
    const std::int64_t shift = destination.offset.back() - source.offset.back();
    const std::int64_t begin = std::max<std::int64_t>(at % width + shift, 0);
    const std::int64_t end = std::min(at % width + (next - at) + shift, source.shape.back());
    const std::int64_t start = row * source.shape.back();
    const std::int64_t from = std::max(start + begin, source.first);
    const std::int64_t stop = std::min(start + end, source.first + source.elements);
    if (from >= stop) continue;
    const std::int64_t to = at / width * width + (from - start - shift);
    append(runs, {from - source.first, to - destination.first, stop - from});
  }
  return runs;
}

bool covers_once(std::vector<Run> runs, std::int64_t elements) {
  std::ranges::sort(runs, {}, &Run::to);
  std::int64_t reached = 0;
  for (const Run& run : runs) {
    if (run.to != reached) return false;
    reached += run.count;
  }
  return reached == elements;
}

}  // namespace brume::io
