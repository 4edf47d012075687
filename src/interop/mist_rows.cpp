#include "mist_rows.hpp"

#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace brume::interop {
namespace {

using Dims = std::vector<std::int64_t>;

std::int64_t product(std::span<const std::int64_t> dims, const std::string& where) {
  std::int64_t all = 1;
  for (const std::int64_t dim : dims)
    require(!__builtin_mul_overflow(all, dim, &all), Failure::input, "{}: a tensor is too large",
            where);
  return all;
}

/// One measured operator of the file.
class Entry {
 public:
  Entry(const json& entry, std::string where)
      : entry_(entry), args_(at(entry, "args", where)), where_(std::move(where)) {}

  /// The shape of a tensor argument, of so many dimensions (0: any number).
  Dims shape(const std::string& name, std::size_t count = 0) const {
    const json& list = at(at(args_, name, where_), "shape", where_ + ": " + name);
    require(list.is_array() && list.size() <= 8 && (count == 0 || list.size() == count),
            Failure::input, "{}: the shape of '{}' has a wrong number of dimensions", where_, name);
    Dims dims;
    for (const json& dim : list) dims.push_back(size(dim, name, where_));
    product(dims, where_);
    return dims;
  }

  std::int64_t elements(const std::string& name) const { return product(shape(name), where_); }

  /// A tensor [..., C] as rows and columns.
  Dims rows(const std::string& name) const {
    const Dims dims = shape(name);
    require(!dims.empty(), Failure::input, "{}: '{}' has no dimension", where_, name);
    return {product({dims.data(), dims.size() - 1}, where_), dims.back()};
  }

  std::int64_t argument(const std::string& name) const {
    return size(at(args_, name, where_), name, where_);
  }
  std::int64_t constant(const std::string& name) const {
    return size(at(at(entry_, "constants", where_), name, where_), name, where_);
  }

  /// Ranks of its process group; 0: it has none.
  int group() const {
    const auto group = args_.find("process_group");
    if (group == args_.end() || group->is_null()) return 0;
    const std::int64_t ranks =
        size(at(*group, "process_group_world_size", where_), "process_group_world_size", where_);
    require(ranks <= 1 << 20, Failure::input, "{}: a group of {} ranks", where_, ranks);
    return int(ranks);
  }

 private:
  const json& entry_;
  const json& args_;
  std::string where_;
};

Dims fused_dense(const Entry& e) {
  const Dims x = e.rows("x");
  return {x[0], e.shape("weight", 2)[0], x[1]};
}

Dims packed_attention(const Entry& e) {
  const Dims qkv = e.shape("qkv", 5);
  return {qkv[0], qkv[1], qkv[3], qkv[4]};
}

Dims scores(const Entry& e) {
  const Dims a = e.shape("batch1", 3);
  return {a[0], a[1], e.shape("batch2", 3)[2], a[2]};
}

Dims attended(const Entry& e) {
  const Dims a = e.shape("input", 3);
  return {a[0], a[1], e.shape("mat2", 3)[2], a[2]};
}

Dims embedding(const Entry& e) {
  return {e.elements("input"), e.constant("embedding_dim"), e.constant("num_embeddings")};
}

Dims transpose(const Entry& e) {
  Dims dims = e.shape("input");
  for (const char* dim : {"dim0", "dim1"}) dims.push_back(e.argument(dim));
  return dims;
}

struct Kind {
  std::string name;
  std::function<Dims(const Entry&)> dims;
};

Kind elements(std::string kind, std::string argument) {
  return {std::move(kind), [=](const Entry& e) { return Dims{e.elements(argument)}; }};
}

Kind rows(std::string kind, std::string argument) {
  return {std::move(kind), [=](const Entry& e) { return e.rows(argument); }};
}

Kind shape(std::string kind, std::string argument) {
  return {std::move(kind), [=](const Entry& e) { return e.shape(argument); }};
}

/// The kinds of rows by the name of the function that was called.
const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> kinds{
      {"mist.modules.fused_dense.fused_dense_func", {"matmul", fused_dense}},
      {"mist.modules.flash_attn.flash_attn_qkvpacked_func", {"attention", packed_attention}},
      {"torch.baddbmm", {"batched_matmul", scores}},
      {"torch.bmm", {"batched_matmul", attended}},
      {"mist.modules.fused_softmax.scaled_upper_triang_masked_softmax_fn",
       shape("softmax", "inputs")},
      {"mist.modules.layer_norm.layer_norm", rows("layer_norm", "x")},
      {"mist.modules.rms_norm.rms_norm", rows("rms_norm", "x")},
      {"torch._C._nn.gelu", rows("gelu", "input")},
      {"mist.modules.activations.swiglu", rows("swiglu", "x")},
      {"_operator.add", rows("add", "a")},
      {"torch.add", elements("pointwise", "input")},
      {"mist.modules.embedding.VocabParallelEmbedding", {"embedding", embedding}},
      {"mist.modules.losses._vocab_parallel_cross_entropy",
       rows("cross_entropy", "vocab_parallel_logits")},
      {"torch._C._TensorBase.half", rows("cast", "self")},
      {"torch._C._TensorBase.mean", elements("mean", "input")},
      {"torch._C._TensorBase.transpose", {"transpose", transpose}},
      {"torch._C._TensorBase.unbind", shape("unbind", "input")},
      {"torch._C._TensorBase.chunk", shape("chunk", "input")},
      {"torch.nn.modules.linear.Identity", rows("identity", "input")},
      {"torch.nn.modules.dropout.Dropout", rows("dropout", "input")},
      {"torch.nn.functional.dropout", rows("dropout_inline", "input")},
      {"mist.utils.memory._make_viewless_tensor", rows("view", "inp")}};
  return kinds;
}

double seconds(const json& entry, const char* key, const std::string& where) {
  const double value = number(at(entry, key, where), key, where);
  require(std::isfinite(value) && value >= 0.0, Failure::input,
          "{}: '{}' must be at least 0, found {}", where, key, value);
  return value;
}

}  // namespace

std::optional<hardware::OperatorRow> mist_row(const json& entry, const std::string& where) {
  const auto kind = kinds().find(text(entry, "op", where));
  const double forward_s = seconds(entry, "fwd_mean_s", where);
  const double backward_s = seconds(entry, "bwd_mean_s", where);
  if (kind == kinds().end()) return std::nullopt;
  const Entry read(entry, where);
  return hardware::OperatorRow{kind->second.name, kind->second.dims(read), forward_s, backward_s,
                               read.group()};
}

}  // namespace brume::interop
