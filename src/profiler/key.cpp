/// @file What a profile is valid for.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>

#include "base/hash.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "kernels/types.hpp"
#include "network.hpp"
#include "profiler/profiler.hpp"

namespace brume::profiler {
namespace {

/// Changes with how the profiler times: figures of another way are measured anew.
constexpr const char* timing = "timed beyond caches, in rounds and chains, across nodes, residuals";
constexpr const char* beside_devices = ", updates of the host";  ///< what only these have
constexpr const char* of_many_nodes = ", each two nodes";        ///< what only jobs on these have

/// What the ranks say, each answer once.
std::string distinct(comm::Communicator& world, const std::string& mine) {
  std::vector<std::string> answers = world.gather(mine);
  std::ranges::sort(answers);
  answers.erase(std::unique(answers.begin(), answers.end()), answers.end());
  return fmt::format("{}", fmt::join(answers, "; "));
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// ", nodes of 'fast' of 'name of the cluster'": the batch system's queue. Nodes of two queues may
/// have equal processors and unlike memory, clocks or networks.
std::string queue() {
  const std::string cluster = variable("SLURM_CLUSTER_NAME");
  for (const char* const name : {"SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE"})
    if (const std::string queue = variable(name); !queue.empty())
      return fmt::format(", nodes of '{}'{}", queue,
                         cluster.empty() ? "" : fmt::format(" of '{}'", cluster));
  return "";
}

/// "NVIDIA H200 (driver of CUDA 13.0) on EPYC, 2 sockets, 8 NUMA nodes, 64 cores"
std::string node_text(const device::Processor& processor, const device::Description& device) {
  const std::string on =
      device.name.empty() ? "" : fmt::format("{} ({}) on ", device.name, device.driver);
  return fmt::format("{}{}, {} sockets, {} NUMA nodes, {} cores{}", on, processor.name,
                     processor.sockets, processor.numa_nodes, processor.node_cores, queue());
}

/// What carries messages; of several nodes also their adapters.
std::string transport(comm::Communicator& world, int ranks_per_node,
                      const device::Description& device) {
  std::string text = world.transport();
  if (!device.name.empty()) text += ", " + comm::device_transport(world);
  if (world.size() > ranks_per_node)
    for (const std::string& adapter : network_adapters()) text += " over " + adapter;
  return text;
}

std::string binding(const device::Processor& processor) {
  return processor.cores == processor.node_cores
             ? "not bound"
             : fmt::format("bound to {} of {} cores", processor.cores, processor.node_cores);
}

/// "; tp 1: b 1 2 4; tp 2: b 2 4"
std::string describe(const std::vector<Split>& splits) {
  std::map<std::array<int, 5>, std::set<int>> microbatches;
  for (const Split& split : splits)
    microbatches[{split.tp, split.ep, split.cp, split.gather_keys, split.mlp_tiles}].insert(
        split.microbatch);
  std::string text;
  const auto if_used = [](const char* name, int degree) {
    return degree > 1 ? fmt::format(" {} {}", name, degree) : "";
  };
  for (const auto& [degrees, all] : microbatches)
    text += fmt::format("; tp {}{}{}{}{}: b {}", degrees[0], if_used("ep", degrees[1]),
                        if_used("cp", degrees[2]), degrees[3] == 1 ? " by keys" : "",
                        if_used("tiles", degrees[4]), fmt::join(all, " "));
  return text;
}

/// "; passes of 1 to 1024 tokens: tp 1 2"
std::string describe(const std::vector<Pass>& passes) {
  if (passes.empty()) return {};
  std::set<int> lengths, degrees;
  for (const Pass& pass : passes) {
    lengths.insert(pass.model.generation.tokens);
    degrees.insert(pass.split.tp);
  }
  return fmt::format("; passes of {} to {} tokens{}: tp {}", *lengths.begin(), *lengths.rbegin(),
                     passes.front().model.keeps_latents() ? ", latent keys" : "",
                     fmt::join(degrees, " "));
}

/// " nf4 lora attention.q 8"
std::string describe_weights(const model::Config& m) {
  std::string text;
  if (m.quantization != Quantization::none) text += fmt::format(" {}", name(m.quantization));
  if (m.adapter.exists()) text += " lora";
  for (const model::Adapter::Target& target : m.adapter.targets)
    text += fmt::format(" {} {}", model::module_name(target.module), target.rank);
  return text;
}

/// All that decides which rows a profile has.
std::string describe(const model::Config& m, const Shapes& shapes) {
  std::string heads = fmt::format("H{}", m.num_heads);
  if (m.kv_heads() != m.num_heads) heads += fmt::format(" K{}", m.kv_heads());
  if (m.attention_size() != m.hidden_size) heads += fmt::format(" D{}", m.head_dim());
  if (m.rotary() && m.qkv_bias) heads += " qkv_bias";
  if (m.rotary() && m.rotary_dim() != m.head_dim()) heads += fmt::format(" R{}", m.rotary_dim());
  if (m.latent())
    heads += fmt::format(" latent {} {} V{}", m.kv_lora_rank, m.q_lora_rank, m.v_head_dim());
  if (m.qk_norm) heads += m.qk_norm_joint ? " qk_norm joint" : " qk_norm";
  std::string experts;
  if (m.num_experts > 0)
    experts =
        fmt::format(" E{}k{} load {:g}", m.num_experts, m.experts_per_token, m.rank_load_factor);
  if (m.first_dense_layers > 0) experts += fmt::format(" dense F{}", m.ffn_size);
  const bool sigmoid = m.router == model::RouterKind::sigmoid;
  if (sigmoid || m.expert_groups > 1)
    experts += fmt::format(" {} {}", sigmoid ? "sigmoid" : "softmax", m.expert_groups);
  if (m.shared_expert_ffn_size > 0)
    experts +=
        fmt::format(" shared {}{}", m.shared_expert_ffn_size, m.shared_expert_gate ? " gated" : "");
  const std::string precision =
      m.precision == model::Precision::fp32 ? "" : fmt::format(" {}", model::name(m.precision));
  const std::string disk = shapes.scratch ? fmt::format("; disk '{}'", *shapes.scratch) : "";
  return fmt::format("{} C{} {} F{}{} T{} V{}{}{}{}{}; groups {}{}", m.family->name, m.hidden_size,
                     heads, m.inner_size(), experts, m.padded_len(), m.vocab_size,
                     m.tied_head ? " tied" : "", precision + describe_weights(m),
                     describe(shapes.splits), describe(shapes.passes),
                     fmt::join(shapes.groups, " "), disk);
}

}  // namespace

hardware::ProfileKey key(comm::Communicator& world, int ranks_per_node, int threads_per_rank,
                         const model::Config& model, const Shapes& shapes) {
  const device::Processor processor = device::this_processor();
  const device::Description device = device::describe_device();
  return {.processor = distinct(world, node_text(processor, device)),
          .packages =
              distinct(world, fmt::format("{}, {}, {}{}{}", kernels::versions(),
                                          transport(world, ranks_per_node, device), timing,
                                          device.name.empty() ? "" : beside_devices,
                                          world.size() < 3 * ranks_per_node ? "" : of_many_nodes)),
          .ranks_per_node = ranks_per_node,
          .threads_per_rank = threads_per_rank,
          .binding = fmt::format("{} ranks, {}", world.size(), distinct(world, binding(processor))),
          .model = describe(model, shapes)};
}

std::uint64_t hash(const hardware::ProfileKey& key) {
  Fnv1a hash;
  hash.add(key.processor);
  hash.add(key.packages);
  hash.add(std::to_string(key.ranks_per_node));
  hash.add(std::to_string(key.threads_per_rank));
  hash.add(key.binding);
  hash.add(key.model);
  return hash.value();
}

}  // namespace brume::profiler
