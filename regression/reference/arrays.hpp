/// @file Arrays, comparisons and repetitions that the tests of the kernels share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"

namespace brume::reference {

using Doubles = std::vector<double>;

/// A device for the calling thread, and a stream, in a build for devices.
class OnDevice {
 public:
  OnDevice() {
    device::use_device(0, 1);
    stream_ = device::make_stream();
    if (stream_) stream_->bind();
  }

 private:
  std::unique_ptr<device::Stream> stream_;
};

/// What kernels need is made by the program's main: Kokkos cannot start before its library's own
/// statics are there.
class Kernels final : public testing::Environment {
 public:
  void SetUp() override {
    try {
      device_.emplace();
    } catch (const Error& error) {  // a build for devices where there is none
      if (error.failure() != Failure::resource) throw;
      std::exit(77);  // which ctest counts as skipped
    }
    runtime_.emplace(1);
  }
  void TearDown() override {
    runtime_.reset();
    device_.reset();
  }

 private:
  std::optional<OnDevice> device_;
  std::optional<kernels::Runtime> runtime_;
};
inline testing::Environment* const environment =
    testing::AddGlobalTestEnvironment(new Kernels);  // owned by GoogleTest

/// A matrix whose rows may lie further apart than they are long; the gaps hold NaN, so a kernel
/// that reads them spoils its result and one that writes them is seen by `gaps_untouched`.
class Array {
 public:
  Array(int rows, int cols, int gap = 0)
      : rows_{rows}, cols_{cols}, gap_{gap}, floats_(std::size_t(rows) * (cols + gap), NAN) {}

  float& operator()(int r, int c) { return floats_[std::size_t(r) * (cols_ + gap_) + c]; }
  float operator()(int r, int c) const { return floats_[std::size_t(r) * (cols_ + gap_) + c]; }

  kernels::Matrix matrix() { return kernels::Matrix(floats_.data(), rows_, cols_, cols_ + gap_); }
  kernels::Vector vector() { return kernels::Vector(floats_.data(), floats_.size()); }

  /// The values without the gaps.
  std::vector<float> values() const {
    std::vector<float> out;
    for (int r = 0; r < rows_; ++r)
      for (int c = 0; c < cols_; ++c) out.push_back((*this)(r, c));
    return out;
  }
  Doubles doubles() const {
    const std::vector<float> floats = values();
    return {floats.begin(), floats.end()};
  }
  bool gaps_untouched() const {
    for (int r = 0; r < rows_; ++r)
      for (int c = cols_; c < cols_ + gap_; ++c)
        if (!std::isnan((*this)(r, c))) return false;
    return true;
  }

 private:
  int rows_, cols_, gap_;
  std::vector<float> floats_;
};

/// Normal numbers times `scale`.
inline Array random_array(int rows, int cols, unsigned seed, float scale = 1.0f, int gap = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  Array out(rows, cols, gap);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; ++c) out(r, c) = normal(generator);
  return out;
}

inline kernels::ConstTokens view(const std::vector<std::int32_t>& tokens) {
  return kernels::ConstTokens(tokens.data(), tokens.size());
}

/// max_i |found_i - expected_i| / max_i |expected_i|; infinite when a value is NaN or the lengths
/// differ.
inline double relative_error(const std::vector<float>& found, const Doubles& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double error = 0.0;
  double size = 1e-30;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(double(found[i]) - expected[i]);
    if (std::isnan(difference)) return INFINITY;
    error = std::max(error, difference);
    size = std::max(size, std::abs(expected[i]));
  }
  return error / size;
}

inline Doubles sum(Doubles a, const Doubles& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// d loss / d x by central differences of a loss in double precision.
inline Doubles slope_of(const std::function<double(const Doubles&)>& loss, Doubles x) {
  constexpr double step = 1e-5;
  Doubles slope(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double above = loss(x);
    x[i] = at - step;
    const double below = loss(x);
    x[i] = at;
    slope[i] = (above - below) / (2.0 * step);
  }
  return slope;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// `compute` makes its own arrays and returns what a kernel wrote: the same bits every time, also
/// when four threads compute at once, and with any number of `teams`' threads for one call.
inline void expect_same_bits(const std::function<std::vector<float>()>& compute,
                             const std::vector<int>& teams = {1, 2, 3}) {
  kernels::use_threads(1);
  const std::vector<float> expected = compute();
  for (const int team : teams) {
    kernels::use_threads(team);
    EXPECT_TRUE(same_bits(compute(), expected)) << team << " threads give other bits";
  }
  kernels::use_threads(1);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong)
    threads.emplace_back([&] {
      const OnDevice here;
      kernels::use_threads(1);
      for (int i = 0; i < 8; ++i) count += !same_bits(compute(), expected);
    });
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0) << "threads at once give other bits";
}

}  // namespace brume::reference
