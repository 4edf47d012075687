#include "deck/deck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "base/path.hpp"
#include "cluster.hpp"
#include "training.hpp"

namespace brume::deck {
namespace {

const Schema<RopeScalingKeys>& rope_scaling_schema() {
  static const auto schema =
      Schema<RopeScalingKeys>()
          .key("kind", &RopeScalingKeys::kind,
               {.help = "linear divides all frequencies, llama3 the low ones",
                .choices = {"none", "linear", "llama3"}})
          .key("factor", &RopeScalingKeys::factor,
               {.help = "what frequencies are divided by", .min = 1, .max = 1e6})
          .key("low_freq_factor", &RopeScalingKeys::low_freq_factor,
               {.help = "llama3: fewer turns than this are divided whole", .min = 1e-3, .max = 1e6})
          .key("high_freq_factor", &RopeScalingKeys::high_freq_factor,
               {.help = "llama3: more turns than this are left alone", .min = 1e-3, .max = 1e6})
          .key("original_seq_len", &RopeScalingKeys::original_seq_len,
               {.unit = "tokens",
                .help = "llama3: length in which turns are counted",
                .min = 1,
                .max = 1 << 24});
  return schema;
}

}  // namespace

const Schema<ModelKeys>& model_schema() {
  static const auto schema =
      Schema<ModelKeys>()
          .key(
              "config", &ModelKeys::config,
              {.help =
                   "config.json of a Hugging Face model, beside the deck; keys given here win over "
                   "it"})
          .key("weights", &ModelKeys::weights,
               {.help = "directory that a new training takes its weights from instead of random "
                        "ones: a Hugging Face model, whose config.json `config` is then by itself, "
                        "a run directory or one of its checkpoints",
                .if_given = true})
          .key("family", &ModelKeys::family,
               {.help = "kind of transformer",
                .choices = {"gpt", "llama", "falcon", "neox", "gemma"}})
          .key("num_layers", &ModelKeys::num_layers,
               {.help = "transformer layers", .min = 0, .max = 10000})
          .key("hidden_size", &ModelKeys::hidden_size,
               {.help = "width of a token's state", .min = 0, .max = 1 << 20})
          .key("num_heads", &ModelKeys::num_heads,
               {.help = "attention heads; divides hidden_size unless head_dim is given",
                .min = 0,
                .max = 1 << 16})
          .key("num_kv_heads", &ModelKeys::num_kv_heads,
               {.help = "key and value heads, shared by groups of heads; 0: num_heads",
                .min = 0,
                .max = 1 << 16})
          .key("head_dim", &ModelKeys::head_dim,
               {.help = "features a head; 0: hidden_size / num_heads", .min = 0, .max = 1 << 16})
          .key("ffn_size", &ModelKeys::ffn_size,
               {.help = "width inside the MLP; 0: 4 hidden_size", .min = 0, .max = 1 << 22})
          .key("seq_len", &ModelKeys::seq_len,
               {.unit = "tokens", .help = "length of a sequence", .min = 0, .max = 1 << 24})
          .key("vocab_size", &ModelKeys::vocab_size,
               {.help = "different tokens", .min = 0, .max = 1 << 24})
          .key("tied_head", &ModelKeys::tied_head,
               {.help = "the output head shares the token embedding's weights"})
          .key("qkv_bias", &ModelKeys::qkv_bias,
               {.help = "queries, keys and values have a bias; but for gpt and neox: false unless "
                        "given"})
          .key("linear_bias", &ModelKeys::linear_bias,
               {.help =
                    "the other linear layers have one; but for gpt and neox: false unless given"})
          .key("layer_norms", &ModelKeys::layer_norms,
               {.help = "norms a layer has, 1 or 2; 0: 1 for falcon, else 2", .min = 0, .max = 2})
          .key("qk_norm", &ModelKeys::qk_norm,
               {.help = "queries and keys are normalised, each head alone; llama and gemma only"})
          .key("parallel_residual", &ModelKeys::parallel_residual,
               {.help = "neox: attention and MLP read the same input"})
          .key("norm_eps", &ModelKeys::norm_eps,
               {.help = "added to the variance in norms", .min = 1e-12, .max = 1})
          .key("rope_theta", &ModelKeys::rope_theta,
               {.help = "base of the rotary angles", .min = 1, .max = 1e12})
          .key("rotary_dim", &ModelKeys::rotary_dim,
               {.help = "features of a head that positions turn, the first ones; 0: all",
                .min = 0,
                .max = 1 << 16})
          .key("window", &ModelKeys::window,
               {.unit = "tokens",
                .help = "keys that a query of a windowed layer sees, its own included; 0: all; "
                        "llama and gemma only",
                .min = 0,
                .max = 1 << 24})
          .key("layer_kinds", &ModelKeys::layer_kinds,
               {.help = "which layers have a window, taken in turn; []: all where window is given",
                .choices = {"full", "window"}})
          .key("window_rope_theta", &ModelKeys::window_rope_theta,
               {.help = "base of the rotary angles of windowed layers, which are not scaled; 0: as "
                        "in all others",
                .min = 0,
                .max = 1e12})
          .table("rope_scaling", &ModelKeys::rope_scaling, rope_scaling_schema(),
                 "Rotary angles for longer sequences")
          .key("query_scalar", &ModelKeys::query_scalar,
               {.help = "attention's scores are divided by its root; 0: head_dim",
                .min = 0,
                .max = 1e6})
          .key("attention_cap", &ModelKeys::attention_cap,
               {.help = "c: attention's scores become c tanh(score / c); 0: they stay; gemma only",
                .min = 0,
                .max = 1e6})
          .key("logits_cap", &ModelKeys::logits_cap,
               {.help = "the same of logits", .min = 0, .max = 1e6})
          .key("dropout", &ModelKeys::dropout,
               {.help = "0, which a config.json with another value must be told",
                .min = 0,
                .max = 0})
          .key("init_std", &ModelKeys::init_std,
               {.help = "standard deviation of the first weights", .min = 0, .max = 10});
  return schema;
}

namespace {

const Schema<DataKeys>& data_schema() {
  static const auto schema =
      Schema<DataKeys>()
          .key("train", &DataKeys::train, {.help = "token file to train on", .if_given = true})
          .key("files", &DataKeys::files,
               {.help = "token files to train on instead, whose samples are mixed; [] with train"})
          .key("weights", &DataKeys::weights,
               {.help = "of files: how many samples come from each, relative to each other; []: as "
                        "they have tokens",
                .min = 1e-6,
                .max = 1e12})
          .key("valid", &DataKeys::valid, {.help = "token file to evaluate on; empty: none"})
          .key("order", &DataKeys::order,
               {.help = "order of the windows", .choices = {"sequential", "shuffled"}})
          .key(
              "documents", &DataKeys::documents,
              {.help =
                   "of a sequence: joined, or isolated: attention stays within each document, "
                   "on GPUs by Brume's own kernels instead of cuDNN's, and positions begin with it",
               .choices = {"join", "isolate"}})
          .key("begin_token", &DataKeys::begin_token,
               {.help = "number of the token that each document begins with, in files that do not "
                        "say where documents end; -1: none",
                .min = -1})
          .key("end_token", &DataKeys::end_token,
               {.help = "number of the token that each document ends with, in such files; -1: none",
                .min = -1})
          .key("eval_every", &DataKeys::eval_every,
               {.unit = "iterations", .help = "between evaluations; 0: at the end only", .min = 0})
          .key("eval_sequences", &DataKeys::eval_sequences,
               {.unit = "sequences",
                .help = "read by an evaluation: the same ones each time, whatever the seed",
                .min = 1,
                .max = 1 << 24});
  return schema;
}

}  // namespace

const Schema<SearchKeys>& search_schema() {
  static const auto schema =
      Schema<SearchKeys>()
          .key("for", &SearchKeys::trainer,
               {.help = "another trainer that has to be able to run the plan; empty: none",
                .choices = {"", "megatron", "torchtitan"}})
          .key("stages", &SearchKeys::stages, {.help = "pipeline stages; []: all", .min = 1})
          .key("dp", &SearchKeys::dp, {.help = "data-parallel sizes; []: all", .min = 1})
          .key("tp", &SearchKeys::tp,
               {.help = "tensor-parallel sizes; []: all within a node; others take whole nodes",
                .min = 1})
          .key("microbatch", &SearchKeys::microbatch,
               {.unit = "sequences", .help = "per device and microbatch; []: all", .min = 1})
          .key("run_ahead", &SearchKeys::run_ahead,
               {.unit = "microbatches",
                .help = "a stage is ahead of the next one; 2 hides messages, 1 saves memory",
                .min = 1,
                .max = 2})
          .key("chunks", &SearchKeys::chunks,
               {.help = "that a stage's layers may be cut into, so that a pipeline fills sooner; "
                        "[]: all even ones; [1]: none",
                .min = 1})
          .key("zero_bubble", &SearchKeys::zero_bubble,
               {.help = "backwards may be in two parts, of which the second one fills waits"})
          .key("zero_levels", &SearchKeys::zero_levels,
               {.help = "0 none; 1 shards optimizer state, 2 also gradients, 3 also weights",
                .min = 0,
                .max = 3})
          .key("shard_within_node", &SearchKeys::shard_within_node,
               {.help = "ZeRO may shard within each node, with replicas between nodes"})
          .key("recompute", &SearchKeys::recompute,
               {.help = "layers may be recomputed in backward"})
          .key("store", &SearchKeys::store,
               {.help = "layers may keep outputs of norms and activations, which are recomputed "
                        "selectively else"})
          .key("recompute_all", &SearchKeys::recompute_all,
               {.help = "every layer is recomputed (conventions mist)"})
          .key("weight_offload", &SearchKeys::weight_offload,
               {.help = "shares of weights on the host", .min = 0, .max = 1})
          .key("grad_offload", &SearchKeys::grad_offload,
               {.help = "shares of gradients on the host", .min = 0, .max = 1})
          .key("optim_offload", &SearchKeys::optim_offload,
               {.help = "shares of optimizer state on the host", .min = 0, .max = 1})
          .key("act_offload", &SearchKeys::act_offload,
               {.help = "shares of saved activations on the host", .min = 0, .max = 1})
          .key("optim_disk", &SearchKeys::optim_disk,
               {.help = "shares on disk of offloaded optimizer state, where disk_gib is above 0",
                .min = 0,
                .max = 1})
          .key("act_disk", &SearchKeys::act_disk,
               {.help = "shares on disk of offloaded activations, where disk_gib is above 0",
                .min = 0,
                .max = 1})
          .key("host_update", &SearchKeys::host_update,
               {.help = "shares of offloaded optimizer state that the node's processor steps",
                .min = 0,
                .max = 1})
          .key("unequal_stages", &SearchKeys::unequal_stages,
               {.help = "stages may differ in devices, microbatch, dp and tp"})
          .key("gap", &SearchKeys::gap,
               {.help = "relative; the search may stop when no plan is faster by more",
                .min = 0,
                .max = 1})
          .key("time_limit_s", &SearchKeys::time_limit_s,
               {.unit = "s",
                .help = "of the search, which then takes the best plan known, or none: exit code 3",
                .min = 0})
          .key("simulate_top", &SearchKeys::simulate_top,
               {.help = "plans re-ranked by simulation", .min = 0, .max = 1000});
  return schema;
}

namespace {

const Schema<AnalysisKeys>& analysis_schema() {
  static const auto schema =
      Schema<AnalysisKeys>()
          .key("conventions", &AnalysisKeys::conventions,
               {.help = "mist: count as Mist does, for comparisons with it",
                .choices = {"default", "mist"}})
          .key("ends", &AnalysisKeys::ends,
               {.help = "spread of embedding and head: as the last stage, or over all its devices "
                        "(conventions mist)",
                .choices = {"last_stage", "dp"}})
          .key("plain_attention", &AnalysisKeys::plain_attention,
               {.help = "attention keeps its matrix of scores (conventions mist)"});
  return schema;
}

const Schema<OutputKeys>& output_schema() {
  static const auto schema =
      Schema<OutputKeys>()
          .key("directory", &OutputKeys::directory, {.help = "where the run's files go"})
          .key("checkpoints", &OutputKeys::checkpoints,
               {.help = "false: none is written, and what was trained is lost with the job"})
          .key("checkpoint_every", &OutputKeys::checkpoint_every,
               {.unit = "iterations",
                .help = "between checkpoints; 0: as checkpoint_minutes says",
                .min = 0})
          .key("checkpoint_minutes", &OutputKeys::checkpoint_minutes,
               {.unit = "min",
                .help = "between checkpoints; 0: after checkpoint_every or, without it too, after "
                        "the time that loses least by what a checkpoint costs and mtbf_hours, a "
                        "minute at least",
                .min = 0})
          .key("mtbf_hours", &OutputKeys::mtbf_hours,
               {.unit = "h",
                .help = "mean time between failures of such a job",
                .min = 1e-3,
                .max = 1e6})
          .key("keep_last", &OutputKeys::keep_last,
               {.help = "so many of the newest checkpoints stay", .min = 1})
          .key("keep_every", &OutputKeys::keep_every,
               {.unit = "iterations",
                .help = "checkpoints of its multiples stay for ever; 0: none",
                .min = 0})
          .key("keep_best", &OutputKeys::keep_best,
               {.help = "the checkpoint of the least validation loss stays; evaluates before each"})
          .key("log_every", &OutputKeys::log_every,
               {.unit = "iterations", .help = "between log lines", .min = 1})
          .key("trace", &OutputKeys::trace, {.help = "write trace.json of the last step"})
          .key("tensorboard", &OutputKeys::tensorboard,
               {.help = "write TensorBoard's event files below tensorboard/"});
  return schema;
}

/// Checks sizes, which only a config.json may leave to itself.
void check_sizes(const ModelKeys& model, const Document& document) {
  const std::pair<const char*, int> sizes[] = {{"num_layers", model.num_layers},
                                               {"hidden_size", model.hidden_size},
                                               {"num_heads", model.num_heads},
                                               {"seq_len", model.seq_len},
                                               {"vocab_size", model.vocab_size}};
  for (const auto& [name, size] : sizes) {
    const std::string path = std::string("model.") + name;
    const bool given = document.has(path);
    require(given || !model.config.empty(), Failure::input,
            "{}: table 'model': missing key '{}', which only model.config can stand for",
            document.where("model"), name);
    require(!given || size >= 1, Failure::input, "{}: '{}' must be at least 1, found 0",
            document.where(path), path);
  }
}

/// Refuses keys that only Mist's conventions know.
void check_default_conventions(const Deck& deck, const Checker& check) {
  check(!deck.search.recompute_all, "search.recompute_all",
        "is for analysis.conventions = \"mist\" only");
  check(deck.analysis.ends == "last_stage", "analysis.ends",
        "is for analysis.conventions = \"mist\" only");
  check(!deck.analysis.plain_attention, "analysis.plain_attention",
        "is for analysis.conventions = \"mist\" only");
}

/// Checks what no single key shows, and fills in what follows from other keys.
Deck resolved(Deck deck, const Document& document) {
  const Checker check(document);
  ModelKeys& model = deck.model;
  for (const auto& field : model_schema().fields()->fields)
    if (document.has("model." + field.name)) model.given.push_back(field.name);
  model.config_place = document.where("model.config");
  if (model.config.empty() && !model.weights.empty() && !document.has("model.num_layers")) {
    model.config = (std::filesystem::path(model.weights) / "config.json").string();
    model.config_place = document.where("model.weights");
  }
  check_sizes(model, document);
  if (model.config.empty()) {
    check(model.head_dim > 0 || model.hidden_size % model.num_heads == 0, "model.num_heads",
          fmt::format("must divide hidden_size = {} unless head_dim is given, found {}",
                      model.hidden_size, model.num_heads));
    if (model.ffn_size == 0) model.ffn_size = 4 * model.hidden_size;
    const bool biased = model.family == "gpt" || model.family == "neox";
    if (!biased && !document.has("model.qkv_bias")) model.qkv_bias = false;
    if (!biased && !document.has("model.linear_bias")) model.linear_bias = false;
  }

  check_cluster(deck.cluster, document, deck.analysis.mist());
  const auto is_frozen = [](const ParameterGroupKeys& group) { return group.frozen; };
  check(!deck.analysis.mist() || std::ranges::none_of(deck.training.optimizer.groups, is_frozen),
        "analysis.conventions", "\"mist\" counts all parameters as trained: freeze none");
  if (deck.analysis.mist())
    check(!deck.cluster.all_groups()[0].profile.empty(), "cluster.profile",
          "must name a profile, for analysis.conventions = \"mist\"");
  else
    check_default_conventions(deck, check);

  check(deck.training.on_nonfinite != "rollback" || deck.output.checkpoints,
        "training.on_nonfinite", "rollback needs output.checkpoints");
  check(!deck.output.keep_best || !deck.data.valid.empty(), "output.keep_best",
        "needs data.valid to evaluate on");
  check_training(deck.training, check);
  const DataKeys& data = deck.data;
  require(
      document.has("data.train") || !data.files.empty(), Failure::input,
      "{}: table 'data': missing key 'train', the token file to train on, or 'files' for several",
      document.where("data"));
  check(data.train.empty() != data.files.empty(), "data.train",
        data.files.empty() ? "must name a file, found \"\"" : "must be left out beside data.files");
  check(data.weights.empty() || data.weights.size() == data.files.size(), "data.weights",
        fmt::format("must be one a file, found {} for {}", data.weights.size(), data.files.size()));
  model.isolated = data.documents == "isolate";
  model.groups = deck.training.optimizer.groups;
  check(!deck.output.directory.empty(), "output.directory", "must name a directory, found \"\"");
  return deck;
}

/// Whether a document's text names a path that is relative.
bool names_relative(const Document& document, const std::string& key, const std::string& path) {
  return document.has(key) && !path.empty() && !document.was_set(key) &&
         std::filesystem::path(path).is_relative();
}

/// Files that describe the problem lie beside the deck.
void find_beside(Deck& deck, const Document& document) {
  const std::filesystem::path folder = std::filesystem::path(document.origin()).parent_path();
  ModelKeys& model = deck.model;
  if (names_relative(document, "model.config", model.config))
    model.config = (folder / model.config).string();
  const auto find = [&](GroupKeys& group, const std::string& key) {
    std::error_code none;
    const std::filesystem::path beside = folder / group.profile;
    if (names_relative(document, key, group.profile) &&
        std::filesystem::is_regular_file(beside, none))
      group.profile = beside.string();
  };
  find(deck.cluster, "cluster.profile");
  for (std::size_t i = 0; i < deck.cluster.groups.size(); ++i)
    find(deck.cluster.groups[i], fmt::format("cluster.groups.{}.profile", i));
}

/// What a deck says nothing about.
void set_memory_keys(Document& document, const MemoryAtHand& memory) {
  if (document.has("cluster.groups")) return;
  const ClusterKeys cluster = schema().read(document).cluster;
  const bool at_hand = cluster.profile.empty() && cluster.machine.empty();
  if (memory.device_gib <= 0.0 && (!at_hand || memory.node_gib <= 0.0)) return;
  const double device_gib =
      memory.device_gib > 0.0 ? memory.device_gib : memory.node_gib / cluster.devices_per_node;
  const auto unless_given = [&](const char* key, double gib) {
    if (gib > 0.0 && !document.has(key)) document.set(fmt::format("{}={:.6g}", key, gib));
  };
  unless_given("cluster.memory_gib", device_gib);
  unless_given("cluster.host_memory_gib", memory.node_gib);
}

/// Refuses paths that a shell would have to expand: a folder "~" would be made in their place.
/// @param all  also those that no override gives: a run's own deck is read as it was written
void refuse_shell_words(const Document& document, bool all) {
  std::vector<std::string> keys{"model.config",    "model.weights",   "data.train",
                                "data.valid",      "cluster.profile", "cluster.scratch",
                                "output.directory"};
  const auto has = [&](const std::string& item) { return document.has(item); };
  for (int i = 0; has(fmt::format("data.files.{}", i)); ++i)
    keys.push_back(fmt::format("data.files.{}", i));
  for (int i = 0; has(fmt::format("cluster.groups.{}", i)); ++i)
    for (const char* path : {"profile", "scratch"})
      keys.push_back(fmt::format("cluster.groups.{}.{}", i, path));
  for (const std::string& key : keys)
    if (const auto path = document.word(key); path && (all || document.was_set(key)))
      require(!has_shell_word(*path), Failure::input,
              "{}: '{}' has a word that only a shell expands: found \"{}\", expected no ~ and no "
              "$NAME. Write the whole path",
              document.where(key), key, *path);
}

Deck read(Document& document, const std::vector<std::string>& overrides, const MemoryAtHand& memory,
          bool from_file) {
  for (const std::string& assignment : overrides) document.set(assignment);
  refuse_shell_words(document, from_file);
  set_machine_keys(document);
  set_memory_keys(document, memory);
  return resolved(schema().read(document), document);
}

}  // namespace

const Schema<Deck>& schema() {
  static const auto schema =
      Schema<Deck>()
          .table("model", &Deck::model, model_schema(), "The transformer")
          .table("training", &Deck::training, training_schema(), "How it is trained")
          .table("data", &Deck::data, data_schema(), "On what")
          .table("cluster", &Deck::cluster, cluster_schema(), "The machine")
          .table("search", &Deck::search, search_schema(), "The plans to look at")
          .table("analysis", &Deck::analysis, analysis_schema(), "How plans are counted")
          .table("output", &Deck::output, output_schema(), "What a run leaves behind");
  return schema;
}

Deck load(const std::string& path, const std::vector<std::string>& overrides,
          const MemoryAtHand& memory) {
  Document document = Document::load(path);
  Deck deck = read(document, overrides, memory, true);
  find_beside(deck, document);
  return deck;
}

Deck parse(const std::string& text, const std::string& origin,
           const std::vector<std::string>& overrides, const MemoryAtHand& memory) {
  Document document = Document::parse(text, origin);
  return read(document, overrides, memory, false);
}

}  // namespace brume::deck
