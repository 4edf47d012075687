/// @file Expressions for many candidates that have most of their variables in common.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "symbolic/expr.hpp"

namespace brume::symbolic {

/// A tape in two parts. What follows from variables that the candidates of a batch share is
/// computed once, and may be kept for other batches; the rest is computed for the candidates side
/// by side.
class BatchTape {
 public:
  /// @param shared  [V] which variables are the same for all candidates of a batch
  BatchTape(const Tape& tape, const std::vector<bool>& shared);

  /// Whether anything depends on a variable.
  bool reads(std::size_t variable) const { return reads_[variable]; }

  /// What all candidates of a batch have in common.
  ///
  /// @param values  [V] those of variables that are not shared are not read
  std::vector<double> common(std::span<const double> values) const;

  /// Evaluates all outputs for `count` candidates. A function is asked once for candidates beside
  /// each other with equal arguments.
  ///
  /// @param common   what common() gave
  /// @param inputs   [V] columns of `count` numbers; those of shared variables are not read
  /// @param outputs  [O] columns of `count` numbers, written
  void evaluate(std::span<const double> common, std::span<const double* const> inputs,
                std::span<double* const> outputs, std::size_t count) const;

 private:
  /// An operation on registers, or, where an operand is negative, on ~operand of what is common.
  struct Step {
    Op op;
    std::int32_t to = 0, a = 0, b = 0;  ///< of a call: a operands from the b-th
  };

  std::vector<bool> reads_;
  std::vector<Tape::Step> shared_;  ///< steps of what is common
  std::vector<std::size_t> kept_;   ///< of them, those that the others or the outputs need
  std::vector<Step> steps_;
  std::vector<std::int32_t> operands_;                      ///< of calls
  std::vector<std::shared_ptr<const Function>> functions_;  ///< of calls, in the order of steps
  std::vector<std::int32_t> outputs_;                       ///< operands
  std::size_t num_registers_ = 0;
};

}  // namespace brume::symbolic
