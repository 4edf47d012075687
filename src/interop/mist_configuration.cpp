#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.hpp"
#include "base/files.hpp"
#include "hardware/cluster.hpp"
#include "interop/mist.hpp"
#include "mist/case.hpp"
#include "model/model.hpp"
#include "yaml_reader.hpp"

namespace brume::interop {
namespace {

constexpr int many = 1 << 24;

YamlValue load_yaml(const std::string& path) {
  constexpr std::int64_t largest = 1 << 20;
  const std::string text(as_text(read_file(path, Failure::input, largest, Links::follow)));
  try {
    return {YAML::Load(text), path, ""};
  } catch (const YAML::Exception& error) {
    throw Error(Failure::input, "{}:{}: not YAML: {}", path, error.mark.line + 1, error.msg);
  }
}

std::string family_name(const YamlValue& model) {
  const YamlValue name = model["name"];
  const std::string said = name.text();
  for (const char* known : {"gpt", "llama", "falcon"})
    if (said.starts_with(known)) return known;
  name.refuse("must begin with gpt, llama or falcon, found '{:.40}'", said);
}

/// What Mist's counting takes for granted, and a configuration may say otherwise.
void check_block(const YamlValue& model, const families::Family& family) {
  const auto must_be = [&](const char* key, const std::string& value) {
    if (model.has(key) && model[key].text() != value)
      model[key].refuse("must be {} for {}, found '{:.40}'", value, family.name, model[key].text());
  };
  const auto must_be_set = [&](const char* key, bool set) {
    if (model.has(key) && model[key].flag() != set)
      model[key].refuse("must be {} for {}, what is counted", set, family.name);
  };
  must_be("mlp_type", family.mlp == model::MlpKind::swiglu ? "gated_mlp" : "mlp");
  must_be("normalization", family.norm == model::NormKind::rms ? "rmsnorm" : "layernorm");
  must_be_set("parallel_block", family.parallel == families::ParallelBlock::always);
  must_be_set("prenorm", true);
  for (const char* key : {"qkv_proj_bias", "out_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias",
                          "tie_word_embeddings", "num_experts", "fp32_residual_connection"})
    must_be_set(key, false);
  if (model.has("num_heads_kv") &&
      model["num_heads_kv"].integer(1, many) != model["num_attention_heads"].integer(1, many))
    model["num_heads_kv"].refuse("must equal num_attention_heads: shared heads are not counted");
}

void read_model(const YamlValue& root, deck::Deck& deck) {
  const YamlValue model = root["model"];
  const YamlValue training = root["training"];
  const families::Family& family = families::family(family_name(model));
  deck.model.family = family.name;
  check_block(model, family);
  deck.model.num_layers = model["num_hidden_layers"].integer(1, 10000);
  deck.model.hidden_size = model["hidden_size"].integer(1, 1 << 20);
  deck.model.num_heads = model["num_attention_heads"].integer(1, deck.model.hidden_size);
  deck.model.ffn_size = model["intermediate_size"].integer(1, 1 << 22);
  deck.model.seq_len = training["max_sequence_length"].integer(1, many);
  deck.model.vocab_size =
      (model.has("vocab_size") ? model : training)["vocab_size"].integer(1, many);
  deck.model.tied_head = false;
  // What the family has: Mist's blocks have none, which its counting leaves out anyway.
  deck.model.qkv_bias = deck.model.linear_bias = family.biased;
  deck.analysis.plain_attention = !model["use_flash_attn"].flag();
  deck.training.steps = 1;
  deck.training.precision = "fp16";  // whatever params_dtype says: Mist counts 2 bytes
  deck.training.global_batch = training["global_batch_size"].integer(1, many);
  deck.data.train = "train.tok";
}

MistMachine read_machine(const YamlValue& hardware) {
  MistMachine machine;
  machine.nodes = hardware["num_nodes"].integer(1, 100000);
  machine.devices_per_node = hardware["num_gpus_per_node"].integer(1, 1024);
  machine.links = hardware["gpu_gpu_comm_params"].numbers();
  machine.copy_in = hardware["cpu_gpu_comm_params"].numbers();
  machine.copy_out = hardware["gpu_cpu_comm_params"].numbers();
  machine.slowdowns = hardware["interference_model_params"].numbers();
  machine.memory_gib = hardware["memory_capacity"].number(0.001, 1e6);
  return machine;
}

void read_cluster(const MistMachine& machine, deck::ClusterKeys& cluster) {
  cluster.nodes = machine.nodes;
  cluster.devices_per_node = machine.devices_per_node;
  cluster.memory_gib = machine.memory_gib;
  cluster.host_memory_gib = 1e6;  // Mist has no limit
}

/// Ratios that a key fixes, or that are off, or all that Mist looks at.
std::vector<double> ratios(const YamlValue& root, const std::string& knob, bool enabled,
                           std::vector<double> all) {
  const std::string fixed = "fixed_" + knob + "_ratio", off = "disable_" + knob + "_tuning";
  if (root.has(fixed)) return {root[fixed].number(0.0, 1.0)};
  if (!enabled || (root.has(off) && root[off].flag())) return {0.0};
  return all;
}

void read_search(const YamlValue& root, deck::SearchKeys& search) {
  const auto on = [](const YamlValue& table, const char* key, bool otherwise) {
    return table.has(key) ? table[key].flag() : otherwise;
  };
  const YamlValue tuning = root["tuning"];
  const bool states = on(tuning, "state_offloading_enabled", true);
  const std::vector<double> coarse{0, .25, .375, .5, .75, 1};
  const std::vector<double> fine{0, .25, .375, .5, .625, .75, .875, 1};
  search.microbatch = {1, 2, 4};
  if (on(root, "disable_tp_tuning", false)) search.tp = {1};
  search.zero_levels = {1};
  if (on(tuning, "zero_2_and_3_enabled", true)) search.zero_levels = {1, 2, 3};
  search.recompute_all = !on(tuning, "activation_checkpointing_tuning_enabled", true);
  search.weight_offload = ratios(root, "wo", states, coarse);
  search.grad_offload = ratios(root, "go", states, coarse);
  search.optim_offload = ratios(root, "oo", states, fine);
  search.act_offload = ratios(root, "ao", on(tuning, "activation_offloading_enabled", true), fine);
}

/// Ten numbers: microbatch, dp, tp; weights, gradients, optimizer state sharded; the ratios
/// offloaded of weights, gradients, optimizer state, activations.
plan::Stage read_strategy(const YamlValue& row) {
  const std::vector<YamlValue> v = row.list();
  if (v.size() != 10) row.refuse("must have 10 numbers, found {}", v.size());
  plan::Stage stage;
  stage.microbatch = v[0].integer(1, many);
  stage.dp = v[1].integer(1, many);
  stage.tp = v[2].integer(1, many);
  const std::array<int, 3> sharded{v[3].integer(0, 1), v[4].integer(0, 1), v[5].integer(0, 1)};
  if (sharded[0] > sharded[1] || sharded[1] > sharded[2])
    row.refuse("shards weights without gradients, or gradients without optimizer state");
  stage.zero_level = sharded[0] + sharded[1] + sharded[2];
  stage.weight_offload_ratio = v[6].number(0.0, 1.0);
  stage.grad_offload_ratio = v[7].number(0.0, 1.0);
  stage.optim_offload_ratio = v[8].number(0.0, 1.0);
  stage.act_offload_ratio = v[9].number(0.0, 1.0);
  return stage;
}

plan::Plan read_plan(const YamlValue& strategy, int global_batch) {
  const std::vector<YamlValue> layers = strategy["layer_partitions"].list();
  const std::vector<YamlValue> meshes = strategy["device_assignment"].list();
  const std::vector<YamlValue> recomputed = strategy["gradient_checkpointing"].list();
  const std::vector<YamlValue> rows = strategy["stage_strategies"].list();
  if (layers.empty() || meshes.size() != layers.size() || recomputed.size() != layers.size() ||
      rows.size() != layers.size())
    strategy.refuse(
        "has {} layer_partitions, {} device_assignment, {} gradient_checkpointing, {} "
        "stage_strategies: one of each a stage",
        layers.size(), meshes.size(), recomputed.size(), rows.size());
  plan::Plan plan{.global_batch = global_batch,
                  .microbatches = strategy["gradient_accumulation_steps"].integer(1, many),
                  .stages = {}};
  int first = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::vector<YamlValue> mesh = meshes[i].list();
    if (mesh.size() != 2) meshes[i].refuse("must be nodes and devices on each");
    plan::Stage stage = read_strategy(rows[i]);
    stage.first_layer = first;
    stage.layers = layers[i].integer(1, 10000);
    stage.nodes = mesh[0].integer(1, 100000);
    stage.devices_per_node = mesh[1].integer(1, 1024);
    stage.ckpt_layers = recomputed[i].integer(0, stage.layers);
    first += stage.layers;
    plan.stages.push_back(stage);
  }
  return plan;
}

/// Embedding and head: spread by data alone, or as the last stage.
std::string read_ends(const YamlValue& strategy, const plan::Plan& plan) {
  if (!strategy.has("pre_post_strategy")) return "last_stage";
  const std::string kind = strategy["pre_post_strategy"].text();
  if (kind == "dp") return "dp";
  if (kind != "preset")
    strategy["pre_post_strategy"].refuse("must be dp or preset, found '{:.40}'", kind);
  const YamlValue row = strategy["pre_post_strategy_array"];
  const plan::Stage found = read_strategy(row);
  const bool plain = found.zero_level == 1 && found.weight_offload_ratio == 0.0 &&
                     found.grad_offload_ratio == 0.0 && found.optim_offload_ratio == 0.0 &&
                     found.act_offload_ratio == 0.0;
  for (const bool data_parallel : {true, false}) {
    const mist::Strategy ends = mist::ends_of(plan, data_parallel);
    if (plain && found.microbatch == ends.microbatch && found.dp == ends.dp && found.tp == ends.tp)
      return data_parallel ? "dp" : "last_stage";
  }
  row.refuse(
      "must spread embedding and head as the last stage or over all its devices, with optimizer "
      "state sharded and nothing offloaded");
}

/// Checks the whole as a deck and a plan written by hand are checked.
void check(const MistConfiguration& read, const std::string& path) {
  try {
    const deck::Deck deck = deck::parse(deck::schema().write(read.deck), "its deck");
    if (read.plan)
      plan::check(*read.plan, model::config(deck.model, deck.training.precision),
                  hardware::cluster(deck.cluster));
  } catch (const Error& error) {
    throw Error(error.failure(), "{}: {}", path, error.what());
  }
}

}  // namespace

MistConfiguration read_mist_configuration(const std::string& path) {
  const YamlValue root = load_yaml(path);
  require(!root.has("defaults"), Failure::input,
          "{}: 'defaults' ask for Hydra: give the resolved configuration, as Hydra prints it",
          path);
  MistConfiguration read;
  read.deck.analysis.conventions = "mist";
  read.deck.cluster.profile = "l4";
  read_model(root, read.deck);
  read.machine = read_machine(root["hardware"]);
  read_cluster(read.machine, read.deck.cluster);
  if (root.has("tuning")) {
    read_search(root, read.deck.search);
    read.deck.analysis.ends = "dp";  // while Mist tunes
    const YamlValue tuning = root["tuning"];
    const std::string searched = "uniform-device-pp-mip";
    if (tuning.has("tuning_granularity") && tuning["tuning_granularity"].text() != searched)
      read.notes.push_back(
          fmt::format("tuning_granularity '{}' is not known: the deck searches '{}'",
                      tuning["tuning_granularity"].text(), searched));
  }
  if (root.has("strategy") && root["strategy"]["enabled"].flag()) {
    read.plan = read_plan(root["strategy"], read.deck.training.global_batch);
    read.deck.analysis.ends = read_ends(root["strategy"], *read.plan);
  }
  check(read, path);
  return read;
}

}  // namespace brume::interop
