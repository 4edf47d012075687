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

  /// The common part of all candidates of a batch.
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
  struct Operand {
    bool shared;         ///< among what is common, else in a register
    std::int32_t place;  ///< there
  };
  struct Kind {
    Op op;
    bool shared_a, shared_b;  ///< location of the operands of arithmetic
    auto operator<=>(const Kind&) const = default;
  };
  /// The operands: in arithmetic `a` and `b` are their places; for a variable `a` is its number.
  struct Step {
    std::int32_t to = 0, a = 0, b = 0;
  };
  /// Steps of one kind, one after the other.
  struct Run {
    Kind kind;
    std::size_t length;
  };
  struct Call {
    std::shared_ptr<const Function> function;
    std::vector<Operand> operands;
  };

  std::vector<bool> reads_;
  std::vector<Tape::Step> shared_;  ///< steps of what is common
  std::vector<std::size_t> kept_;   ///< steps that the others or the outputs need
  std::vector<Step> steps_;
  std::vector<Run> runs_;    ///< runs of all steps
  std::vector<Call> calls_;  ///< calls in the order of their steps
  std::vector<Operand> outputs_;
  std::size_t num_registers_ = 0;
};

}  // namespace brume::symbolic
