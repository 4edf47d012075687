/// @file Rows of kernels' times, each beside the roof of what it runs on.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/text.hpp"
#include "device/device.hpp"
#include "kernels/matmul.hpp"
#include "kernels/types.hpp"
#include "profiler/bench.hpp"

namespace brume::kernels {

using profiler::Bench;
using profiler::Operands;
using profiler::Work;

template <class Storage>
constexpr const char* type_name = std::is_same_v<Storage, float> ? "fp32" : "bf16";

template <class Storage>
MatrixOf<Storage> matrix(Operands& operands, int rows, int columns) {
  const auto count = std::int64_t{rows} * columns;
  return {operands.values<Storage>(count).data(), std::size_t(rows), std::size_t(columns)};
}

template <class Storage>
VectorOf<Storage> vector(Operands& operands, std::int64_t count) {
  return {operands.values<Storage>(count).data(), std::size_t(count)};
}

/// Rows of the printed table.
class Report {
 public:
  Report(Bench& bench, std::string shape)
      : bench_(bench),
        shape_(std::move(shape)),
        table_({"kernel", "shape", "time", "rate", "unit", "roof"}) {}

  bool wants(const std::string& shape) const { return shape.find(shape_) != std::string::npos; }

  template <class Storage>
  void products(const char* kernel, const std::string& shape, double flops, const Work& body) {
    row(kernel, shape, flops, body, "GFLOP/s", [&] { return product_roof<Storage>(); });
  }

  /// `bytes`: each array read or written once.
  void passes(const char* kernel, const std::string& shape, double bytes, const Work& body) {
    row(kernel, shape, bytes, body, "GB/s", [&] { return memory_roof(bytes); });
  }

  void print() const {
    fmt::print("Roofs: a product of {0} x {0} in the same type, else {1} of as many bytes.\n\n{2}",
               roof_size(), device::on_device() ? "a copy" : "the triad", table_.text());
  }

 private:
  template <typename Roof>
  void row(const char* kernel, const std::string& shape, double amount, const Work& body,
           const char* unit, Roof roof) {
    const std::optional<double> time_s = bench_.seconds(kernel, body);
    if (!time_s) return table_.add({kernel, shape, "failed", "", "", ""});
    const double rate = amount / *time_s;
    table_.add({kernel, shape, format_seconds(*time_s), fmt::format("{:.1f}", rate * 1e-9), unit,
                fmt::format("{:.0f} %", 100.0 * rate / roof())});
  }

  static int roof_size() { return device::on_device() ? 8192 : 768; }

  /// Operations a second of a large product whose factors need no transposition.
  template <class Storage>
  double product_roof() {
    double& roof = product_roofs_[type_name<Storage>];
    if (roof > 0.0) return roof;
    const int size = roof_size();
    Operands operands;
    const auto x = matrix<Storage>(operands, size, size), w = matrix<Storage>(operands, size, size),
               y = matrix<Storage>(operands, size, size);
    return roof = 2.0 * size * size * size /
                  seconds([&] { linear_backward_input<Storage>(x, w, Write::replace, y); });
  }

  /// Bytes a second of a = b + s c on hosts, of a copy on devices, over arrays that fill `bytes`:
  /// from cache when they fit there.
  double memory_roof(double bytes) {
    Operands operands;
    if (device::on_device()) {
      const auto half = std::max<std::int64_t>(1024, std::int64_t(bytes / 8.0));
      const Vector from = vector<float>(operands, half), to = vector<float>(operands, half);
      return 8.0 * double(half) / seconds([&] { device::copy(to.data(), from.data(), 4 * half); });
    }
    const auto count = std::max<std::int64_t>(1024, std::int64_t(bytes / 12.0));
    float* const out = vector<float>(operands, count).data();
    const float* const in1 = vector<float>(operands, count).data();
    const float* const in2 = vector<float>(operands, count).data();
    return 12.0 * double(count) / seconds([=] {
#pragma omp simd
             for (std::int64_t i = 0; i < count; ++i) out[i] = in1[i] + 3.0f * in2[i];
           });
  }

  double seconds(const Work& work) { return bench_.seconds("a roof", work).value(); }

  Bench& bench_;
  std::string shape_;
  Table table_;
  std::map<std::string_view, double> product_roofs_;
};

}  // namespace brume::kernels
