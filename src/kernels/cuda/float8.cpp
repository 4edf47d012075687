#include "kernels/cuda/float8.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "device/cuda.hpp"
#include "device/memory.hpp"
#include "kernels/float8.hpp"

namespace brume::kernels {
namespace {

constexpr std::int64_t aligned_bytes = 256;

std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

/// The calling thread's room: scales and parts of both factors' largest magnitudes, then copies of
/// rows of a and of b.
struct Room {
  Float8Scale scales[2];
  std::uint32_t parts[most_float8_parts];

  static Room* here() {
    thread_local const device::Memory memory(float8_room_bytes);
    return reinterpret_cast<Room*>(memory.data());
  }
  std::byte* copies() {
    return reinterpret_cast<std::byte*>(this) + round_up(sizeof(Room), aligned_bytes);
  }
  static std::int64_t copied_bytes() {
    return float8_room_bytes - round_up(sizeof(Room), aligned_bytes) - aligned_bytes;
  }
};

std::int64_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::fp32:
    case ElementType::tf32: return 4;
    case ElementType::bf16:
    case ElementType::fp16: return 2;
    case ElementType::e4m3:
    case ElementType::e5m2: return 1;
  }
  return 4;
}

/// Rows of a and of b that are multiplied at once.
struct Piece {
  std::int64_t row = 0, rows, column = 0, columns;
};

/// All of them where the room is enough, else as few pieces as it allows.
Piece largest_piece(std::int64_t rows, std::int64_t columns, std::int64_t row_bytes) {
  const std::int64_t most = Room::copied_bytes() / row_bytes;
  const auto whole = [](std::int64_t count) { return count - count % (count < 1024 ? 16 : 256); };
  require(most >= 32, Failure::resource, "a product in 8 bits of rows of {} bytes finds no room",
          row_bytes);
  if (rows + columns <= most) return {.rows = rows, .columns = columns};
  if (columns <= most / 2) return {.rows = whole(most - columns), .columns = columns};
  if (rows <= most / 2) return {.rows = rows, .columns = whole(most - rows)};
  return {.rows = whole(most / 2), .columns = whole(most / 2)};
}

DeviceMatrix part(const DeviceMatrix& matrix, const Piece& piece) {
  if (!matrix.data) return {};
  DeviceMatrix made = matrix;
  const std::int64_t first = piece.row * matrix.stride + piece.column;
  made.data = static_cast<std::byte*>(matrix.data) + first * bytes_of(matrix.type);
  made.rows = piece.rows, made.columns = piece.columns;
  return made;
}

/// A product of two factors, in 8 bits or in bf16.
class Rounded {
 public:
  Rounded(const Float8Factor& a, const Float8Factor& b, const Product& rest, bool narrow)
      : factors_{a, b}, rest_(rest), narrow_(narrow) {
    stride_ = round_up(a.inner(), 16);
    const std::int64_t row_bytes = stride_ * bytes_of(type(0));
    largest_ = largest_piece(a.rows(), b.rows(), row_bytes);
    behind_ = round_up(largest_.rows * row_bytes, aligned_bytes);
  }

  /// @param body  body(piece, first): whether to go on; first: the piece's row is the first one
  template <class Body>
  bool for_each_piece(Body body) const {
    const std::int64_t rows = factors_[0].rows(), columns = factors_[1].rows();
    for (std::int64_t j = 0; j < columns; j += largest_.columns)
      for (std::int64_t i = 0; i < rows; i += largest_.rows)
        if (!body(Piece{i, std::min(largest_.rows, rows - i), j,
                        std::min(largest_.columns, columns - j)}))
          return false;
    return true;
  }

  bool is_possible(CublasLinear& linear) const {
    return for_each_piece([&](const Piece& piece) { return linear.has(product(piece)); });
  }

  void run(CublasLinear& linear) const {
    for (int f : {0, 1}) find_scale(f);
    for_each_piece([&](const Piece& piece) {
      if (piece.row == 0) round(1, piece.column, piece.columns);
      if (piece.column == 0 || largest_.rows < factors_[0].rows()) round(0, piece.row, piece.rows);
      return linear.run(product(piece), device::cuda_stream());
    });
  }

 private:
  ElementType type(int f) const {
    if (!narrow_) return ElementType::bf16;
    return factors_[f].is_gradient ? ElementType::e5m2 : ElementType::e4m3;
  }
  std::byte* copy(int f) const { return Room::here()->copies() + (f == 0 ? 0 : behind_); }

  Product product(const Piece& piece) const {
    const auto factor = [&](int f, std::int64_t rows) {
      return DeviceMatrix{.data = copy(f),
                          .rows = rows,
                          .columns = factors_[f].inner(),
                          .type = type(f),
                          .stride = stride_,
                          .scale = narrow_ ? &Room::here()->scales[f].down : nullptr};
    };
    Product made = rest_;
    made.a = factor(0, piece.rows), made.b = factor(1, piece.columns);
    made.transpose_a = false, made.transpose_b = true;
    made.c = part(rest_.c, piece), made.d = part(rest_.d, piece), made.z = part(rest_.z, piece);
    if (rest_.side)
      made.side = static_cast<std::byte*>(rest_.side) + piece.column * bytes_of(rest_.d.type);
    return made;
  }

  /// body(Format()) of the factor's format
  template <class Body>
  void with_format(int f, Body body) const {
    factors_[f].is_gradient ? body(float8_e5m2()) : body(float8_e4m3());
  }

  void find_scale(int f) const {
    Room& room = *Room::here();
    with_format(f, [&]<class Format>(Format) {
      find_float8_scale<Format>(factors_[f].values, room.parts, &room.scales[f]);
    });
  }

  void round(int f, std::int64_t first, std::int64_t count) const {
    narrow_ ? round_as<std::uint8_t>(f, first, count) : round_as<bfloat16>(f, first, count);
  }

  template <class Out>
  void round_as(int f, std::int64_t first, std::int64_t count) const {
    const Float8Factor& factor = factors_[f];
    const ConstMatrixOf<bfloat16>& x = factor.values;
    const Float8Scale* const scale = &Room::here()->scales[f];
    const MatrixView<Out> out(reinterpret_cast<Out*>(copy(f)), std::size_t(count),
                              std::size_t(stride_));
    with_format(f, [&]<class Format>(Format) {
      if (factor.transposed)
        round_to_float8_transposed<Format>(
            ConstMatrixOf<bfloat16>(x.data() + first, x.extent(0), std::size_t(count), x.stride(0)),
            scale, out);
      else
        round_to_float8<Format>(
            ConstMatrixOf<bfloat16>(&x(first, 0), std::size_t(count), x.extent(1), x.stride(0)),
            scale, out);
    });
  }

  Float8Factor factors_[2];
  Product rest_;
  bool narrow_;
  Piece largest_{};
  std::int64_t stride_ = 0;  ///< of copies, in elements
  std::int64_t behind_ = 0;  ///< where b's copy begins
};

}  // namespace

bool float8_product(CublasLinear& linear, const Float8Factor& a, const Float8Factor& b,
                    const Product& rest) {
  Rounded rounded(a, b, rest, true);
  if (!rounded.is_possible(linear)) {
    Product plain = rest;
    plain.epilogue = Epilogue::none;
    if (rest.epilogue != Epilogue::none && Rounded(a, b, plain, true).is_possible(linear))
      return false;
    rounded = Rounded(a, b, rest, false);
    if (!rounded.is_possible(linear)) return false;
  }
  rounded.run(linear);
  return true;
}

}  // namespace brume::kernels
