#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "base/text.hpp"
#include "interop/mist.hpp"

namespace brume::interop {
namespace {

using nlohmann::json;
using Dims = std::vector<std::int64_t>;

constexpr std::uintmax_t largest_file = 64 << 20;
constexpr double failed_s = 1e5;  ///< what Mist stores for a measurement that failed

json load(const std::string& path) {
  std::error_code failed;
  const std::uintmax_t bytes = std::filesystem::file_size(path, failed);
  require(!failed, Failure::input, "{}: cannot be read: {}", path, failed.message());
  require(bytes <= largest_file, Failure::input, "{}: of {} bytes, at most {} are read", path,
          bytes, largest_file);
  std::ifstream file(path);
  try {
    return json::parse(file);
  } catch (const json::exception& error) {
    throw Error(Failure::input, "{}: not JSON: {}", path, error.what());
  }
}

const json& at(const json& object, const std::string& key, const std::string& where) {
  require(object.is_object(), Failure::input, "{}: expected an object with '{}'", where, key);
  const auto found = object.find(key);
  require(found != object.end(), Failure::input, "{}: missing key '{}'", where, key);
  return *found;
}

std::string text(const json& object, const std::string& key, const std::string& where) {
  const json& value = at(object, key, where);
  require(value.is_string(), Failure::input, "{}: '{}' must be a string", where, key);
  return value.get<std::string>();
}

double number(const json& value, const std::string& what, const std::string& where) {
  require(value.is_number(), Failure::input, "{}: '{}' must be a number", where, what);
  return value.get<double>();
}

std::int64_t size(const json& value, const std::string& what, const std::string& where) {
  constexpr std::int64_t largest = std::int64_t{1} << 40;
  require(value.is_number_integer() && value >= 0 && value <= largest, Failure::input,
          "{}: '{}' must be an integer from 0 to {}", where, what, largest);
  return value.get<std::int64_t>();
}

std::vector<double> numbers(const json& object, const std::string& key, const std::string& where) {
  const json& list = at(object, key, where);
  require(list.is_array() && list.size() <= 64, Failure::input,
          "{}: '{}' must be a list of numbers", where, key);
  std::vector<double> values;
  for (const json& value : list) values.push_back(number(value, key, where));
  return values;
}

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

/// By the name of what was called.
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

/// Collects rows, each operator and size once.
class Rows {
 public:
  void add(const json& entry, const std::string& where) {
    const std::string op = text(entry, "op", where);
    const double forward_s = seconds(entry, "fwd_mean_s", where);
    const double backward_s = seconds(entry, "bwd_mean_s", where);
    const auto kind = kinds().find(op);
    if (kind == kinds().end()) {
      unknown_.insert(op);
    } else if (forward_s >= failed_s || backward_s >= failed_s) {
      ++mist.failed;
    } else {
      const Entry read(entry, where);
      add({kind->second.name, kind->second.dims(read), forward_s, backward_s, read.group()});
    }
  }

  MistProfile done() {
    mist.unknown.assign(unknown_.begin(), unknown_.end());
    return std::move(mist);
  }

 private:
  void add(hardware::OperatorRow row) {
    if (met_.emplace(row.kind, row.dims, row.group).second)
      mist.profile.operators.push_back(std::move(row));
    else
      ++mist.repeated;
  }

  MistProfile mist;
  std::set<std::string> unknown_;
  std::set<std::tuple<std::string, Dims, int>> met_;
};

/// The largest row of a kind, where launches weigh least.
const hardware::OperatorRow* largest(const hardware::Profile& profile, const std::string& kind) {
  const auto volume = [](const hardware::OperatorRow& row) {
    double all = 1.0;
    for (const std::int64_t dim : row.dims) all *= double(dim);
    return all;
  };
  const hardware::OperatorRow* found = nullptr;
  for (const hardware::OperatorRow& row : profile.operators)
    if (row.kind == kind && row.forward_s > 0.0 && (!found || volume(row) > volume(*found)))
      found = &row;
  return found;
}

/// What the largest product and the largest addition reach, in fp16.
void set_rates(hardware::Profile& profile) {
  if (const auto* row = largest(profile, "matmul"))
    profile.flops_per_s =
        2.0 * double(row->dims[0]) * double(row->dims[1]) * double(row->dims[2]) / row->forward_s;
  if (const auto* row = largest(profile, "pointwise"))
    profile.bytes_per_s = 6.0 * double(row->dims[0]) / row->forward_s;
  profile.origins.rates =
      "forward of the largest matmul row; of the largest pointwise row, 6 bytes "
      "an element";
}

std::string only_database(const json& entries, const std::string& path) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < entries.size(); ++i)
    names.insert(text(entries[i], "source", fmt::format("{}: entries[{}]", path, i)));
  require(names.size() == 1, Failure::input, "{}: name one of its databases with --database: {}",
          path, fmt::join(names, ", "));
  return *names.begin();
}

MistMachine machine_of(const json& file, const std::string& name, const std::string& path) {
  const json& templates = at(at(file, "hardware_specs", path), "templates", path);
  require(templates.is_object(), Failure::input, "{}: 'templates' must be an object", path);
  std::vector<std::string> names;
  for (const auto& [known, unused] : templates.items()) names.push_back(known);
  require(templates.contains(name), Failure::input, "{}: no hardware template '{}', only {}", path,
          name, fmt::join(names, ", "));
  const json& found = templates[name];
  const std::string where = fmt::format("{}: template '{}'", path, name);
  MistMachine machine;
  machine.devices_per_node = int(std::clamp<std::int64_t>(
      size(at(found, "num_gpus_per_node", where), "num_gpus_per_node", where), 1, 1024));
  machine.links = numbers(found, "gpu_gpu_comm_params", where);
  machine.copy_in = numbers(found, "cpu_gpu_comm_params", where);
  machine.copy_out = numbers(found, "gpu_cpu_comm_params", where);
  machine.slowdowns = numbers(found, "interference_model_params", where);
  return machine;
}

/// Who made the file, by its own word.
std::string maker(const json& file) {
  const auto provenance = file.find("provenance");
  if (provenance == file.end() || !provenance->is_object()) return "";
  std::string said;
  for (const char* key : {"project", "commit", "license", "note"})
    if (const auto word = provenance->find(key); word != provenance->end() && word->is_string())
      said += (said.empty() ? "" : ", ") + word->get<std::string>();
  return said;
}

}  // namespace

MistProfile read_mist_profile(const std::string& path, const std::string& database,
                              const std::string& machine) {
  const json file = load(path);
  const json& entries = at(file, "entries", path);
  require(entries.is_array() && !entries.empty(), Failure::input,
          "{}: 'entries' must be a list of operators", path);
  const std::string wanted = database.empty() ? only_database(entries, path) : database;
  Rows rows;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string where = fmt::format("{}: entries[{}]", path, i);
    if (text(entries[i], "source", where) == wanted) rows.add(entries[i], where);
  }
  MistProfile mist = rows.done();
  hardware::Profile& profile = mist.profile;
  require(!profile.operators.empty(), Failure::input, "{}: no operators of database '{}'", path,
          wanted);
  const std::string name = std::filesystem::path(path).filename().string();
  profile.origin = fmt::format("{}; made by: brume import mist-profile {}", maker(file), name);
  profile.origins.operators = fmt::format("database {} of {}, means, fp16", wanted, name);
  set_rates(profile);
  if (machine.empty()) return mist;
  set_machine(profile, machine_of(file, machine, path), path);
  profile.origins.transfers = profile.origins.interference =
      fmt::format("hardware template {} of {}", machine, name);
  return mist;
}

}  // namespace brume::interop
