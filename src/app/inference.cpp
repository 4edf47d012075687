#include "inference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "device/device.hpp"
#include "interop/hugging_face.hpp"
#include "tokenizer/tokenizer.hpp"
#include "weights.hpp"

namespace brume::app {

deck::Deck deck_of_weights(const std::string& weights,
                           const std::optional<io::CheckpointInfo>& checkpoint, int ranks,
                           std::vector<std::string> sets) {
  if (checkpoint) return deck::parse(checkpoint->deck_text, checkpoint->directory.string(), sets);
  require(interop::is_hugging_face(weights), Failure::input,
          "{}: holds no checkpoints and no Hugging Face model", weights);
  sets.insert(sets.begin(), "model.dropout=0");
  return pretrained_deck(weights, ranks, sets);
}

std::vector<std::string> adapter_sets(const std::string& directory, const model::Config& model) {
  require(!model.adapter.exists(), Failure::input,
          "--adapter {}: these weights have an adapter of their own. Name the model that it was "
          "trained on.",
          directory);
  const deck::AdapterKeys keys = interop::adapter_keys(directory, model);
  std::vector<std::string> groups;
  for (const deck::AdapterGroupKeys& group : keys.groups)
    groups.push_back(
        fmt::format("{{pattern=\"{}\",rank={},alpha={}}}", group.pattern, group.rank, group.alpha));
  return {fmt::format("training.adapter.rank={}", keys.rank),
          fmt::format("training.adapter.alpha={}", keys.alpha),
          fmt::format("training.adapter.scaling=\"{}\"", keys.scaling),
          fmt::format("training.adapter.targets=[\"{}\"]", fmt::join(keys.targets, "\",\"")),
          fmt::format("training.adapter.groups=[{}]", fmt::join(groups, ",")),
          fmt::format("training.adapter.layers=[{}]", fmt::join(keys.layers, ",")),
          fmt::format("training.adapter.modules_to_save={}",
                      nlohmann::json(keys.modules_to_save).dump())};
}

hardware::Cluster cluster_of(int nodes, int ranks) {
  constexpr std::int64_t no_limit = std::int64_t{1} << 60;  // [bytes]
  return {hardware::NodeGroup{.nodes = nodes,
                              .devices_per_node = ranks / nodes,
                              .memory_bytes = no_limit,
                              .host_memory_bytes = no_limit,
                              .disk_bytes = no_limit,
                              .on_device = device::on_device()}};
}

engine::Settings inference_settings(const comm::Session& session, const deck::Deck& deck,
                                    int threads) {
  engine::Settings settings;
  settings.threads = threads;
  settings.first_core = device::first_core(session.ranks_per_node(), session.node_rank());
  settings.scratch = deck.cluster.all_groups().front().scratch;
  return settings;
}

std::filesystem::path tokenizer_path(const std::string& given,
                                     const std::vector<std::filesystem::path>& folders,
                                     const model::Config& model, const std::string& weights,
                                     const char* remedy) {
  if (!given.empty()) return given;
  for (const std::filesystem::path& folder : folders)
    if (const auto found = tokenizer::find_tokenizer(folder)) return *found;
  require(model.vocab_size == 256, Failure::input,
          "{}: no tokenizer.json, tokenizer.model or spiece.model is kept with the weights. {}",
          weights, remedy);
  return {};
}

}  // namespace brume::app
