/// @file Notes of launches, with bytes and FLOPs that follow from operands.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "kernels/types.hpp"
#include "kernels/workspace.hpp"
#include "launches.hpp"

namespace brume::kernels {

/// Bytes of an operand; a number is one itself.
inline double bytes_of(double bytes) { return bytes; }
template <class View>
double bytes_of(const View& view) {
  return double(view.size() * sizeof(view.data()[0]));
}

/// An operand that is read and written.
template <class View>
double updated(const View& view) {
  return 2.0 * bytes_of(view);
}
template <class View>
double written(Write write, const View& view) {
  return write == Write::accumulate ? updated(view) : bytes_of(view);
}

template <class... Operands>
void note(std::string kernel, double flops, const Operands&... operands) {
  perf::launches().push_back({std::move(kernel), (0.0 + ... + bytes_of(operands)), flops});
}

/// `sum_columns` of kernels/portable: sums of parts of the rows, then of these.
template <class... Operands>
void note_column_sums(const char* kernel, std::size_t rows, std::size_t width, double out,
                      const Operands&... operands) {
  const auto room = std::size_t(workspace_bytes) / std::max<std::size_t>(1, width * sizeof(float));
  const std::size_t parts = std::max<std::size_t>(1, std::min({rows / 64, room, std::size_t{64}}));
  if (parts == 1) return note(kernel, 0.0, operands..., out);
  const double partial = double(parts * width * sizeof(float));
  note(kernel, 0.0, operands..., partial);
  note(fmt::format("{} (parts)", kernel), 0.0, partial, out);
}

template <class X, class W, class Y>
void note_product(const char* kernel, const X& x, const W& w, const Y& y, Write write,
                  std::size_t inner) {
  note(fmt::format("{} {} x {} x {}", kernel, y.extent(0), y.extent(1), inner),
       2.0 * double(y.size()) * double(inner), x, w, written(write, y));
}

}  // namespace brume::kernels
