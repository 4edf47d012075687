#include "published_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/numbers.hpp"
#include "deck/deck.hpp"
#include "schedule/compile.hpp"

namespace brume::perf {

using nlohmann::json;

std::string machine_for(const std::string& gpu) {
  static const std::map<std::string, std::string> machines{{"A100-SXM4-40GB", "dgx-a100-40"},
                                                           {"A100-SXM4-80GB", "dgx-a100-80"},
                                                           {"H100-SXM", "dgx-h100"},
                                                           {"H800", "dgx-h100"},
                                                           {"H200-SXM", "dgx-h200"}};
  const auto found = machines.find(gpu);
  return found == machines.end() ? "" : found->second;
}

namespace {

/// The network that a case's words mean; empty: the machine's own.
std::string network_for(const std::string& words) {
  static const std::pair<const char*, const char*> networks[] = {{"4 x 100 Gbit/s", "4x100g"},
                                                                 {"8 x 200 Gbit/s", "8x200g"},
                                                                 {"1600 Gbit/s a node", "8x200g"},
                                                                 {"800 Gbit/s a node", "4x200g"},
                                                                 {"400 Gbit/s", "8x400g"}};
  for (const auto& [said, name] : networks)
    if (words.find(said) != std::string::npos) return name;
  return "";
}

/// A word that a source may leave out: "" then, as for null.
std::string word(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

bool is_counted(const std::string& differs) {
  return differs.empty() || differs == unfused_attention || differs == first_flash_attention;
}

namespace {

/// Differences of the published system from Brume; empty if none is known.
std::string differs(const json& entry) {
  std::vector<std::string> words;
  const std::string repository = word(entry["source"], "repository"),
                    path = word(entry["source"], "path"), recompute = word(entry, "recompute"),
                    note = word(entry["hardware"], "note");
  const bool before_fused_attention =
      repository == "VIA-Research/vTrain" || repository == "bigscience-workshop/bigscience" ||
      repository == "calculon-ai/calculon" || path == "images/cases_april2021.png" ||
      path == "images/tables.tex" || repository.empty() ||
      (repository == "NVIDIA/Megatron-LM" && path == "README.md" &&
       word(entry["hardware"], "gpu") == "A100-SXM4-80GB");
  if (before_fused_attention) words.push_back(unfused_attention);
  if (path.find("ground_truth_single") != std::string::npos)
    words.push_back("small kernels that PyTorch launches one by one");
  if (recompute.starts_with("selective (per op")) words.push_back("per-operator recomputation");
  if (path == "images/model_table.png") words.push_back("tp collectives hidden");
  if (path.find("test_cases") != std::string::npos)
    words.push_back("deterministic kernels, dropout");
  if (repository == "mosaicml/llm-foundry") {
    // Its times on A100 are of May 2023 (its commit 300cc5c58: flash-attn 1.0.3, PyTorch 1.13.1).
    const bool h100 = word(entry["hardware"], "gpu") == "H100-SXM";
    words.push_back(h100 ? "PyTorch's kernels for H100 of 2023" : first_flash_attention);
  }
  if (note.find("500 W") != std::string::npos) words.push_back("H100 of 2.4 TB/s at 500 W");
  if (word(entry, "note").find("packed sequences") != std::string::npos)
    words.push_back("packed sequences, counted as whole ones");
  if (word(entry, "note").starts_with("schedule of its own"))
    words.push_back("a schedule that fits its memory");
  if (path.find("asyncTP") != std::string::npos || word(entry, "note").starts_with("4D;"))
    words.push_back("asynchronous tp");
  if (path.find("llama3_h100_202412") != std::string::npos && entry["precision"] == "fp8")
    words.push_back("FlashAttention 2, logits of all tokens in fp32");
  if (entry["layout"].value("cp", 1) > 1 && repository != "pytorch/torchtitan")
    words.push_back("keys sent around a ring, not gathered");
  if (path == "best_practice/Mixtral/run_mixtral_8x22B.sh")
    words.push_back("tp collectives hidden");
  if (word(entry, "note").find("behind another microbatch") != std::string::npos)
    words.push_back("experts' exchanges hidden");
  if (entry["model"].contains("experts")) words.push_back("tokens sent to experts, not gathered");
  if (word(entry, "note").starts_with("VP NA"))
    words.push_back("virtual stages of a later release");
  return fmt::format("{}", fmt::join(words, ", "));
}

/// The model with an adapter of some layers; its base may be quantized.
void adapt(const json& adapter, model::Config& model) {
  deck::ModelKeys keys;
  keys.family = model.family->name;
  keys.num_layers = model.num_layers;
  keys.hidden_size = model.hidden_size;
  keys.num_heads = model.num_heads;
  keys.num_kv_heads = model.num_kv_heads;
  keys.ffn_size = model.ffn_size;
  keys.seq_len = model.seq_len;
  keys.vocab_size = model.vocab_size;
  keys.tied_head = model.tied_head;
  keys.qkv_bias = keys.linear_bias = model.linear_bias;
  keys.quantization = adapter.value("quantization", "none");
  keys.adapter.rank = adapter["rank"];
  keys.adapter.targets = adapter["targets"];
  model = model::config(keys, model::name(model.precision));
}

int recomputed_layers(const std::string& recompute, int layers) {
  if (recompute == "full") return layers;
  return recompute.starts_with("selective (every second") ? layers / 2 : 0;
}

/// Trainers keep outputs of norms and activations of what they do not recompute, unless they choose
/// by operators.
int stored_layers(const std::string& recompute, int not_recomputed) {
  const bool chosen =
      recompute.starts_with("selective (per op") || recompute.starts_with("selective (norms");
  return chosen ? 0 : not_recomputed;
}

/// Layers of each chunk of a pipeline. Megatron-LM may count embedding and loss as a layer each.
std::vector<int> layers_of(int layers, int chunks, bool ends_count) {
  const int all = layers + (ends_count ? 2 : 0);
  std::vector<int> found;
  for (int i = 0; i < chunks; ++i) found.push_back(all / chunks + (i < all % chunks ? 1 : 0));
  if (ends_count) --found.front(), --found.back();
  return found;
}

}  // namespace

model::Config model_of(const json& m, int seq_len, const std::string& precision) {
  const bool gpt = word(m, "family") == "gpt";
  model::Config model{.family = &model::family(gpt ? "gpt" : "llama")};
  model.num_layers = m["layers"];
  model.hidden_size = m["hidden"];
  model.num_heads = m["heads"];
  model.num_kv_heads = m["kv_heads"];
  model.ffn_size = m["ffn"];
  model.seq_len = seq_len;
  model.vocab_size = m["vocab"];
  model.tied_head = m["tied_head"];
  model.qkv_bias = model.linear_bias = gpt;
  model.head_size = m.value("head_dim", 0);
  model.qk_norm = m.value("qk_norm", false);
  model.num_experts = m.value("experts", 0);
  model.experts_per_token = m.value("experts_per_token", 0);
  model.expert_ffn_size = m.value("expert_ffn", 0);
  model.precision = model::precision(precision);
  return model;
}

std::optional<Case> read(const json& entry) {
  const json &m = entry["model"], &l = entry["layout"], &h = entry["hardware"];
  const std::string repository = word(entry["source"], "repository");
  const std::string family = word(m, "family");
  const bool known = family == "gpt" || family == "llama";
  if (!known || word(entry["brume"], "expressible") == "no" || !entry["global_batch"].is_number())
    return std::nullopt;
  model::Config model = model_of(m, entry["seq"], word(entry, "precision"));
  if (entry.contains("adapter")) adapt(entry["adapter"], model);
  Case c{.id = entry["id"],
         .source = repository.empty() ? "a paper" : repository,
         .machine = machine_for(word(h, "gpu")),
         .network = network_for(word(h, "internode")),
         .quantity = entry["quantity"],
         .unit = entry["unit"],
         .recompute = word(entry, "recompute"),
         .differs = differs(entry),
         .value = entry["value"],
         .gpus = l["gpus"],
         .model = model,
         .plan = {}};
  if (c.machine.empty()) return std::nullopt;
  const int dp = l["dp"], cp = l.value("cp", 1), tp = l["tp"], devices = dp * cp * tp;
  c.plan.global_batch = entry["global_batch"];
  c.plan.microbatches = c.plan.global_batch / (int(l["microbatch"]) * dp);
  c.plan.order.chunks = l.value("virtual_stages", 1);
  if (c.plan.order.chunks > 1) c.plan.order.run_ahead = 2;  // as Megatron-LM fills its pipelines
  const int stages = int(l["pp"]) * c.plan.order.chunks, per_node = h.value("gpus_per_node", 8);
  int first = 0;
  for (const int layers :
       layers_of(c.model.num_layers, stages, l.value("ends_count_as_layers", false))) {
    const int recomputed = recomputed_layers(c.recompute, layers);
    c.plan.stages.push_back({.first_layer = first,
                             .layers = layers,
                             .nodes = int(ceil_div(devices, per_node)),
                             .devices_per_node = std::min(devices, per_node),
                             .microbatch = l["microbatch"],
                             .dp = dp,
                             .cp = cp,
                             .gather_keys = cp > 1,
                             .tp = tp,
                             .ep = l.value("ep", 1),
                             .dispatch_tokens = l.value("dispatch_tokens", 0),
                             .zero_level = dp * cp > 1 ? int(l["zero"]) : 0,
                             .replicas = l.value("replicas", 1),
                             .ckpt_layers = recomputed,
                             .stored_layers = stored_layers(c.recompute, layers - recomputed)});
    first += layers;
  }
  return c;
}

namespace {

/// c B s l h^2 (1 + s / 6h + V / (d l h)), as the sources count: c 96 and d 16 with recomputation,
/// 72 and 12 without.
double flops(const Case& c, bool recomputed) {
  const double s = c.model.seq_len, l = c.model.num_layers, h = c.model.hidden_size;
  return (recomputed ? 96.0 : 72.0) * c.plan.global_batch * s * l * h * h *
         (1.0 + s / (6.0 * h) + c.model.vocab_size / ((recomputed ? 16.0 : 12.0) * l * h));
}

}  // namespace

std::optional<double> published_s(const Case& c) {
  const double tokens = double(c.plan.global_batch) * c.model.seq_len;
  if (c.quantity == "iteration_s") return c.value;
  if (c.quantity == "tokens_per_s_per_gpu") return tokens / (c.value * c.gpus);
  if (c.quantity == "samples_per_s") return c.plan.global_batch / c.value;
  if (c.quantity == "achieved_tflops_per_gpu")
    return flops(c, c.recompute == "full") / (c.value * 1e12 * c.gpus);
  if (c.quantity.starts_with("model_tflops_per_gpu")) {
    const double s = c.model.seq_len;
    // The half of the scores that causality hides.
    const double hidden = c.quantity.ends_with("whole_scores")
                              ? 6.0 * c.model.num_layers * s * s * c.model.hidden_size
                              : 0.0;
    return (model::flops_per_sequence(c.model) + hidden) * c.plan.global_batch /
           (c.value * 1e12 * c.gpus);
  }
  if (c.quantity == "mfu") return flops(c, false) / (c.value / 100.0 * 312e12 * c.gpus);
  return std::nullopt;
}

bool is_state(const Case& c) {
  return c.quantity == "model_state_memory" || c.quantity == "params_and_optimizer_memory";
}

std::optional<double> published_bytes(const Case& c) {
  if (c.quantity != "peak_memory_per_gpu" && !is_state(c)) return std::nullopt;
  static const std::map<std::string, double> units{{"GiB", 0x1p30},
                                                   {"MiB", 0x1p20},
                                                   {"GB (torch allocated)", 1e9},
                                                   {"bytes", 1.0},
                                                   {"GB (nvidia-smi, whole)", 0x1p30}};
  const auto unit = units.find(c.unit);
  return unit == units.end() ? std::nullopt : std::optional(c.value * unit->second);
}

double state_bytes(const Case& c) {
  using enum schedule::Content;
  const bool fsdp = c.source == "PKU-DAIR/Hetu-Galvatron";
  const plan::Stage& stage = c.plan.stages[0];
  model::Config model = c.model;
  if (c.source == "calculon-ai/calculon") model.vocab_size = model.seq_len = stage.tp;
  double sum = fsdp && stage.tp > 1
                   ? 4.0 * stage.microbatch * double(c.model.seq_len) * c.model.hidden_size
                   : 0.0;
  for (const schedule::Buffer& buffer : schedule::compile(c.plan, model, 0).buffers)
    if (buffer.persistent && buffer.tier == schedule::Tier::device &&
        (buffer.content == grads || buffer.content == optimizer ||
         (buffer.content == weights && !fsdp)))
      sum += double(buffer.bytes);
  return sum;
}

std::string measure(const json& entry) {
  const std::string text = word(entry, "note") + word(entry, "unit");
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  if (says("not an allocator's reading"))
    return "the paper's formula; of state: without tables, as here, and without biases";
  if (says("nvidia-smi"))
    return "nvidia-smi: context, NCCL and what PyTorch's allocator keeps, too";
  if (says("reserved by")) return "reserved: with what PyTorch's allocator adds";
  if (says("max_memory_allocated") || says("torch allocated"))
    return "allocated, without what PyTorch's allocator adds";
  return "allocated or reserved, not stated";
}

}  // namespace brume::perf
