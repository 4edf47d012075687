/// @file Reading a deck: overrides, checks of several keys together, paths.
#include "deck/deck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "cluster.hpp"
#include "families/families.hpp"
#include "tables.hpp"

namespace brume::deck {
namespace {

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
            "{}: [model] lacks '{}'. Set it, or set model.config to a Hugging Face config.json",
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

/// Checks the sizes of a model, and fills in those that follow from others.
void complete_model(ModelKeys& model, const Document& document, const Checker& check) {
  for (const auto& field : model_schema().fields()->fields)
    if (document.has("model." + field.name)) model.given.push_back(field.name);
  model.config_place = document.where("model.config");
  if (model.config.empty() && !model.weights.empty() && !document.has("model.num_layers")) {
    model.config = (std::filesystem::path(model.weights) / "config.json").string();
    model.config_place = document.where("model.weights");
  }
  check_sizes(model, document);
  if (!model.config.empty()) return;
  check(model.head_dim > 0 || model.hidden_size % model.num_heads == 0, "model.num_heads",
        fmt::format("must divide hidden_size = {} unless head_dim is given, found {}",
                    model.hidden_size, model.num_heads));
  if (model.ffn_size == 0) model.ffn_size = 4 * model.hidden_size;
  const bool biased = families::family(model.family).biased;
  if (!biased && !document.has("model.qkv_bias")) model.qkv_bias = false;
  if (!biased && !document.has("model.linear_bias")) model.linear_bias = false;
}

/// Refuses trainings that Mist's conventions do not count.
void check_mist(const TrainingKeys& training, const Checker& check) {
  const OptimizerKeys& optimizer = training.optimizer;
  check(std::ranges::none_of(optimizer.groups, &ParameterGroupKeys::frozen), "analysis.conventions",
        "\"mist\" counts all parameters as trained: freeze none");
  check(training.adapter.rank == 0, "analysis.conventions",
        "\"mist\" counts all parameters as trained: set training.adapter.rank = 0");
  check(optimizer.name == "adamw", "analysis.conventions",
        fmt::format("\"mist\" counts AdamW's state, found training.optimizer.name = \"{}\"",
                    optimizer.name));
  check(optimizer.moments == "fp32", "analysis.conventions",
        "\"mist\" counts moments in fp32: set training.optimizer.moments = \"fp32\"");
}

/// Refuses settings that Muon has no use for.
void check_muon(const Deck& deck, const Checker& check) {
  if (deck.training.optimizer.name != "muon") return;
  check(deck.training.optimizer.moments != "fp8", "training.optimizer.moments",
        "\"fp8\" is not for training.optimizer.name = \"muon\": set \"bf16\" or \"fp32\"");
  check(std::ranges::all_of(deck.search.host_update, [](double share) { return share == 0.0; }),
        "search.host_update",
        "must be [0.0] for training.optimizer.name = \"muon\": the device updates whole matrices");
}

/// Checks which token files there are.
void check_data(const DataKeys& data, const Document& document, const Checker& check) {
  require(
      document.has("data.train") || !data.files.empty(), Failure::input,
      "{}: table 'data': missing key 'train', the token file to train on, or 'files' for several",
      document.where("data"));
  check(data.train.empty() != data.files.empty(), "data.train",
        data.files.empty() ? "must name a file, found \"\"" : "must be left out beside data.files");
  check(data.weights.empty() || data.weights.size() == data.files.size(), "data.mixture",
        fmt::format("must be one a file, found {} for {}", data.weights.size(), data.files.size()));
}

/// Checks what no single key shows, and fills in what follows from other keys.
Deck resolved(Deck deck, const Document& document) {
  const Checker check(document);
  ModelKeys& model = deck.model;
  complete_model(model, document, check);
  check_cluster(deck.cluster, document, deck.analysis.mist());
  if (deck.analysis.mist()) check_mist(deck.training, check);
  check_muon(deck, check);
  if (deck.analysis.mist())
    check(!deck.cluster.all_groups()[0].profile.empty(), "cluster.profile",
          "must name a profile, for analysis.conventions = \"mist\"");
  else
    check_default_conventions(deck, check);

  check(deck.training.on_nonfinite != "rollback" || deck.output.checkpoints,
        "training.on_nonfinite", "rollback needs output.checkpoints");
  check(!deck.output.keep_best || !deck.data.valid.empty(), "output.keep_best",
        "needs data.valid to evaluate on");
  check(deck.training.adapter.rank > 0 || deck.training.adapter.weights.empty(),
        "training.adapter.weights",
        "needs training.adapter.rank, the r of its adapter_config.json");
  check_training(deck.training, check);
  check_data(deck.data, document, check);
  model.isolated = deck.data.documents == "isolate";
  model.pairs = deck.training.preference.beta > 0.0;
  model.groups = deck.training.optimizer.groups;
  model.optimizer = deck.training.optimizer.name;
  model.moments = deck.training.optimizer.moments;
  model.adapter = deck.training.adapter;
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
  std::vector<std::string> keys{"model.config",    "model.weights",   "training.adapter.weights",
                                "data.train",      "data.valid",      "cluster.profile",
                                "cluster.scratch", "output.directory"};
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

/// Applies overrides, and gives keys their present names. @return a line per key with another one
std::vector<std::string> apply(Document& document, const std::vector<std::string>& overrides) {
  std::vector<std::string> renamed = document.rename_aliases(*schema().fields());
  for (const std::string& assignment : overrides) {
    document.set(assignment);
    for (std::string& note : document.rename_aliases(*schema().fields()))
      renamed.push_back(std::move(note));
  }
  return renamed;
}

Deck read(Document& document, const MemoryAtHand& memory, bool from_file) {
  refuse_shell_words(document, from_file);
  set_machine_keys(document);
  set_memory_keys(document, memory);
  return resolved(schema().read(document), document);
}

}  // namespace

const Schema<Deck>& schema() {
  static const auto schema = [] {
    return Schema<Deck>()
        .table("model", &Deck::model, model_schema(), "The transformer")
        .table("training", &Deck::training, training_schema(),
               "Length, precision and safety of the training")
        .table("data", &Deck::data, data_schema(), "Token files and their order")
        .table("cluster", &Deck::cluster, cluster_schema(), "The machine")
        .table("search", &Deck::search, search_schema(), "Plans to search")
        .table("generation", &Deck::generation, generation_schema(),
               "Answers that plan --for generation plans for")
        .table("analysis", &Deck::analysis, analysis_schema(), "Cost model")
        .table("output", &Deck::output, output_schema(), "Files of a run");
  }();
  return schema;
}

Deck load(const std::string& path, const std::vector<std::string>& overrides,
          const MemoryAtHand& memory) {
  Document document = Document::load(path);
  for (const std::string& note : apply(document, overrides)) log::info("{}", note);
  Deck deck = read(document, memory, true);
  find_beside(deck, document);
  return deck;
}

Deck parse(const std::string& text, const std::string& origin,
           const std::vector<std::string>& overrides, const MemoryAtHand& memory) {
  Document document = Document::parse(text, origin);
  apply(document, overrides);
  return read(document, memory, false);
}

}  // namespace brume::deck
