/// @file The compute tasks of a Program as kernel calls.
#pragma once

#include <map>
#include <string_view>

#include "arena.hpp"
#include "engine/engine.hpp"
#include "kernels/adamw.hpp"
#include "kernels/attention.hpp"
#include "kernels/types.hpp"

namespace brume::engine {

/// What changes from step to step.
struct StepScalars {
  float loss_scale = 1.0f;  ///< 1 / target tokens of the global batch
  kernels::AdamW
      adamw{};  ///< of the update that is applied in this step; grad_scale and decay aside
  double clip_norm = 0.0;
  float weight_decay = 0.0f;
};

/// Runs forward, backward and optimizer tasks of one rank. Operands give the memory, model and plan
/// the sizes.
class Compute {
 public:
  Compute(const plan::Plan& plan, const model::Config& model, int rank, const Arena& arena);

  void run(const schedule::Program& program, const schedule::Task& task,
           const StepScalars& step) const;

 private:
  struct Operands;  ///< a task's operands as pointers and views
  /// A block's parameters within its flat buffers.
  struct BlockPieces {
    model::Block block;
    model::Layout layout;
    std::map<std::string, const model::Piece*, std::less<>> by_suffix;
  };
  const model::Piece& piece(int block, std::string_view suffix) const;
  kernels::ConstVector vector(const float* flat, int block, std::string_view suffix) const;
  kernels::Vector vector(float* flat, int block, std::string_view suffix) const;
  kernels::ConstMatrix matrix(const float* flat, int block, std::string_view suffix) const;
  kernels::Matrix matrix(float* flat, int block, std::string_view suffix) const;

  void embedding_forward(const Operands& o) const;
  void embedding_backward(const Operands& o) const;
  void attention_forward(const Operands& o) const;
  void attention_backward(const Operands& o) const;
  void mlp_forward(const Operands& o) const;
  void mlp_backward(const Operands& o) const;
  void head_forward(const Operands& o, const StepScalars& step) const;
  void head_backward(const Operands& o) const;
  void write_output(const Operands& o, std::string_view prefix, kernels::ConstMatrix inner) const;
  void optimizer_step(const Operands& o, const StepScalars& step) const;
  void norm(const Operands& o) const;

  const Arena& arena_;
  plan::Place place_;
  int tokens_;  ///< N, of a microbatch
  int tp_;
  int hidden_;     ///< C
  int hidden_tp_;  ///< of this rank's heads
  int ffn_tp_;
  int vocab_;
  float eps_;
  kernels::AttentionShape attention_;
  std::map<int, BlockPieces> blocks_;
};

}  // namespace brume::engine
