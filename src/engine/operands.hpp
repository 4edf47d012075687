/// @file A compute task's operands as typed pointers, and pointers as views.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "arena.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/types.hpp"

namespace brume::engine {

/// Scalars that change from step to step.
struct StepScalars {
  float loss_scale = 1.0f;      ///< S / target tokens of the global batch
  double sequence_scale = 1.0;  ///< S / sequences of the global batch
  /// For pairs: derivative of the loss by each sequence's negative log-probability, times S
  /// [microbatch, sequence]; none: 1, in an evaluation.
  std::vector<float> factors{};
  kernels::Update update{};  ///< the one that is applied in this step, without UpdateRules
  std::int64_t updates = 0;  ///< with that one
  std::map<std::string, std::int64_t> missed{};  ///< as in Progress
  double squares = 0.0;  ///< of the gradient that it applies, all of it, S^2 times too large
};

inline kernels::ConstVector part(const float* data, std::int64_t elements) {
  return kernels::ConstVector(data, std::size_t(elements));
}
inline kernels::Vector part(float* data, std::int64_t elements) {
  return kernels::Vector(data, std::size_t(elements));
}
template <class Storage>
kernels::MatrixOf<Storage> rows(Storage* data, int num_rows, int num_columns) {
  return kernels::MatrixOf<Storage>(data, std::size_t(num_rows), std::size_t(num_columns));
}

/// Elements [first, end) of a block's flat layout, and where they are.
template <class Element = float>
struct Elements {
  std::int64_t first, end;
  Element* data;

  Element* at(std::int64_t element) const { return data + (element - first); }
  kernels::VectorOf<Element> cut(std::int64_t from, std::int64_t to) const {
    return kernels::VectorOf<Element>(at(from), std::size_t(to - from));
  }
};

struct Operands {
  const schedule::Program& program;
  const schedule::Task& task;
  const Arena& arena;

  template <typename T = float>
  T* data(schedule::Role role, int index = 0) const {
    const schedule::Operand& operand = task.at(role, index);
    return reinterpret_cast<T*>(arena.at(program.buffer(operand)) + operand.first_byte);
  }
  template <typename T = float>
  T* optional(schedule::Role role, int index = 0) const {
    return task.find(role, index) ? data<T>(role, index) : nullptr;
  }
  std::int64_t elements(schedule::Role role, int index = 0) const {
    return task.at(role, index).bytes / std::int64_t(sizeof(float));
  }
  /// What an operand holds of its block, with `element_bytes` an element.
  template <typename T = float>
  Elements<T> part_of_block(schedule::Role role, int index,
                            std::int64_t element_bytes = sizeof(T)) const {
    const schedule::Operand& operand = task.at(role, index);
    const std::int64_t first =
        program.buffer(operand).first_element + operand.first_byte / element_bytes;
    return {first, first + operand.bytes / element_bytes, data<T>(role, index)};
  }
  int block() const { return task.block; }
  kernels::Write write() const {
    return task.replaces ? kernels::Write::replace : kernels::Write::accumulate;
  }
};

}  // namespace brume::engine
