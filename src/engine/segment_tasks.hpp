/// @file Tasks of segments: the operators of model::segment() as kernel calls.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "block_pieces.hpp"
#include "engine/expert_loads.hpp"
#include "engine/kernel_calls.hpp"
#include "kernels/pointwise.hpp"
#include "operands.hpp"

namespace brume::engine {

/// Runs a segment's operators, forward and backward, on the operands of a task. Weights and
/// activations are `Storage`, gradients of parameters and statistics fp32.
template <class Storage>
class SegmentTasks {
 public:
  /// @param blocks  outlive this object
  SegmentTasks(const plan::Plan& plan, const model::Config& model, const plan::Place& place,
               const std::map<int, BlockPieces>& blocks);

  void forward(const Operands& o, const StepScalars& step) const;
  /// Computes the second half of a head's forward whose logits are in parts.
  void loss(const Operands& o, const StepScalars& step) const;
  void backward(const Operands& o, const StepScalars& step) const;

  /// Work of the experts since the last call. Recomputation does not count.
  ExpertLoads take_loads() const;

 private:
  using Matrix = kernels::MatrixOf<Storage>;
  using ConstMatrix = kernels::ConstMatrixOf<Storage>;
  using Call = KernelCall<Storage>;

  using Module = model::Module;
  using Operation = schedule::Operation;
  using Operator = model::Operator;
  using OperatorKind = model::OperatorKind;
  using Part = model::Part;
  using Role = schedule::Role;
  using SegmentKind = model::SegmentKind;
  using TensorId = model::TensorId;
  using Write = kernels::Write;

  /// Columns of a module in the tensors that it shares with others.
  struct Columns {
    int first = 0, count = 0;  ///< 0: all
  };
  struct Tensor {
    int saved = -1;  ///< index among the operands of Role::saved
    int columns = 1;
    int share = 1;                       ///< ranks that hold other rows of it, and this one
    int rank = 0;                        ///< which of them this one is
    int copies = 1;                      ///< rows for each of this rank's tokens
    bool held = false;                   ///< has rows of the experts that this rank holds
    bool sent = false, arrives = false;  ///< as model::Tensor's
    int brought = -1;                    ///< index among the operands of Role::normed
    std::int64_t forward_offset = 0, backward_offset = 0, again_offset = 0;
  };
  /// A segment's list with all that a task asks of it.
  struct List {
    model::Segment segment;
    int ranks, rank;  ///< number of ranks that sum its output, and which of them this one is
    int room = 0;     ///< rows that tensors of held experts have
    bool may_take_rounds = false;  ///< a rank may hold more rows than that
    std::vector<Tensor> tensors;
    std::int64_t product_elements = 0;
    std::int64_t dequantized_forward = 0, dequantized_backward = 0;  ///< its place in the scratch
    std::vector<model::Run> forward_runs, backward_runs;
    bool cuts = false;            ///< input and output are this rank's rows
    int experts_run = 0;          ///< of the backward, in which products of experts are
    model::TensorId routes = {};  ///< of copies of tokens, where there are experts
    /// Where rows travel to their experts: those that ranks send each other, choices of all tokens,
    /// and the first operator that reads what arrived, else 0.
    model::TensorId sends = {}, choices = {};
    int arrival = 0;
    /// First operator that may take rounds, if a run begins with it; else 0.
    int rounds = 0;
    /// Copies for each expert on the ranks of a sequence, if these are balanced; else `input`.
    model::TensorId loads = {};
    std::vector<bool> for_output;  ///< operators not needed if nobody reads the output
    // GELU, and the products next to it that kernels may take with it; -1: none.
    int product_before = -1, gelu = -1, product_behind = -1;
    kernels::AttentionShape attention = {};
    device::Memory angles;           ///< table of kernels::rope_forward
    std::vector<std::uint8_t> pads;  ///< whether a token pads a sequence; empty: none does
    device::Memory padding;          ///< ... on the device

    const Tensor& tensor(model::TensorId id) const { return tensors[std::size_t(id)]; }
    const model::Operator& op(int index) const { return segment.operators[index]; }
  };
  /// Memory of one task.
  struct Pass {
    const Operands& o;
    const List& list;
    const BlockPieces& block;
    int rows;  ///< of all tokens, or of a round's
    bool backward;
    Storage *scratch, *products;
    Storage* dequantized = nullptr;  ///< place of a factor that is made of blocks
    bool gelu_in_product;
    int first_row = 0, all_rows = rows;             ///< of a round; of all tokens
    bool adds = false;                              ///< to gradients that an earlier round made
    bool knows_choices = false;                     ///< of all tokens
    mutable std::vector<std::int32_t> begins = {};  ///< Routes::host_begins, once they are read
    mutable std::vector<std::int32_t> sent_begins = {};  ///< the same of rows that are sent

    int own_rows() const { return all_rows / list.ranks; }

    /// A matrix of all tokens, or its rows of the round.
    template <class View>
    View of_round(const View& all) const {
      if (rows == all_rows) return all;
      return View(all.data() + std::size_t(first_row) * all.stride(0), std::size_t(rows),
                  all.extent(1), all.stride(0));
    }
  };
  /// Tokens whose copies the room for held experts takes.
  struct Round {
    int first, count;
  };

  /// Rows [first, first + count) of a head's logits, and their part of the loss.
  struct LossPart {
    int first, count;
    float scale;
    kernels::Write write;
    double* loss;  ///< and misses behind it
  };

  void describe_attention(const plan::Stage& stage, const model::Config& model);
  void describe(List& list, const model::Config& model, model::SegmentKind kind,
                const plan::Place& place, const model::Split& split);
  void mark_padding(List& list, const plan::Stage& stage, const plan::Place& place);
  void describe_low(const model::Operator& op, const model::Adapter& adapter);
  static Storage* workspace(const Operands& o);
  Pass pass(const Operands& o, bool backward) const;

  Matrix stream(const Operands& o, schedule::Role role, int index = 0) const {
    const auto row_bytes = std::int64_t(std::size_t(hidden_) * sizeof(Storage));
    return rows(o.data<Storage>(role, index), int(o.task.at(role, index).bytes / row_bytes),
                hidden_);
  }
  kernels::ConstTokens tokens(const Operands& o, schedule::Role role) const {
    return {o.data<std::int32_t>(role), std::size_t(o.elements(role))};
  }
  bool keeps(const Pass& p, model::TensorId id) const;
  Matrix tensor(const Pass& p, model::TensorId id) const;
  Matrix gradient(const Pass& p, model::TensorId id) const;
  Matrix gradient_at(const Pass& p, model::TensorId id) const;
  Matrix own_rows(const Pass& p, model::TensorId id, const Matrix& all) const;
  kernels::Vector statistic(const Pass& p, model::TensorId id) const;
  float* wide_gradient(const Pass& p, model::TensorId id) const;
  kernels::Routes routes(const Pass& p) const;
  kernels::Routes made_routes(const Pass& p) const;
  kernels::TokenRows token_rows(const Pass& p) const;
  kernels::Routes sent_rows(const Pass& p) const;
  int num_rows(const Pass& p, const Tensor& tensor) const;
  std::int64_t skipped(const Pass& p, const Tensor& tensor) const;
  ConstMatrix weight(const Pass& p, model::ParameterId id) const;
  void set_weight(const Pass& p, model::ParameterId id, Call& c) const;
  kernels::Matrix weight_grads(const Pass& p, model::ParameterId id) const;
  bool trains_reader(const Pass& p, model::TensorId id) const;

  Call call(const Pass& p, const model::Operator& op) const;
  void route(const Pass& p, const model::Operator& op, Call& c) const;
  void choose_own(const Pass& p, const model::Operator& op, Call& c) const;
  void order(const Pass& p, const model::Operator& op, Call& c) const;
  float* wide(const Pass& p, model::TensorId id) const;
  void set_sinks(const Pass& p, Call& c) const;
  void set_experts_bias(const Pass& p, model::Module module, Call& c) const;
  std::vector<std::int32_t> read_choices(const Pass& p) const;
  void count_loads(const Pass& p) const;
  bool shares_loads(const Pass& p) const { return p.list.loads != TensorId::input; }
  Round own_part(const Pass& p) const;
  void count_own_copies(const Pass& p) const;
  std::vector<Round> rounds(const Pass& p) const;
  template <class Each>
  void for_rounds(const Pass& p, Each each) const;
  kernels::RouterLoss router_loss(const Pass& p, const StepScalars& step) const;
  template <class Each>
  void for_modules(const Pass& p, const model::Operator& op, const Call& whole, Each each,
                   bool multiplies = true) const;
  void scale_low(const model::Operator& op, Matrix low) const;
  template <class Use>
  void for_losses(const Operands& o, const StepScalars& step, Use use) const;
  bool adds_to(const Pass& p, model::TensorId id) const;
  void run_forward(const Pass& p, const model::Operator& op, const Call& whole, bool again) const;
  Columns turned_columns(const model::Operator& op) const;
  Columns columns_of_second(const model::Operator& op) const;
  bool norms_columns(const model::Operator& op, const Matrix& read) const;
  static bool makes_input(const Operands& o) {
    return o.task.operation != Operation::backward_weights;
  }
  static bool makes_weights(const Operands& o) {
    return o.task.operation != Operation::backward_input;
  }
  /// Whether somebody reads the output of a forward, of which a task may be a part.
  bool wants_output(const Pass& p) const {
    const schedule::Task& task = p.o.task;
    return task.find(schedule::Role::output) != nullptr ||
           (p.list.arrival > 0 && task.operation == schedule::Operation::forward);
  }
  bool needs_rounds(const Pass& p) const {
    return p.list.room > 0 && made_routes(p).held_rows() > p.list.room;
  }
  /// Whether a pass keeps a tensor of all tokens, not of the last round.
  bool lasts(const Pass& p, model::TensorId id) const {
    return (keeps(p, id) || p.list.tensor(p.list.segment.tensor(id).rows_of).brought >= 0) &&
           !p.list.tensor(id).held;
  }
  void make_of_round(const Pass& q, int last) const;
  void forward_in_rounds(const Pass& p, int choice, int end, const ConstMatrix& sum) const;
  void begin_experts_gradients(Pass& p) const;
  /// State that the calls of a backward share.
  struct Backward {
    const StepScalars& step;
    ConstMatrix sum;         ///< added to the gradient of the input
    std::vector<char> made;  ///< outputs made again here
  };
  void run_backward(const Pass& p, const model::BackwardCall& called, Backward& shared) const;
  void backward_in_rounds(const Pass& p, const model::Run& run, const StepScalars& step) const;

  int tp_, tp_rank_;
  int hidden_;
  int rows_of_table_;  ///< tokens of the vocabulary that this rank has
  kernels::VocabularyPart vocabulary_;
  float eps_, gain_base_, embedding_scale_, logits_cap_;
  int num_experts_, experts_per_token_;
  int cp_, cp_rank_;           ///< ranks that share a sequence; this one
  int first_token_;            ///< place of this rank's first token
  int first_held_, num_held_;  ///< experts that this rank holds
  int first_dense_layers_;
  kernels::Router router_;
  double balance_loss_, z_loss_;
  int rotary_dim_;
  int seq_len_, learned_len_;  ///< tokens of a sequence, with padding and without it
  bool pairs_;
  int block_tokens_, blocks_per_sequence_;  ///< of the key cache, in generation
  kernels::AttentionShape attention_;
  kernels::LatentShape latent_;
  std::array<Columns, model::num_modules> columns_;
  /// Columns of a module in the tensor between the factors of adapters, and the scale of its term.
  std::array<Columns, model::num_modules> low_columns_;
  std::array<float, model::num_modules> lora_scales_{};
  std::map<model::SegmentKind, List> lists_;
  const std::map<int, BlockPieces>& blocks_;
  mutable ExpertLoads loads_;  ///< written by the compute channel
};

}  // namespace brume::engine
