/// @file The compute tasks of a Program as kernel calls.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "kernels/optimizers.hpp"
#include "segment_tasks.hpp"

namespace brume::engine {

/// Runs forward, backward and optimizer tasks of one rank.
class Compute {
 public:
  virtual ~Compute() = default;
  virtual void run(const schedule::Program& program, const schedule::Task& task,
                   const StepScalars& step) const = 0;
  /// See SegmentTasks.
  virtual ExpertLoads take_loads() const = 0;
};

/// The Compute for the model's precision.
std::unique_ptr<Compute> make_compute(const plan::Plan& plan, const model::Config& model, int rank,
                                      const Optimizer& optimizer, const Arena& arena);

/// Weights and activations are `Storage`, gradients of parameters and statistics fp32. Operands
/// give the memory, model and plan the sizes, and the model's description the sequence of kernels.
template <class Storage>
class ComputeOf final : public Compute {
 public:
  ComputeOf(const plan::Plan& plan, const model::Config& model, int rank,
            const Optimizer& optimizer, const Arena& arena);

  void run(const schedule::Program& program, const schedule::Task& task,
           const StepScalars& step) const override;
  ExpertLoads take_loads() const override { return segments_.take_loads(); }

 private:
  /// The optimizer state that an operand holds of its block.
  struct State {
    std::int64_t first, end;
    std::byte* data;
    std::vector<model::FieldPart> fields;
  };
  State state(const Operands& o, int index) const;
  /// Elements [first, end) of a block, for the update's kernel.
  kernels::UpdatedElements updated(const Elements<Storage>& weights, const State& state,
                                   std::int64_t first, std::int64_t end) const;
  void optimizer_step(const Operands& o, const StepScalars& step) const;
  void matrix_step(const Operands& o, const StepScalars& step) const;
  void accumulate(const Operands& o) const;
  void norm(const Operands& o) const;

  const Arena& arena_;
  model::Config model_;
  kernels::UpdateKernels wide_kernels_, blocked_kernels_;  ///< of moments in fp8 and all others
  MatrixScale matrix_scale_;
  plan::Place place_;
  int tp_, tp_rank_;
  std::map<int, BlockPieces> blocks_;
  SegmentTasks<Storage> segments_;
};

}  // namespace brume::engine
