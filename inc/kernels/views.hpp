/// @file Views of arrays: they only point. Their members are constexpr, so that code on devices may
/// call them too.
#pragma once

#include <cstddef>
#include <type_traits>

namespace brume::kernels {

/// Elements in one run.
template <class Element>
class VectorView {
 public:
  constexpr VectorView() = default;
  constexpr VectorView(Element* data, std::size_t count) : data_(data), count_(count) {}
  /// The same elements, to be read only.
  template <class Other>
  requires std::is_same_v<const Other, Element>
  constexpr VectorView(const VectorView<Other>& other) : VectorView(other.data(), other.size()) {}

  constexpr Element* data() const { return data_; }
  constexpr std::size_t size() const { return count_; }
  constexpr std::size_t extent(int) const { return count_; }
  constexpr int extent_int(int) const { return int(count_); }
  constexpr Element& operator()(std::ptrdiff_t i) const { return data_[i]; }

 private:
  Element* data_ = nullptr;
  std::size_t count_ = 0;
};

/// Rows of elements in one run each, `stride(0)` elements from one row to the next.
template <class Element>
class MatrixView {
 public:
  constexpr MatrixView() = default;
  constexpr MatrixView(Element* data, std::size_t rows, std::size_t columns)
      : MatrixView(data, rows, columns, columns) {}
  constexpr MatrixView(Element* data, std::size_t rows, std::size_t columns, std::size_t stride)
      : data_(data), rows_(rows), columns_(columns), stride_(stride) {}
  /// The same elements, to be read only.
  template <class Other>
  requires std::is_same_v<const Other, Element>
  constexpr MatrixView(const MatrixView<Other>& other)
      : MatrixView(other.data(), other.extent(0), other.extent(1), other.stride(0)) {}

  constexpr Element* data() const { return data_; }
  constexpr std::size_t size() const { return rows_ * columns_; }
  constexpr std::size_t extent(int i) const { return i == 0 ? rows_ : columns_; }
  constexpr int extent_int(int i) const { return int(extent(i)); }
  constexpr std::size_t stride(int i) const { return i == 0 ? stride_ : 1; }
  constexpr Element& operator()(std::ptrdiff_t row, std::ptrdiff_t column) const {
    return data_[row * std::ptrdiff_t(stride_) + column];
  }

 private:
  Element* data_ = nullptr;
  std::size_t rows_ = 0, columns_ = 0, stride_ = 0;
};

}  // namespace brume::kernels
