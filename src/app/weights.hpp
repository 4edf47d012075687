/// @file The weights that a new training begins with, where they are not random.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "engine/engine.hpp"
#include "interop/hugging_face.hpp"
#include "interop/safetensors.hpp"
#include "io/checkpoint.hpp"
#include "model/model.hpp"

namespace brume::app {

/// The checkpoint that a directory is, checked, or the newest one of a run directory; nothing where
/// it is neither. Collective. @throws AgreedError(storage) when it is damaged
std::optional<io::CheckpointInfo> find_weights(comm::Communicator& world,
                                               const std::string& directory);

/// Whether a checkpoint that was found has left since, as a job that goes on removes it; says so.
/// Collective.
bool has_left(comm::Communicator& world, const io::CheckpointInfo& checkpoint);

/// A checkpoint's model as text, with the length of sequences of another model, and its adapter if
/// the checkpoint's has none. Learned positions keep their length.
std::string model_text_at(const io::CheckpointInfo& checkpoint, const model::Config& other);

/// Whether a checkpoint holds an adapter.
bool has_adapter(const io::CheckpointInfo& checkpoint);

/// Number of elements of all slabs.
double elements(const std::vector<engine::Slab>& slabs);

/// Fills slabs from a checkpoint; an adapter that it does not hold keeps its initial values.
/// @throws Error(storage)
void read_slabs(const io::CheckpointInfo& checkpoint, std::vector<engine::Slab> slabs,
                Progress* progress);

/// Folders in which the files of a model may be, the nearest first: that of its weights, that of
/// their run, and those of the weights that its training began with.
/// @param checkpoint  that `directory` is or has
std::vector<std::filesystem::path> model_folders(
    const std::string& directory, const std::optional<io::CheckpointInfo>& checkpoint,
    const deck::Deck& deck);

/// A deck for a Hugging Face model: its sizes, and for the rest what a user will want to change.
/// @param sets  "key=value"  @throws Error(input)
deck::Deck pretrained_deck(const std::string& directory, int ranks,
                           const std::vector<std::string>& sets);

model::Precision precision_of(interop::Dtype dtype);

/// What model.weights names, found and checked.
struct FirstWeights {
  std::string directory;
  std::optional<io::CheckpointInfo> checkpoint;  ///< nothing: a Hugging Face model
};

/// A text that differs where values do: some of each parameter that the files hold.
/// @throws Error(input)
std::string weights_identity(const interop::PretrainedWeights& weights, const model::Config& model);

/// Finds weights that fit the model, before long work. Collective.
/// @throws AgreedError(input), AgreedError(storage)
FirstWeights find_first_weights(const std::string& directory, const model::Config& model,
                                comm::Communicator& world);

/// Frozen parameters whose weights come in another format than the model computes with: they go as
/// they came. Collective. @throws AgreedError(input)
/// @param resume  the checkpoint that the training goes on from, in place of first weights
std::set<std::string> kept_exactly(const std::optional<io::CheckpointInfo>& resume,
                                   const std::optional<FirstWeights>& first,
                                   const model::Config& model, comm::Communicator& world);

/// Fills those slabs that are weights; from the newest checkpoint where that which was found has
/// left. Collective. @throws AgreedError(input), AgreedError(storage)
void load_weights(FirstWeights weights, const model::Config& model, std::vector<engine::Slab> slabs,
                  comm::Communicator& world);

/// Opens PEFT's files of the model's adapter and checks them, before long work. Collective.
/// @throws AgreedError(input)
std::unique_ptr<interop::PretrainedWeights> open_adapter(const std::string& directory,
                                                         const model::Config& model,
                                                         comm::Communicator& world);

/// Fills the slabs whose parameters an adapter's files hold; terms of other layers are zero.
/// Collective. @throws AgreedError(input)
void load_adapter(const interop::PretrainedWeights& adapter, std::vector<engine::Slab> slabs,
                  comm::Communicator& world);

}  // namespace brume::app
