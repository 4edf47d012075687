/// @file New operands of operators whose times are measured.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "bench.hpp"
#include "engine/kernel_calls.hpp"

namespace brume::profiler {

/// New operands of one operator. Loops must leave them finite and away from zero, or later calls
/// would be timed on unusual numbers: so no gradient is written over what it is made from.
template <class Storage>
class Maker {
 public:
  explicit Maker(Operands& operands) : operands_(operands) { operands.restart(); }

  // Activations and weights:
  kernels::VectorOf<Storage> vector(std::int64_t elements) {
    return kernels::VectorOf<Storage>(operands_.values<Storage>(elements).data(),
                                      std::size_t(elements));
  }
  kernels::MatrixOf<Storage> matrix(std::int64_t rows, std::int64_t columns) {
    return kernels::MatrixOf<Storage>(operands_.values<Storage>(rows * columns).data(),
                                      std::size_t(rows), std::size_t(columns));
  }
  // Gradients of parameters, statistics and optimizer state:
  kernels::Vector wide_vector(std::int64_t elements) {
    return kernels::Vector(operands_.values<float>(elements).data(), std::size_t(elements));
  }
  kernels::Matrix wide_matrix(std::int64_t rows, std::int64_t columns) {
    return kernels::Matrix(operands_.values<float>(rows * columns).data(), std::size_t(rows),
                           std::size_t(columns));
  }
  kernels::Matrix wide_copy(std::span<const float> values, std::int64_t rows,
                            std::int64_t columns) {
    return kernels::Matrix(operands_.copy_of(values).data(), std::size_t(rows),
                           std::size_t(columns));
  }
  kernels::Vector zeros(std::int64_t elements) {
    return kernels::Vector(operands_.zeros(elements).data(), std::size_t(elements));
  }
  /// One number in double precision, 0.
  double* sum() { return reinterpret_cast<double*>(operands_.zeros(2).data()); }
  /// Copies of tokens, `chosen` of each, evenly among the experts.
  kernels::Routes routes(std::int64_t copies, std::int64_t experts, std::int64_t chosen) {
    std::vector<std::int32_t> routes;
    for (std::int64_t i = 0; i < copies; ++i) {  // copies of a token go to experts in turn
      const std::int64_t token = i / chosen, first = token * chosen % experts;
      routes.push_back(std::int32_t((first + i % chosen) % experts));
    }
    std::vector<std::int32_t> begins(std::size_t(experts) + 1);
    for (const std::int32_t expert : routes) ++begins[expert + 1];
    for (std::size_t e = 0; e < std::size_t(experts); ++e) begins[e + 1] += begins[e];
    std::vector<std::int32_t> next = begins;
    for (std::int64_t i = 0; i < copies; ++i) routes.push_back(next[std::size_t(routes[i])]++);
    routes.insert(routes.end(), begins.begin(), begins.end());
    auto* const all = operands_.copy_of(std::span<const std::int32_t>(routes)).data();
    if (all == nullptr) return {};
    return {.experts = all,
            .rows = all + copies,
            .begins = all + 2 * copies,
            .num_experts = int(experts),
            .chosen = int(chosen),
            .num_held = int(experts),
            .host_begins = operands_.on_host(std::move(begins)).data()};
  }
  const std::int32_t* numbers(const std::vector<std::int32_t>& values) {
    return operands_.copy_of(std::span<const std::int32_t>(values)).data();
  }
  /// Sequences of so many places, in blocks one behind the other.
  kernels::KeyCache<Storage> cache(const kernels::AttentionShape& shape, std::int64_t sequences,
                                   std::int64_t places, int block_tokens) {
    const std::int64_t blocks = ceil_div(places, std::int64_t{block_tokens});
    std::vector<std::int32_t> tables(std::size_t(sequences * blocks));
    std::iota(tables.begin(), tables.end(), 0);
    const std::int64_t of_block = std::int64_t{2} * shape.keys() * block_tokens * shape.head_dim;
    return {.data = operands_.values<Storage>(sequences * blocks * of_block).data(),
            .block_tokens = block_tokens,
            .blocks_per_sequence = int(blocks),
            .tables = numbers(tables)};
  }
  kernels::ConstTokens tokens(std::int64_t count, std::int64_t below) {
    return kernels::ConstTokens(operands_.tokens(count, below).data(), std::size_t(count));
  }

 private:
  Operands& operands_;
};

}  // namespace brume::profiler
