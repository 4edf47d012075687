#include "kernels/fused_attention.hpp"

#include <cudnn_frontend.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "device/cuda.hpp"
#include "device/memory.hpp"

namespace brume::kernels {
namespace {

namespace fe = cudnn_frontend;
using Attributes = fe::graph::Tensor_attributes;

/// What a call may need beside its operands [bytes]: room for one head of 16k tokens, or for four
/// of 8k that share a key head.
constexpr std::int64_t most_workspace_bytes = std::int64_t{640} << 20;

/// What a graph calls its operands.
enum Name : std::int64_t { q = 1, k, v, o, statistics, d_o, d_q, d_k, d_v };

/// The key heads that a rank's query heads read: `size` query heads each, in order.
struct Groups {
  int first = 0, count = 0, size = 0;
};

/// The groups by which cuDNN deals query heads out to key heads; none where a rank's lie otherwise.
std::optional<Groups> groups_of(const AttentionShape& shape) {
  const int first = shape.key_head(0), count = shape.key_head(shape.heads - 1) - first + 1;
  const Groups groups{first, count, shape.heads / count};
  for (int h = 0; h < shape.heads; ++h)
    if (shape.key_head(h) != first + h / groups.size) return {};
  return groups;
}

/// cuDNN's kernels read 16 bytes at once.
bool is_aligned(const FusedOperands& of) {
  const auto aligned = [](const FusedOperands::Rows& rows) {
    return std::uintptr_t(rows.data) % 16 == 0 && rows.stride % 8 == 0;
  };
  return aligned(of.qkv) && aligned(of.o) && aligned(of.d_o) && aligned(of.dqkv) &&
         std::uintptr_t(of.lse) % 16 == 0;
}

/// What a kernel is looked up for.
auto key_of(Pass pass, const AttentionShape& s, const FusedOperands& of) {
  return std::tuple(pass, s.batch, s.seq_len, s.heads, s.head_dim, s.kv_heads, s.group,
                    s.first_head, s.window, s.scale, s.cap, s.documents.begins != nullptr, of.bf16,
                    of.qkv.stride, of.o.stride, of.d_o.stride, of.dqkv.stride);
}

/// The next smaller number that divides the whole.
int smaller_share(int share, int whole) {
  do --share;
  while (whole % share != 0);
  return share;
}

/// A pass over a share of the sequences and key heads: its kernel, for all shares in turn.
struct Plan {
  Groups groups;
  int sequences = 0, key_heads = 0;
  std::unique_ptr<fe::graph::Graph> graph;
  std::int64_t workspace_bytes = 0;
};

/// The operands of a plan's graph: where they lie, not what is done with them.
class Operands {
 public:
  Operands(const AttentionShape& shape, const Plan& plan)
      : shape_(shape), plan_(plan), heads_(plan.key_heads * plan.groups.size) {}

  Attributes queries(Name name, std::int64_t stride) const { return rows(name, heads_, stride); }
  Attributes keys(Name name, std::int64_t stride) const {
    return rows(name, plan_.key_heads, stride);
  }
  Attributes lse() const {
    const std::int64_t T = shape_.seq_len;
    return Attributes()
        .set_uid(statistics)
        .set_dim({plan_.sequences, heads_, T, 1})
        .set_stride({shape_.heads * T, T, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }

 private:
  Attributes rows(Name name, std::int64_t heads, std::int64_t stride) const {
    const std::int64_t T = shape_.seq_len, D = shape_.head_dim;
    return Attributes()
        .set_uid(name)
        .set_dim({plan_.sequences, heads, T, D})
        .set_stride({T * stride, D, stride, 1});
  }

  const AttentionShape& shape_;
  const Plan& plan_;
  std::int64_t heads_;
};

/// Makes what a node of the graph gives one of the operands.
void give(const std::shared_ptr<Attributes>& result, const Attributes& as) {
  result->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
  result->set_data_type(as.get_data_type());
}

void add_forward(fe::graph::Graph& graph, const Operands& operands, const FusedOperands& of,
                 float scale) {
  const auto [out, lse] = graph.sdpa(graph.tensor(operands.queries(q, of.qkv.stride)),
                                     graph.tensor(operands.keys(k, of.qkv.stride)),
                                     graph.tensor(operands.keys(v, of.qkv.stride)),
                                     fe::graph::SDPA_attributes()
                                         .set_name("attention_forward")
                                         .set_generate_stats(true)
                                         .set_causal_mask(true)
                                         .set_attn_scale(scale));
  give(out, operands.queries(o, of.o.stride));
  give(lse, operands.lse());
}

void add_backward(fe::graph::Graph& graph, const Operands& operands, const FusedOperands& of,
                  float scale) {
  const auto [to_q, to_k, to_v] = graph.sdpa_backward(
      graph.tensor(operands.queries(q, of.qkv.stride)),
      graph.tensor(operands.keys(k, of.qkv.stride)), graph.tensor(operands.keys(v, of.qkv.stride)),
      graph.tensor(operands.queries(o, of.o.stride)),
      graph.tensor(operands.queries(d_o, of.d_o.stride)), graph.tensor(operands.lse()),
      fe::graph::SDPA_backward_attributes()
          .set_name("attention_backward")
          .set_causal_mask(true)
          .set_attn_scale(scale)
          .set_deterministic_algorithm(true));
  give(to_q, operands.queries(d_q, of.dqkv.stride));
  give(to_k, operands.keys(d_k, of.dqkv.stride));
  give(to_v, operands.keys(d_v, of.dqkv.stride));
}

/// cuDNN's kernels of one thread.
class Fused {
 public:
  Fused() {
    require(cudnnCreate(&handle_) == CUDNN_STATUS_SUCCESS, Failure::resource,
            "cuDNN does not start");
  }
  ~Fused() {
    plans_.clear();
    cudnnDestroy(handle_);
  }
  Fused(const Fused&) = delete;
  Fused& operator=(const Fused&) = delete;

  /// @return  null without a kernel
  const Plan* plan(Pass pass, const AttentionShape& shape, const FusedOperands& of) {
    if (!is_aligned(of)) return nullptr;
    const auto [entry, fresh] = plans_.try_emplace(key_of(pass, shape, of));
    if (fresh) entry->second = make(pass, shape, of);
    return entry->second ? &*entry->second : nullptr;
  }

  void run(Pass pass, const AttentionShape& shape, const FusedOperands& of, const Plan& plan) {
    require(cudnnSetStream(handle_, device::cuda_stream()) == CUDNN_STATUS_SUCCESS,
            Failure::resource, "cuDNN does not take a stream");
    // A run has one shape: no memory is given back, and waits for the device, within a step.
    if (workspace_.bytes() < plan.workspace_bytes) {
      workspace_ = {};
      workspace_ = device::Memory(plan.workspace_bytes);
    }
    if (pass == Pass::backward && plan.groups.count < shape.keys()) clear_key_gradients(shape, of);
    for (int sequence = 0; sequence < shape.batch; sequence += plan.sequences)
      for (int group = 0; group < plan.groups.count; group += plan.key_heads)
        run_share(pass, shape, of, plan, sequence, group);
  }

 private:
  /// Makes the plan with the largest share whose workspace has room.
  std::optional<Plan> make(Pass pass, const AttentionShape& shape, const FusedOperands& of) const {
    std::string why = "its query heads do not share key heads evenly";
    if (shape.window > 0 || shape.cap > 0.0f || shape.documents.begins) {
      why = "its queries see a window or a document of keys, or its scores have a cap";
    } else if (const std::optional<Groups> groups = groups_of(shape)) {
      Plan plan{*groups, shape.batch, groups->count, nullptr, 0};
      for (;;) {
        fe::error_t status = build(pass, shape, of, plan);
        why = status.get_message();
        if (status.is_bad()) break;
        if (plan.workspace_bytes <= most_workspace_bytes) return plan;
        why = fmt::format(
            "it needs {} beside its operands, CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT=0"
            " may help",
            format_bytes(double(plan.workspace_bytes)));
        if (shape.seq_len % 4 != 0) break;  // shares of lse would not begin at 16 bytes
        if (plan.sequences > 1)
          plan.sequences = smaller_share(plan.sequences, shape.batch);
        else if (plan.key_heads > 1)
          plan.key_heads = smaller_share(plan.key_heads, groups->count);
        else
          break;
      }
    }
    log::warn("attention's {} is done without cuDNN, slowly: {}",
              pass == Pass::forward ? "forward" : "backward", why.substr(0, why.find('\n')));
    return {};
  }

  fe::error_t build(Pass pass, const AttentionShape& shape, const FusedOperands& of,
                    Plan& plan) const {
    plan.graph = std::make_unique<fe::graph::Graph>();
    plan.graph->set_io_data_type(of.bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto add = pass == Pass::forward ? add_forward : add_backward;
    add(*plan.graph, Operands(shape, plan), of, shape.score_scale());
    fe::error_t status = plan.graph->build(handle_, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    return status.is_bad() ? status : plan.graph->get_workspace_size(plan.workspace_bytes);
  }

  /// Clears the gradients of all key heads: those that no query head here reads get no other.
  static void clear_key_gradients(const AttentionShape& shape, const FusedOperands& of) {
    constexpr std::size_t bytes = sizeof(std::uint16_t);
    const std::size_t queries = std::size_t(shape.heads) * shape.head_dim;
    device::cuda_check(
        cudaMemset2DAsync(static_cast<std::uint16_t*>(of.dqkv.data) + queries,
                          std::size_t(of.dqkv.stride) * bytes, 0,
                          (std::size_t(shape.width()) - queries) * bytes,
                          std::size_t(shape.batch) * shape.seq_len, device::cuda_stream()),
        "clearing gradients");
  }

  /// The share of sequences from `sequence` on, and of key heads from the `group`-th read on.
  void run_share(Pass pass, const AttentionShape& shape, const FusedOperands& of, const Plan& plan,
                 std::int64_t sequence, std::int64_t group) const {
    const std::int64_t row = sequence * shape.seq_len, head = group * plan.groups.size;
    const std::int64_t key = shape.heads + plan.groups.first + group, value = key + shape.keys();
    const auto at = [&](const FusedOperands::Rows& rows, std::int64_t head_of_row) -> void* {
      return static_cast<std::uint16_t*>(rows.data) + row * rows.stride +
             head_of_row * shape.head_dim;
    };
    std::unordered_map<std::int64_t, void*> places{
        {q, at(of.qkv, head)},
        {k, at(of.qkv, key)},
        {v, at(of.qkv, value)},
        {o, at(of.o, head)},
        {statistics, of.lse + (sequence * shape.heads + head) * shape.seq_len}};
    if (pass == Pass::backward)
      places.insert({{d_o, at(of.d_o, head)},
                     {d_q, at(of.dqkv, head)},
                     {d_k, at(of.dqkv, key)},
                     {d_v, at(of.dqkv, value)}});
    fe::error_t status = plan.graph->execute(handle_, places, workspace_.data());
    require(status.is_good(), Failure::resource, "cuDNN: attention failed: {}",
            status.get_message());
  }

  cudnnHandle_t handle_ = nullptr;
  device::Memory workspace_;
  std::map<decltype(key_of({}, {}, {})), std::optional<Plan>> plans_;
};

/// The calling thread's: its channel runs them one after another.
Fused& fused() {
  thread_local Fused fused;
  return fused;
}

}  // namespace

bool fused_attention(Pass pass, const AttentionShape& shape, const FusedOperands& operands) {
  const Plan* const plan = fused().plan(pass, shape, operands);
  if (plan) fused().run(pass, shape, operands, *plan);
  return plan != nullptr;
}

int fused_attention_calls(Pass pass, const AttentionShape& shape, const FusedOperands& operands) {
  const Plan* const plan = fused().plan(pass, shape, operands);
  return plan ? shape.batch / plan->sequences * (plan->groups.count / plan->key_heads) : 0;
}

}  // namespace brume::kernels
