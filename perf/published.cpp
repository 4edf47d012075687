/// @file Simulated times and predicted memory beside published ones, with the machines that come
/// with Brume:
/// perf_published [--cases] [FILE]; with --csv, machine, published and simulated seconds of the
/// cases that count, for perf/data/published.csv; with --plans, the plans that a search finds
/// next to the published layouts of 256 to 1,024 devices, all simulated.
///
/// Nothing is fitted to a case: its layout becomes a plan, its device and network name a machine.
/// Where the published system does something else than Brume, its row says what. Passes over
/// attention's scores, where attention was not fused, are added to the simulated time; where it was
/// FlashAttention 1, it is as fast as that was.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "analyzer/analyzer.hpp"
#include "base/error.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "deck/machine.hpp"
#include "hardware/machine.hpp"
#include "schedule/compile.hpp"
#include "schedule/steady.hpp"
#include "tuner/tuner.hpp"

namespace {

using namespace brume;
using nlohmann::json;

struct Case {
  std::string id, source, machine, network, quantity, unit, recompute, differs;
  double value = 0.0;
  int gpus = 1;
  model::Config model;
  plan::Plan plan;
};

/// The machine that comes with Brume for a device; empty where there is none.
std::string machine_for(const std::string& gpu) {
  static const std::map<std::string, std::string> machines{{"A100-SXM4-40GB", "dgx-a100-40"},
                                                           {"A100-SXM4-80GB", "dgx-a100-80"},
                                                           {"H100-SXM", "dgx-h100"},
                                                           {"H800", "dgx-h100"},
                                                           {"H200-SXM", "dgx-h200"}};
  const auto found = machines.find(gpu);
  return found == machines.end() ? "" : found->second;
}

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

constexpr const char* unfused_attention = "no fused attention (its passes added)";
constexpr const char* first_flash_attention = "FlashAttention 1 (its rate counted)";

/// Whether all that a source does otherwise is counted.
bool is_counted(const std::string& differs) {
  return differs.empty() || differs == unfused_attention || differs == first_flash_attention;
}

/// What FlashAttention 1 reaches of an A100's peak, forward and backward together, which have
/// 1 : 2.5 of the FLOPs.
/// @source Dao 2023, arXiv 2307.08691, section 1: 30-50 % forward, 25-35 % backward; the middles
constexpr double first_flash_attention_share = 3.5 / (1.0 / 0.40 + 2.5 / 0.30);

/// What the published system does otherwise; empty where nothing is known.
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

std::optional<Case> read(const json& entry) {
  const json &m = entry["model"], &l = entry["layout"], &h = entry["hardware"];
  const std::string repository = word(entry["source"], "repository");
  const std::string family = word(m, "family");
  const bool known = family == "gpt" || family == "llama";
  if (!known || word(entry["brume"], "expressible") == "no" || !entry["global_batch"].is_number())
    return std::nullopt;
  model::Config model{.family = &model::family(family == "gpt" ? "gpt" : "llama")};
  model.num_layers = m["layers"];
  model.hidden_size = m["hidden"];
  model.num_heads = m["heads"];
  model.num_kv_heads = m["kv_heads"];
  model.ffn_size = m["ffn"];
  model.seq_len = entry["seq"];
  model.vocab_size = m["vocab"];
  model.tied_head = m["tied_head"];
  model.qkv_bias = model.linear_bias = family == "gpt";
  model.head_size = m.value("head_dim", 0);
  model.qk_norm = m.value("qk_norm", false);
  model.num_experts = m.value("experts", 0);
  model.experts_per_token = m.value("experts_per_token", 0);
  model.expert_ffn_size = m.value("expert_ffn", 0);
  model.precision = model::precision(word(entry, "precision"));
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

/// c B s l h^2 (1 + s / 6h + V / (d l h)), as the sources count: c 96 and d 16 with recomputation,
/// 72 and 12 without.
double flops(const Case& c, bool recomputed) {
  const double s = c.model.seq_len, l = c.model.num_layers, h = c.model.hidden_size;
  return (recomputed ? 96.0 : 72.0) * c.plan.global_batch * s * l * h * h *
         (1.0 + s / (6.0 * h) + c.model.vocab_size / ((recomputed ? 16.0 : 12.0) * l * h));
}

/// Seconds an iteration; none where the quantity is no time.
std::optional<double> published_s(const Case& c) {
  const double tokens = double(c.plan.global_batch) * c.model.seq_len;
  if (c.quantity == "iteration_s") return c.value;
  if (c.quantity == "tokens_per_s_per_gpu") return tokens / (c.value * c.gpus);
  if (c.quantity == "samples_per_s") return c.plan.global_batch / c.value;
  if (c.quantity == "achieved_tflops_per_gpu")
    return flops(c, c.recompute == "full") / (c.value * 1e12 * c.gpus);
  if (c.quantity == "model_tflops_per_gpu")
    return model::flops_per_sequence(c.model) * c.plan.global_batch / (c.value * 1e12 * c.gpus);
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

/// Weights, gradients and optimizer state of the first rank. Galvatron's FSDP keeps no weights of
/// 16 bits; its tensor parallelism (Megatron's) keeps the buffer that tokens are gathered in, in
/// its measurements of tp 4 and 8 of 4 bytes a token of the microbatch and hidden element.
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

/// What a published number of bytes holds.
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

/// What attention that is not fused reads and writes of its scores takes beside what is simulated
/// [s]: per layer and microbatch 6 passes over [b, heads / tp, s, s] forward (product, softmax,
/// dropout, product), as many where recomputed, and 8 backward.
double scores_s(const Case& c, const hardware::Profile& profile) {
  std::vector<double> device_s(std::size_t(c.plan.pipeline_size()), 0.0);
  for (std::size_t i = 0; i < c.plan.stages.size(); ++i) {
    const plan::Stage& stage = c.plan.stages[i];
    const double scores = double(stage.microbatch) * c.model.num_heads / stage.tp *
                          double(c.model.seq_len) * double(c.model.seq_len);
    const double passes = 14.0 * stage.layers + 6.0 * stage.ckpt_layers;
    constexpr double reached = 0.8;  // of the memory's bandwidth, as other passes
    device_s[i % device_s.size()] += passes * 2.0 * scores / (reached * profile.bytes_per_s);
  }
  const double filling = double(c.plan.pipeline_size() - 1) / c.plan.order.chunks;
  return std::ranges::max(device_s) * (c.plan.microbatches + filling);
}

/// The machine of a case, with attention as fast as it was there.
hardware::Profile profile_of(const Case& c) {
  deck::GroupKeys group;
  group.machine = c.machine;
  group.network = c.network;
  group.devices_per_node = deck::load_machine(c.machine).devices_per_node;
  hardware::Profile profile = hardware::machine_profile(group);
  if (c.differs == first_flash_attention)
    for (hardware::EfficiencyRow& row : profile.efficiencies)
      if (row.kind == "attention")
        row.efficiency = std::min(row.efficiency, first_flash_attention_share);
  return profile;
}

/// A step of the published layout, with the passes over scores that its attention makes [s].
double simulated_s(const Case& c) {
  const hardware::Machine machine(profile_of(c));
  const double time_s = schedule::steady_time(c.plan, c.model, machine);
  const bool unfused = c.differs.find(unfused_attention) != std::string::npos;
  return unfused ? time_s + scores_s(c, machine.profile(0)) : time_s;
}

/// Ratios of one model and microbatch on more and more ranks, by source.
using Series = std::map<std::string, std::map<std::string, std::map<int, double>>>;

/// All that a case is but for the number of its replicas.
std::string without_replicas(const Case& c) {
  const plan::Stage& stage = c.plan.stages[0];
  return fmt::format("{} {} {} {} {} {} {} {}", model::text(c.model), c.machine,
                     c.plan.microbatches, c.plan.num_stages(), stage.tp, stage.microbatch,
                     stage.zero_level, c.recompute);
}

void print(const Series& all) {
  for (const auto& [source, series] : all) {
    std::vector<double> slopes;
    for (const auto& [_, ratios] : series)
      if (ratios.size() > 1) {
        const auto [few, first] = *ratios.begin();
        const auto [many, last] = *ratios.rbegin();
        slopes.push_back(std::log(last / first) / std::log2(double(many) / few));
      }
    if (!slopes.empty())
      fmt::print(
          "{}: simulated / published changes by {:+.1f} % with each doubling of ranks "
          "(median of {} series)\n",
          source, 100.0 * median(slopes), slopes.size());
  }
}

/// Ratios by source, machine and what the source does otherwise.
using Ratios = std::map<std::vector<std::string>, std::vector<double>>;

void print(const std::string& what, const Ratios& ratios) {
  Table table({what, "machine", "cases", "median", "0.8-1.25", "least", "most",
               "what the source measures or does otherwise"});
  for (const auto& [key, r] : ratios) {
    const auto near = std::ranges::count_if(r, [](double x) { return x >= 0.8 && x <= 1.25; });
    table.add({key[0], key[1], std::to_string(r.size()), fmt::format("{:.3f}", median(r)),
               fmt::format("{:.0f} %", 100.0 * double(near) / double(r.size())),
               fmt::format("{:.2f}", std::ranges::min(r)),
               fmt::format("{:.2f}", std::ranges::max(r)), key[2]});
  }
  std::cout << table.text() << '\n';
}

json load(const std::string& path) {
  std::ifstream file(path);
  require(file.is_open(), Failure::input, "{}: cannot be opened", path);
  return json::parse(file);
}

/// Of models that differ in heads, vocabulary and number format alone the first stands for all.
std::string job(const Case& c) {
  return fmt::format("{} {} {} {} {} {} {} {} {}", c.model.family->name, c.model.num_layers,
                     c.model.hidden_size, c.model.ffn_size, c.model.seq_len, c.machine, c.network,
                     c.gpus, c.plan.global_batch);
}

/// Prints the plan that a search finds for the first of the jobs, next to the published layouts.
void compare_plans(const std::vector<Case>& alike) {
  const Case& first = alike[0];
  const hardware::Machine machine(profile_of(first));
  const deck::MachineKeys keys = deck::load_machine(first.machine);
  const auto bytes = [](double gib) { return std::int64_t(gib * 0x1p30); };
  const hardware::Cluster cluster = hardware::usable(
      hardware::NodeGroup{.nodes = int(ceil_div(first.gpus, keys.devices_per_node)),
                          .devices_per_node = keys.devices_per_node,
                          .memory_bytes = bytes(keys.memory_gib),
                          .host_memory_bytes = bytes(keys.host_memory_gib)},
      machine);
  fmt::print("{} x {}, {} layers of {}, batch {}: ", first.gpus, first.machine,
             first.model.num_layers, first.model.hidden_size, first.plan.global_batch);
  double best_s = infinity;
  try {
    const tuner::Result found =
        tuner::tune(first.model, first.plan.global_batch, cluster, machine, {}, {.reasons = false});
    best_s = found.best[0].seconds();
    fmt::print("{} by {}\n", format_seconds(best_s), tuner::summary(found.best[0].plan));
  } catch (const tuner::Infeasible& none) {
    fmt::print("{}\n", none.what());
  }
  std::set<std::string> seen;
  for (const Case& c : alike) {
    if (!seen.insert(plan::text(c.plan)).second) continue;
    std::int64_t peak = 0;
    for (const auto& stage : analyzer::analyze(c.plan, first.model, machine).stages)
      peak = std::max(peak, stage.peak_bytes());
    const double seconds = schedule::steady_time(c.plan, first.model, machine);
    const std::int64_t excess = peak - cluster.groups[0].memory_bytes;
    fmt::print("  {:.3f} {}  {}  {}: {}\n", best_s / seconds,
               excess > 0         ? format_bytes(double(excess)) + " too large"
               : best_s > seconds ? "FASTER"
                                  : "",
               format_seconds(seconds), tuner::summary(c.plan), c.id);
  }
}

void compare_plans(const json& published) {
  std::map<std::string, std::vector<Case>> jobs;
  for (const json& entry : published.at("cases"))
    if (const std::optional<Case> c = read(entry); c && c->gpus >= 256 && c->gpus <= 1024)
      jobs[job(*c)].push_back(*c);
  for (const auto& [_, alike] : jobs) compare_plans(alike);
}

/// The cases that count, as lines of a table.
void print_csv(const json& published) {
  fmt::print("machine,published_s,simulated_s\n");
  for (const json& entry : published.at("cases")) {
    const std::optional<Case> c = read(entry);
    const std::optional<double> seconds = c ? published_s(*c) : std::nullopt;
    if (!seconds || !is_counted(c->differs)) continue;
    fmt::print("{},{:.6g},{:.6g}\n", c->machine, *seconds, simulated_s(*c));
  }
}

void compare(const json& published, bool each) {
  Ratios times, memory, states;
  Series series;
  int left_out = 0;
  for (const json& entry : published.at("cases")) {
    const std::optional<Case> c = read(entry);
    const std::optional<double> seconds = c ? published_s(*c) : std::nullopt,
                                bytes = c ? published_bytes(*c) : std::nullopt;
    if (!seconds && !bytes) {
      ++left_out;
      continue;
    }
    const hardware::Machine machine(profile_of(*c));
    const analyzer::Prediction predicted = analyzer::analyze(c->plan, c->model, machine);
    double peak = 0.0;
    for (const analyzer::StagePrediction& stage : predicted.stages)
      peak = std::max(peak, double(stage.peak_bytes()));
    // What is counted outside of the program holds libraries and the driver too.
    if (c->unit.find("nvidia-smi") != std::string::npos)
      peak += double(machine.profile(0).reserved_bytes);
    const double time_s = simulated_s(*c);
    if (is_state(*c)) peak = state_bytes(*c);
    const double said = seconds ? *seconds : bytes.value();
    const double ratio = (seconds ? time_s : peak) / said;
    const std::string name = c->machine + (c->network.empty() ? "" : " " + c->network);
    std::string words = seconds ? c->differs : measure(entry);
    if (!seconds && !c->differs.empty()) words += "; " + c->differs;
    (seconds ? times : is_state(*c) ? states : memory)[{c->source, name, words}].push_back(ratio);
    if (seconds) series[c->source][without_replicas(*c)][c->gpus] = ratio;
    if (each)
      fmt::print("{:.3f}  {:44}  {}  {}\n", ratio, c->id,
                 seconds ? fmt::format("{:.4g} s of {:.4g}", time_s, said)
                         : fmt::format("{} of {}", format_bytes(peak), format_bytes(said)),
                 name);
  }
  print("simulated / published time", times);
  print("predicted / published memory", memory);
  print("predicted / published state", states);
  print(series);
  Ratios counted;
  std::map<std::string, std::vector<double>> alike;
  for (const auto& [key, ratios] : times)
    if (is_counted(key[2]))
      for (const double ratio : ratios) {
        counted[{key[0], "all", ""}].push_back(ratio);
        alike[key[1].substr(0, key[1].find(' '))].push_back(std::pow(std::log(ratio), 2));
      }
  print("of these, where Brume does the same or counts what differs", counted);
  for (const auto& [machine, squares] : alike)
    fmt::print(
        "{}: {} times of sources that do as Brume does, or whose attention is counted, off by "
        "{:.0f} % (root mean square)\n",
        machine, squares.size(),
        100.0 * std::sqrt(std::reduce(squares.begin(), squares.end()) / double(squares.size())));
  fmt::print("left out: {} cases that no plan expresses, or of other devices or quantities\n",
             left_out);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string path = BRUME_PUBLISHED;
    bool each = false, plans = false, csv = false;
    for (const std::string argument : std::span(argv + 1, argv + argc)) {
      each = each || argument == "--cases";
      plans = plans || argument == "--plans";
      csv = csv || argument == "--csv";
      if (!argument.starts_with("--")) path = argument;
    }
    if (plans)
      compare_plans(load(path));
    else if (csv)
      print_csv(load(path));
    else
      compare(load(path), each);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
