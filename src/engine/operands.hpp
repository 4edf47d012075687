/// @file A compute task's operands as typed pointers, and pointers as views.
#pragma once

#include "arena.hpp"
#include "kernels/types.hpp"

namespace brume::engine {

inline kernels::ConstVector part(const float* data, std::int64_t elements) {
  return kernels::ConstVector(data, std::size_t(elements));
}
inline kernels::Vector part(float* data, std::int64_t elements) {
  return kernels::Vector(data, std::size_t(elements));
}
inline kernels::Matrix rows(float* data, int num_rows, int num_columns) {
  return kernels::Matrix(data, std::size_t(num_rows), std::size_t(num_columns));
}

/// Elements [first, end) of a block's flat layout, and where they are.
struct Elements {
  std::int64_t first, end;
  float* data;

  kernels::Vector cut(std::int64_t from, std::int64_t to) const {
    return part(data + (from - first), to - from);
  }
};

struct Operands {
  const schedule::Program& program;
  const schedule::Task& task;
  const Arena& arena;

  template <typename T = float>
  T* data(schedule::Role role, int index = 0) const {
    const schedule::Operand& operand = task.at(role, index);
    return reinterpret_cast<T*>(arena.at(program.buffers[std::size_t(operand.buffer)]) +
                                operand.first_byte);
  }
  float* optional(schedule::Role role, int index = 0) const {
    return task.find(role, index) ? data(role, index) : nullptr;
  }
  std::int64_t elements(schedule::Role role, int index = 0) const {
    return task.at(role, index).bytes / std::int64_t(sizeof(float));
  }
  /// What an operand holds of its block: `fields` numbers an element, side by side.
  Elements part_of_block(schedule::Role role, int index, int fields) const {
    const schedule::Operand& operand = task.at(role, index);
    const std::int64_t first = program.buffers[std::size_t(operand.buffer)].first_element +
                               operand.first_byte / std::int64_t(fields * sizeof(float));
    return {first, first + elements(role, index) / fields, data(role, index)};
  }
  int block() const { return task.block; }
  kernels::Write write() const {
    return task.replaces ? kernels::Write::replace : kernels::Write::accumulate;
  }
};

}  // namespace brume::engine
