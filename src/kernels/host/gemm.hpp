/// @file The matrix product below linear layers and attention.
#pragma once

#include <cstdint>

#include "base/float8.hpp"
#include "base/quantization.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

enum class Transpose : char { no = 'N', yes = 'T' };

/// A row-major factor: op(A) = A or its transpose; rows lie `stride` elements apart.
template <class Storage>
struct FactorOf {
  const Storage* data;
  std::int64_t stride;
  Transpose transpose = Transpose::no;
};

using Factor = FactorOf<float>;

/// A transposed factor whose rows, of k values, are quantized blocks.
struct QuantizedFactor {
  Quantization format;
  const std::byte* blocks;
};

/// C = alpha op(A) op(B) + beta C,  C [m, n], op(A) [m, k], op(B) [k, n]; with beta = 0 C is not
/// read. Sizes may be 0.
///
/// @throws Error(bug)       when a stride is shorter than its row
/// @throws Error(resource)  when oneDNN finds no memory for its packed copies
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Factor a, Factor b,
          float beta, float* c, std::int64_t stride);

/// C = op(A) op(B)  (+ C when accumulating), summed in fp32 and rounded once to the format of C. A
/// may be fp32 where B is of 16 bits.
///
/// @param row  [n] of C's format, added to each of its rows; null: none
/// @throws Error(resource)  when memory is short
template <class StorageA, class StorageB, class Result>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<StorageA>& a,
          const FactorOf<StorageB>& b, Write write, Result* c, std::int64_t stride,
          const Result* row = nullptr);

/// The same by oneDNN's matmul primitive, for sizes that are not 0.
template <class Storage, class Result>
void gemm_by_primitive(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<Storage>& a,
                       const FactorOf<Storage>& b, Write write, Result* c, std::int64_t stride,
                       const Result* row);

/// Whether it is there for bf16: it needs AVX-512.
bool has_bfloat16_primitive();

/// C = A op(B)  (+ C when accumulating) of few rows, with B in blocks: each thread makes a few rows
/// of B at a time and multiplies them from its cache. Sums are those of `gemm` with the same rows.
/// Sizes are not 0, and gemm_takes_blocks<Storage>(m) holds.
template <class Storage>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<Storage>& a,
          const QuantizedFactor& b, Write write, Storage* c, std::int64_t stride);
template <class Storage>
bool gemm_takes_blocks(std::int64_t m);

/// Whether the processor multiplies bf16 by tiles, and does so faster than the primitive.
bool has_tiles(std::int64_t m, std::int64_t k);

/// The same by tiles, with B transposed, for sizes that are not 0 and for which `has_tiles` holds.
/// Each sum has an order of its own, which m and the number of threads do not change.
/// @tparam FactorB  FactorOf<bfloat16>, or QuantizedFactor
template <class FactorB, class Result>
void gemm_tiles(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<bfloat16>& a,
                const FactorB& b, Write write, Result* c, std::int64_t stride);

/// Whether the processor has tiles and each size fills one.
bool has_blocks(std::int64_t m, std::int64_t n, std::int64_t k);

/// The same by tiles from packed copies of both factors, for sizes for which `has_blocks` holds.
/// Each sum has an order of its own, which neither m, n nor the number of threads change.
template <class Result>
void gemm_blocks(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<bfloat16>& a,
                 const FactorOf<bfloat16>& b, Write write, Result* c, std::int64_t stride,
                 const Result* row);

/// The same by products of fp32 copies, bounded pieces at a time, for sizes that are not 0.
template <class StorageA, class StorageB, class Result>
void gemm_widened(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<StorageA>& a,
                  const FactorOf<StorageB>& b, Write write, Result* c, std::int64_t stride);

/// The same of factors rounded to 8 bits as Factors::fp8 says, A to `Format` and B to e4m3, a block
/// of each at a time, for sizes that are not 0.
template <class Format, class Result>
void gemm_float8(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<bfloat16>& a,
                 const FactorOf<bfloat16>& b, Write write, Result* c, std::int64_t stride);

}  // namespace brume::kernels
