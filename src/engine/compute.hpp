/// @file The compute tasks of a Program as kernel calls.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arena.hpp"
#include "engine/engine.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/rope.hpp"
#include "operands.hpp"

namespace brume::engine {

/// What changes from step to step.
struct StepScalars {
  float loss_scale = 1.0f;   ///< S / target tokens of the global batch
  kernels::Update update{};  ///< the one that is applied in this step, without UpdateRules
  std::int64_t updates = 0;  ///< with that one
  std::map<std::string, std::int64_t> missed{};  ///< as in Progress
  double squares = 0.0;  ///< of the gradient that it applies, all of it, S^2 times too large
};

/// Runs forward, backward and optimizer tasks of one rank.
class Compute {
 public:
  virtual ~Compute() = default;
  virtual void run(const schedule::Program& program, const schedule::Task& task,
                   const StepScalars& step) const = 0;
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

 private:
  using Matrix = kernels::MatrixOf<Storage>;
  using ConstMatrix = kernels::ConstMatrixOf<Storage>;
  using ConstVector = kernels::ConstVectorOf<Storage>;

  /// A block's parameters within its flat buffers.
  struct BlockPieces {
    model::Block block;
    model::Layout layout;
    std::vector<UpdateRule> rules;  ///< of the block's parameters
    std::map<std::string, const model::Piece*, std::less<>> by_suffix;

    const model::Parameter& parameter(const model::Piece& piece) const {
      return block.parameters[std::size_t(piece.parameter)];
    }
  };
  /// A linear layer, and the columns of its input or output that are its own.
  struct Linear {
    std::string name;
    int first_column, columns;
  };
  /// A kind of segment: the ways through it, and where its saved tensors stand among its operands.
  struct SegmentParts {
    std::vector<model::Branch> branches;
    std::map<std::string, int, std::less<>> saved;
  };

  void describe_blocks(const plan::Plan& plan, const model::Config& model,
                       const Optimizer& optimizer);
  void describe_attention(const plan::Stage& stage, const model::Config& model);

  // --- what a task works on ---
  bool has(int block, std::string_view suffix) const;
  bool trains(int block, std::string_view suffix) const;
  const model::Piece& piece(int block, std::string_view suffix) const;
  const Storage* weights(const Operands& o) const {
    return o.data<Storage>(schedule::Role::weights);
  }
  ConstVector vector(const Storage* flat, int block, std::string_view suffix) const;
  /// The bias of a linear layer; an empty view where it has none.
  ConstVector bias(const Storage* flat, int block, const std::string& linear) const {
    return has(block, linear + ".bias") ? vector(flat, block, linear + ".bias") : ConstVector();
  }
  ConstMatrix matrix(const Storage* flat, int block, std::string_view suffix) const;
  /// Gradients of a block's parameters; an empty view where one is frozen, or there is none.
  kernels::Vector vector_grads(const Operands& o, std::string_view suffix) const;
  kernels::Matrix matrix_grads(const Operands& o, std::string_view suffix) const;
  Matrix saved(const Operands& o, std::string_view name, int columns) const;
  kernels::Vector statistic(const Operands& o, std::string_view name) const;
  /// Whether a tensor that is cheap to make again was kept.
  bool keeps(const Operands& o, std::string_view name) const {
    return o.task.find(schedule::Role::saved, saved_index(o, name)) != nullptr;
  }
  /// Such a tensor where it is kept, else at `room`.
  Matrix kept_or(const Operands& o, std::string_view name, int columns, Storage* room) const {
    return keeps(o, name) ? saved(o, name, columns) : rows(room, tokens_, columns);
  }
  /// The statistic of a norm: a number for each row of its input.
  kernels::Vector row_statistic(const Operands& o, const std::string& name) const {
    return part(o.data(schedule::Role::saved, saved_index(o, name)),
                std::int64_t(stream(o, schedule::Role::input).extent(0)));
  }
  int saved_index(const Operands& o, std::string_view name) const {
    return segments_.at(o.task.segment).saved.find(name)->second;
  }
  kernels::ConstTokens tokens(const Operands& o, schedule::Role role) const {
    return kernels::ConstTokens(o.data<std::int32_t>(role), std::size_t(o.elements(role)));
  }
  /// This rank's logits of the piece that the head works on, or their gradient.
  Matrix logits(const Operands& o, std::size_t num_tokens) const {
    return rows(o.data<Storage>(schedule::Role::saved, saved_index(o, "d_logits")), int(num_tokens),
                rows_);
  }
  /// What the head multiplies with: its own table or the tied one, and that one's gradient.
  ConstMatrix head_table(const Operands& o) const;
  kernels::Matrix head_table_grads(const Operands& o) const;
  Matrix stream(const Operands& o, schedule::Role role) const {
    const auto row_bytes = std::int64_t(std::size_t(hidden_) * sizeof(Storage));
    return rows(o.data<Storage>(role), int(o.task.at(role).bytes / row_bytes), hidden_);
  }

  // --- parts of segments ---
  void norm_forward(const Operands& o, const std::string& name, Matrix y) const;
  void norm_again(const Operands& o, const std::string& name, Matrix y) const;
  void norm_backward(const Operands& o, const std::string& name, ConstMatrix dy,
                     ConstMatrix residual, Matrix dx) const;
  void linear_backward_parameters(const Operands& o, const std::string& name, ConstMatrix dy,
                                  ConstMatrix x) const;

  // --- a layer's segment: norms, branches, and what they add to the stream ---
  void layer_forward(const Operands& o) const;
  void layer_backward(const Operands& o) const;
  /// Whether a backward, or a part of one, makes the gradient of its input, those of linear layers.
  static bool makes_input(const Operands& o) {
    return o.task.operation != schedule::Operation::backward_weights;
  }
  static bool makes_weights(const Operands& o) {
    return o.task.operation != schedule::Operation::backward_input;
  }
  void write_output(const Operands& o) const;
  const std::vector<Linear>& inputs_of(model::BranchKind kind) const {
    return kind == model::BranchKind::attention ? qkv_ : mlp_in_;
  }
  int input_width(model::BranchKind kind) const;
  template <typename Each>
  void for_inputs(const std::vector<model::Branch>& branches, const std::vector<Matrix>& gradients,
                  std::size_t first, std::size_t last, Each each) const;
  bool rotary() const { return !rope_.empty(); }
  kernels::AttentionShape attention(const Operands& o) const {
    kernels::AttentionShape shape =
        o.task.segment == model::SegmentKind::window ? windowed_ : attention_;
    shape.documents = documents(o);
    return shape;
  }
  static kernels::Documents documents(const Operands& o) {
    return {o.optional<std::int32_t>(schedule::Role::documents)};
  }
  kernels::ConstMatrix rope_table(const Operands& o) const {
    return rows(reinterpret_cast<float*>(rope_.at(o.task.segment).data()), attention_.seq_len,
                rotary_dim_);
  }
  /// Queries and keys of [N, q k v]: what positions turn.
  Matrix turned(const Matrix& qkv) const {
    return kernels::columns<Storage>(qkv, 0,
                                     (attention_.heads + attention_.keys()) * attention_.head_dim);
  }
  void turn(const Operands& o, Matrix qkv) const {
    if (rotary())
      kernels::rope_forward<Storage>(rope_table(o), attention_.head_dim, turned(qkv), documents(o));
  }
  /// Queries or keys of [N, q k v], by the name of their norm.
  struct NormedHeads {
    const char* norm;
    Matrix columns;
    kernels::Vector rstd;
  };
  std::array<NormedHeads, 2> normed_heads(const Operands& o, const Matrix& qkv) const;
  Matrix attention_input(const Operands& o, Storage* room) const;
  void project(const Operands& o, model::BranchKind kind, ConstMatrix normed) const;
  void attend(const Operands& o) const;
  bool gelu_goes_with_product(const Operands& o) const;
  void activate(ConstMatrix wide, Matrix a) const;
  Matrix inner_of(const Operands& o, model::BranchKind kind) const;
  void write_normed_output(const Operands& o, const model::Branch& branch) const;
  void attention_inner_backward(const Operands& o, ConstMatrix dy, Matrix d_qkv,
                                Storage* scratch) const;
  void mlp_inner_backward(const Operands& o, ConstMatrix dy, Matrix d_wide, Storage* scratch) const;

  // --- the first and the last segment ---
  void embedding_forward(const Operands& o) const;
  void embedding_backward(const Operands& o) const;
  void head_forward(const Operands& o, const StepScalars& step) const;
  void loss(const Operands& o, const StepScalars& step) const;
  void head_backward(const Operands& o) const;

  /// Elements [first, end) of a block, for the update's kernel.
  kernels::UpdatedElements updated(const Elements<Storage>& weights, const Elements<>& grads,
                                   const Elements<std::byte>& state, std::int64_t first,
                                   std::int64_t end) const;
  void optimizer_step(const Operands& o, const StepScalars& step) const;
  void accumulate(const Operands& o) const;
  void norm(const Operands& o) const;

  const Arena& arena_;
  plan::Place place_;
  std::vector<model::StateField> state_fields_;
  int state_bytes_;  ///< of an element
  kernels::UpdateKernels update_kernels_;
  int tp_, tp_rank_;
  int tokens_;       ///< N, of a microbatch
  int hidden_;       ///< C
  int attended_tp_;  ///< features of this rank's query heads
  int ffn_tp_;
  kernels::VocabularyPart vocabulary_;  ///< of this rank
  int rows_;                            ///< tokens in it
  float eps_;
  model::NormKind norm_kind_;
  model::MlpKind mlp_kind_;
  kernels::Factors factors_;  ///< of linear layers in blocks
  float gain_base_, embedding_scale_, logits_cap_;
  bool post_norms_;
  kernels::AttentionShape attention_, windowed_;  ///< of both kinds of layers
  bool qk_norm_;
  int rotary_dim_;  ///< R
  /// Tables of kernels::rope_forward by the segment that reads them; none: positions are learned.
  std::map<model::SegmentKind, device::Memory> rope_;
  std::vector<Linear> qkv_, mlp_in_;
  std::map<model::SegmentKind, SegmentParts> segments_;
  std::map<int, BlockPieces> blocks_;
};

}  // namespace brume::engine
