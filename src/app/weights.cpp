#include "weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "deck/deck.hpp"
#include "interop/hugging_face.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;

/// Rank 0 looks, because another node may not see the same yet. Collective.
bool exists(comm::Communicator& world, const fs::path& path) {
  std::error_code none;
  const bool mine = world.rank() == 0 && fs::exists(path, none);
  return !comm::broadcast(world, mine ? "y" : "", 0).empty();
}

bool is_hugging_face(comm::Communicator& world, const std::string& directory) {
  const bool mine = world.rank() == 0 && interop::is_hugging_face(directory);
  return !comm::broadcast(world, mine ? "y" : "", 0).empty();
}

/// The weights of a checkpoint of the model, or of the model without its adapter.
/// @throws AgreedError
io::CheckpointInfo checkpoint_for(const std::string& directory, const model::Config& model,
                                  comm::Communicator& world) {
  const std::optional<io::CheckpointInfo> found = find_weights(world, directory);
  comm::together(world, [&] {
    require(found.has_value(), Failure::input,
            "model.weights = {}: is neither a Hugging Face model, with model.safetensors or its "
            "index, nor a run directory with checkpoints, nor one of these",
            directory);
    const std::string theirs = model_text_at(*found, model);
    require(theirs == model::text(model), Failure::input,
            "model.weights = {}: are of another model ({}), the deck asks for ({})", directory,
            theirs, model::text(model));
  });
  return *found;
}

/// Whether a parameter is one of an adapter.
bool is_factor(const std::string& parameter) {
  return parameter.ends_with(".lora_a") || parameter.ends_with(".lora_b");
}

std::vector<engine::Slab> weights_of(std::vector<engine::Slab> slabs) {
  std::erase_if(slabs, [](const engine::Slab& slab) { return slab.kind != "weight"; });
  return slabs;
}

}  // namespace

double elements(const std::vector<engine::Slab>& slabs) {
  double sum = 0.0;
  for (const engine::Slab& slab : slabs) sum += double(slab.elements);
  return sum;
}

std::optional<io::CheckpointInfo> find_weights(comm::Communicator& world,
                                               const std::string& directory) {
  if (exists(world, fs::path(directory) / "manifest.json"))
    return io::open_checkpoint(world, directory);
  if (exists(world, fs::path(directory) / "checkpoints"))
    return io::find_checkpoint(world, directory);
  return std::nullopt;
}

bool has_left(comm::Communicator& world, const io::CheckpointInfo& checkpoint) {
  if (exists(world, checkpoint.directory / "manifest.json")) return false;
  if (log::leads())
    log::warn("{}: was removed while it was read: looking for a newer one",
              checkpoint.directory.string());
  return true;
}

std::string model_text_at(const io::CheckpointInfo& checkpoint, const model::Config& other) {
  const deck::Deck deck = deck::parse(checkpoint.deck_text, checkpoint.directory.string());
  model::Config model = model::config(deck.model, "fp32");
  if (model.rotary()) model.seq_len = other.seq_len;
  if (!model.adapter.exists()) model.adapter = other.adapter;
  model.quantization = other.quantization;
  return model::text(model);
}

bool has_adapter(const io::CheckpointInfo& checkpoint) {
  return std::ranges::any_of(checkpoint.formats,
                             [](const auto& one) { return is_factor(one.first); });
}

void read_slabs(const io::CheckpointInfo& checkpoint, std::vector<engine::Slab> slabs,
                Progress* progress) {
  if (!has_adapter(checkpoint))
    std::erase_if(slabs, [](const engine::Slab& slab) {
      return slab.kind == "weight" && is_factor(slab.name);
    });
  io::load_slabs(checkpoint, slabs, progress);
}

std::vector<fs::path> model_folders(const std::string& directory,
                                    const std::optional<io::CheckpointInfo>& checkpoint,
                                    const deck::Deck& deck) {
  std::vector<fs::path> folders{directory};
  if (checkpoint) folders.push_back(checkpoint->directory.parent_path().parent_path());
  if (!deck.model.weights.empty()) folders.emplace_back(deck.model.weights);
  for (std::size_t i = 0; i < folders.size(); i += 2)
    folders.insert(folders.begin() + std::ptrdiff_t(i) + 1, folders[i] / "hf");
  return folders;
}

deck::Deck pretrained_deck(const std::string& directory, int ranks,
                           const std::vector<std::string>& sets) {
  // A basic string of TOML knows the escapes of JSON.
  const std::string config = nlohmann::json((fs::path(directory) / "config.json").string()).dump();
  const std::string text = fmt::format(
      "model.config = {}\n"
      "training.steps = 1000\ntraining.global_batch = 8\ntraining.optimizer.lr = 2e-5\n"
      "data.train = \"data/train.tok\"\n"
      "cluster.devices_per_node = {}\ncluster.memory_gib = 4.0\ncluster.host_memory_gib = 16.0\n",
      config, ranks);
  deck::Deck deck = deck::parse(text, directory, sets);
  deck.model.config_place = directory;
  deck.model = model::resolved(deck.model);
  return deck;
}

model::Precision precision_of(interop::Dtype dtype) {
  switch (dtype) {
    case interop::Dtype::f32: break;
    case interop::Dtype::bf16: return model::Precision::bf16;
    case interop::Dtype::f16: return model::Precision::fp16;
  }
  return model::Precision::fp32;
}

std::string weights_identity(const interop::PretrainedWeights& weights,
                             const model::Config& model) {
  constexpr std::int64_t most = 64;  // values at each end of a tensor
  Fnv1a hash;
  std::vector<float> values;
  for (const engine::Slab& slab : interop::whole_weights(model)) {
    if (!weights.has(slab.name)) continue;
    values.resize(std::size_t(std::min(most, slab.elements)));
    hash.add(slab.name);
    for (const std::int64_t first : {std::int64_t{0}, slab.elements - std::ssize(values)}) {
      weights.get(slab, first, values);
      const auto bytes = std::as_bytes(std::span(values));
      hash.add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
  return fmt::format("{:016x}", hash.value());
}

FirstWeights find_first_weights(const std::string& directory, const model::Config& model,
                                comm::Communicator& world) {
  if (!is_hugging_face(world, directory))
    return {directory, checkpoint_for(directory, model, world)};
  comm::together(world, [&] {
    if (world.rank() == 0) interop::PretrainedWeights(directory, model).require_tied();
  });
  return {directory, std::nullopt};
}

std::set<std::string> kept_exactly(const std::optional<io::CheckpointInfo>& resume,
                                   const std::optional<FirstWeights>& first,
                                   const model::Config& model, comm::Communicator& world) {
  using model::Precision;
  if (model.precision == Precision::fp32) return {};
  std::set<std::string> names = model::frozen_names(model);
  if (names.empty() || (!resume && !first)) return {};
  const Precision computed = model.precision == Precision::fp8 ? Precision::bf16 : model.precision;
  comm::together(world, [&] {
    const io::CheckpointInfo* const checkpoint = resume              ? &*resume
                                                 : first->checkpoint ? &*first->checkpoint
                                                                     : nullptr;
    std::optional<interop::PretrainedWeights> files;
    if (!checkpoint) files.emplace(first->directory, model);
    // Codes hold no more than a checkpoint in the computed format does.
    if (model.quantization != Quantization::none)
      for (const model::Block& block : model::blocks(model))
        for (const model::Parameter& one : block.parameters)
          if (one.quantization != Quantization::none) names.erase(one.name);
    std::erase_if(names, [&](const std::string& name) {
      if (!checkpoint) return precision_of(files->dtype(name)) == computed;
      const auto format = checkpoint->formats.find(name);
      return format != checkpoint->formats.end() && format->second == computed;
    });
  });
  return names;
}

void load_weights(FirstWeights weights, const model::Config& model, std::vector<engine::Slab> slabs,
                  comm::Communicator& world) {
  slabs = weights_of(std::move(slabs));
  const auto fill = [&] {
    Progress shown("reading the weights", elements(slabs), log::leads());
    if (weights.checkpoint)
      read_slabs(*weights.checkpoint, slabs, &shown);
    else
      interop::PretrainedWeights(weights.directory, model).fill(slabs, &shown);
  };
  for (bool filled = false; !filled;) try {
      comm::together(world, fill);
      filled = true;
    } catch (const comm::AgreedError&) {
      if (!weights.checkpoint || !has_left(world, *weights.checkpoint)) throw;
      weights.checkpoint = checkpoint_for(weights.directory, model, world);
    }
  if (log::leads()) log::info("the weights are those of {}", weights.directory);
}

std::unique_ptr<interop::PretrainedWeights> open_adapter(const std::string& directory,
                                                         const model::Config& model,
                                                         comm::Communicator& world) {
  std::unique_ptr<interop::PretrainedWeights> adapter;
  comm::together(world, [&] {
    adapter =
        std::make_unique<interop::PretrainedWeights>(directory, model, interop::FileKind::adapter);
    if (world.rank() == 0) adapter->require_tied();
  });
  if (log::leads()) log::info("the adapter has the weights in {}", directory);
  return adapter;
}

void load_adapter(const interop::PretrainedWeights& adapter, std::vector<engine::Slab> slabs,
                  comm::Communicator& world) {
  comm::together(world, [&] {
    slabs = weights_of(std::move(slabs));
    adapter.fill(slabs);
    std::vector<float> zeros;
    for (const engine::Slab& slab : slabs) {
      if (!is_factor(slab.name) || adapter.has(slab.name)) continue;
      zeros.resize(std::size_t(slab.elements));
      engine::set_values(slab, 0, zeros);
    }
  });
}

}  // namespace brume::app
