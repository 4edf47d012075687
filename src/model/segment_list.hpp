/// @file The list of operators of a segment, as it is made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "segment_sizes.hpp"

namespace brume::model {

/// Knows how much is trained of the parameters of blocks that have a backward.
class TrainedShares {
 public:
  /// @param blocks  of the model; may be left out where all parameters are trained
  TrainedShares(const Config& m, const std::vector<Block>& blocks) {
    if (m.frozen_parameters.empty()) return;
    for (auto block = blocks.begin() + m.frozen_blocks; block != blocks.end(); ++block)
      parameters_.insert(parameters_.end(), block->parameters.begin(), block->parameters.end());
  }

  /// @return the share that is trained of a part of the modules; 1 if they have none
  double of(const std::vector<Module>& modules, Part part) const {
    std::int64_t all = 0, trained = 0;
    for (const Parameter& one : parameters_) {
      if (one.id.part != part || !std::ranges::count(modules, one.id.module)) continue;
      all += one.elements();
      if (!one.frozen) trained += one.elements();
    }
    return all > 0 ? double(trained) / double(all) : 1.0;
  }

 private:
  std::vector<Parameter> parameters_;  ///< empty where all are trained
};

/// Lists a segment's operators in forward order. Those of a layer are, branch by branch, what leads
/// from its input to the inner tensors, then what these add to the stream.
class SegmentList {
 public:
  SegmentList(const Config& m, SegmentKind kind, Division division)
      : SegmentList(m, kind, division,
                    m.frozen_parameters.empty() && m.quantization == Quantization::none
                        ? std::vector<Block>()
                        : blocks(m)) {}

  Segment embedding();
  Segment layer();
  Segment head();

 private:
  SegmentList(const Config& m, SegmentKind kind, Division division,
              const std::vector<Block>& blocks)
      : m_(m),
        s_(m, kind),
        trained_(m, blocks),
        sharing_(division.sharing),
        dispatches_(kind == SegmentKind::experts && division.dispatches),
        cuts_tokens_(kind != SegmentKind::embedding && kind != SegmentKind::head &&
                     division.axes.meets(sum_axes(kind))),
        segment_{.kind = kind} {
    segment_.activation_bytes = activation_bytes(m.precision);
    if (m.quantization != Quantization::none)
      for (const Parameter& one : blocks.at(1).parameters)
        if (one.quantization != Quantization::none) quantized_.push_back(one.id.module);
    s_.tokens = pieces(m, kind, division).tokens;
    if (dispatches_) s_.shared_tp = m.shared_expert_ffn_size;
    for (const char* end : {"input", "output"}) {
      const TensorId id = activation(end, s_.hidden);
      if (cuts_tokens_) cut(id);
    }
  }

  TensorId tensor(std::string name, Expr rows, Expr columns, int element_bytes) {
    segment_.tensors.push_back(
        {std::move(name), std::move(rows), std::move(columns), element_bytes});
    return TensorId(segment_.tensors.size() - 1);
  }
  TensorId activation(std::string name, const Expr& columns) {
    const TensorId id = tensor(std::move(name), s_.tokens, columns, segment_.activation_bytes);
    if (own_alone_) cut(id);
    return id;
  }
  /// Rows for those of another tensor.
  TensorId as_many_rows(std::string name, TensorId other, const Expr& columns) {
    const Tensor rows = segment_.tensor(other);
    const TensorId id = tensor(std::move(name), rows.rows, columns, segment_.activation_bytes);
    segment_.tensor(id).gathered = rows.gathered;
    segment_.tensor(id).cut = rows.cut;
    return id;
  }
  /// @param copies  rows for each token
  TensorId in_fp32(std::string name, const Expr& columns, int copies = 1) {
    const TensorId id =
        tensor(std::move(name), double(copies) * s_.tokens, columns, statistic_bytes);
    segment_.tensor(id).copies = copies;
    if (own_alone_) cut(id);
    return id;
  }
  /// Rows of this rank's tokens.
  TensorId of_own(std::string name, const Expr& columns) {
    const TensorId id = activation(std::move(name), columns);
    if (cuts_tokens_) cut(id);
    return id;
  }
  /// Rows of the experts on this rank. Their number is known when tokens have chosen.
  TensorId held(std::string name, const Expr& columns) {
    const TensorId id = tensor(std::move(name), room_, columns, segment_.activation_bytes);
    segment_.tensor(id).held = true;
    return id;
  }
  TensorId statistic(std::string name, const Expr& rows) {
    return tensor(std::move(name), rows, 1.0, statistic_bytes);
  }

  struct Product {
    std::vector<Module> modules;
    Expr outputs, inputs;
    Part part = Part::weight;
  };
  /// [M, K] x [K, N]: backward makes both gradients, so it costs twice the forward.
  void product(std::string name, OperatorKind kind, TensorId read, TensorId written,
               const Product& product);
  void linear(const std::string& name, TensorId read, TensorId written,
              const std::vector<Module>& modules) {
    linear(name, read, written, modules, segment_.tensor(written).columns);
  }
  void linear(const std::string& name, TensorId read, TensorId written,
              const std::vector<Module>& modules, const Expr& outputs);
  /// Columns that a module's product reads: gathered latent features have a turned key after them.
  Expr inputs(TensorId read, Module module) const {
    return module == Module::kv_up ? Expr(m_.kv_lora_rank) : segment_.tensor(read).columns;
  }
  /// A linear layer that may have an adapter, and the columns that it writes.
  using Target = std::pair<Module, Expr>;
  void adapt(const std::string& name, TensorId read, TensorId written,
             const std::vector<Target>& targets, OperatorKind kind = OperatorKind::matmul);
  /// A pass over memory: so many reads and writes per element, forward and backward.
  Operator& streaming(std::string name, OperatorKind kind, TensorId read, TensorId written,
                      std::vector<Expr> dims, const Expr& elements);
  void epilogue(std::string name, TensorId read, TensorId written, std::vector<Module> modules);
  void norm(const std::string& name, Module module, TensorId read, TensorId written);
  /// Cuts the rows of a tensor over the ranks that sum the output.
  void cut(TensorId id) {
    segment_.tensor(id).rows = s_.tokens / sum_ranks(segment_.kind);
    segment_.tensor(id).cut = sum_axes(segment_.kind);
  }
  void exchange(std::string name, OperatorKind kind, TensorId read, TensorId written, AxisSet axes);
  /// Rows of all tokens of a sequence that several ranks share.
  TensorId of_sequence(std::string name, const Expr& columns) {
    const TensorId id = tensor(std::move(name), s_.b * s_.seq, columns, segment_.activation_bytes);
    segment_.tensor(id).gathered = Axis::cp;
    return id;
  }
  TensorId to_heads(const std::string& name, TensorId read, const Expr& columns);
  TensorId to_tokens(const std::string& name, TensorId read);
  TensorId gathered_keys(TensorId qkv);
  TensorId normed(const std::string& name, Module module);
  TensorId exchanged(const std::string& name, TensorId normed);
  TensorId qkv(TensorId normed);
  TensorId down(const std::string& name, TensorId normed, Module module, Module norm, int rank);
  void latent_queries(TensorId features, TensorId written);
  TensorId query_features(TensorId normed);
  TensorId latent_qkv(TensorId normed);
  TensorId gathered_latents(TensorId normed, std::optional<TensorId>& queries);
  TensorId latent_attention(TensorId normed);
  void latent_product(const char* name, OperatorKind kind, TensorId read, TensorId written,
                      const Expr& outputs, const Expr& inputs);
  void cached_attention(TensorId qkv, TensorId attended, const Expr& heads, const Expr& head_dim,
                        const Expr& key_columns);
  TensorId attention(TensorId normed);
  /// The first products of a dense MLP.
  struct Inner {
    std::string prefix;  ///< of names
    Module in, gate, up;
    Expr in_width, width;
    std::optional<TensorId> gates = {};  ///< factors of its rows
  };
  TensorId mlp(TensorId normed, const Inner& inner);
  TensorId shared_expert(TensorId normed);
  void add_product(const std::string& name, TensorId read, TensorId written, Module module) {
    linear(name, read, written, {module});
    adapt(name, read, written, {{module, s_.hidden}});
  }
  TensorId router(TensorId normed, const Expr& experts, bool of_own);
  void choose(TensorId normed, const Expr& experts, int copies);
  void count_loads(const Expr& experts);
  TensorId arrived(TensorId normed, const Expr& experts, int copies);
  void travel(std::string name, OperatorKind kind, TensorId read, TensorId written);
  TensorId experts(TensorId normed);
  void combine(TensorId read, TensorId written);
  OperatorKind activation_kind() const;
  OperatorKind product_of_layer() const {
    return m_.precision == Precision::fp8 ? OperatorKind::matmul_fp8 : OperatorKind::matmul;
  }
  Segment derived() {
    derive(segment_);
    return std::move(segment_);
  }

  const Config& m_;
  Sizes s_;
  TrainedShares trained_;
  Sharing sharing_;
  bool dispatches_;         ///< rows travel to the ranks of their experts, else all are gathered
  bool cuts_tokens_;        ///< norms and residuals are of this rank's rows
  bool own_alone_ = false;  ///< all that is made is of this rank's rows
  std::optional<TensorId> shared_ =
      {};  ///< read by the shared expert's last product, if rows travel
  std::vector<Module> quantized_;
  Segment segment_;
  TensorId routes_ = {}, gates_ = {};  ///< of the tokens' copies
  TensorId sent_ = {}, sends_ = {};    ///< rows that this rank's tokens have for other ranks
  Expr held_ = 0.0;  ///< rows that the experts on a rank are expected to have where they have most
  Expr room_ = 0.0;  ///< rows of tensors of held experts: held_, and at least one token's
};

}  // namespace brume::model
