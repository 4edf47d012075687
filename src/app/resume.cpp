#include "resume.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "io/run_lock.hpp"
#include "plan/plan.hpp"
#include "weights.hpp"

namespace brume::app {
namespace {

bool of_other_data(const io::CheckpointInfo& checkpoint, const std::string& data_text) {
  return !checkpoint.data_text.empty() && checkpoint.data_text != data_text;
}

/// Updates that parameters trained now have missed: all of them where a checkpoint has no moments.
std::map<std::string, std::int64_t> missed(const io::CheckpointInfo& checkpoint,
                                           std::int64_t updates, const model::Config& model) {
  std::map<std::string, std::int64_t> all;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& parameter : block.parameters) {
      const auto before = checkpoint.missed.find(parameter.name);
      if (parameter.frozen || updates == 0) continue;
      if (!checkpoint.trained.contains(parameter.name))
        all[parameter.name] = updates;
      else if (before != checkpoint.missed.end())
        all.insert(*before);
    }
  return all;
}

engine::Progress progress(const io::CheckpointInfo& checkpoint, const std::string& data_text,
                          const model::Config& model) {
  std::int64_t samples = checkpoint.samples;
  if (of_other_data(checkpoint, data_text))
    samples = 0;
  else if (samples < 0)  // an older checkpoint, all of whose steps were alike
    samples = checkpoint.step *
              plan::parse(checkpoint.plan_text, checkpoint.directory.string()).global_batch;
  // An older checkpoint does not know how many of its steps were skipped.
  const std::int64_t updates = checkpoint.updates < 0 ? checkpoint.step : checkpoint.updates;
  return {.steps = checkpoint.step,
          .samples = samples,
          .scaling = checkpoint.scaling,
          .updates = updates,
          .missed = missed(checkpoint, updates, model)};
}

/// Weights that no step has changed go with sequences of any length and with any adapter.
void check_model(const io::CheckpointInfo& checkpoint, const model::Config& model) {
  const std::string name = checkpoint.directory.string(), asked = model::text(model);
  if (checkpoint.model_text == asked) return;
  const bool fits = model_text_at(checkpoint, model) == asked;
  require(!fits || checkpoint.step == 0, Failure::input,
          "checkpoint {}: trained with another model.seq_len or model.quantization, or without the "
          "adapter: found ({}), "
          "the deck asks for ({}). To train on with its weights, set model.weights = \"{}\" and "
          "another output.directory",
          name, checkpoint.model_text, asked, name);
  require(fits, Failure::input,
          "checkpoint {}: holds another model: found ({}), the deck asks for ({}). Set another "
          "output.directory{}",
          name, checkpoint.model_text, asked,
          checkpoint.step == 0 ? ", or import the model again with --set for each key" : "");
}

void check_data(const io::CheckpointInfo& checkpoint, const std::string& data_text, bool new_data) {
  const std::string name = checkpoint.directory.string();
  require(
      new_data || !of_other_data(checkpoint, data_text), Failure::input,
      "checkpoint {} was trained on other data, or in another order ({}), than the deck has now "
      "({}): set data.train, data.order and training.seed as they were, or go on from the first "
      "sample of what the deck has by --new-data",
      name, checkpoint.data_text, data_text);
}

/// Values of a deck's text as it is written, by key.
std::map<std::string, std::string> values_of(const std::string& deck_text) {
  std::map<std::string, std::string> values;
  std::string table;
  std::istringstream lines(deck_text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) table = line.substr(1, line.find(']') - 1) + ".";
    const std::size_t equals = line.find(" = ");
    if (equals != line.npos && !line.starts_with('['))
      values[table + line.substr(0, line.find(' '))] = line.substr(equals + 3);
  }
  return values;
}

/// A key whose value is another one than the checkpoint's job had.
struct Change {
  std::string key, before, now;
};

/// Finds what changes the course of the training.
std::vector<Change> changes(const std::string& before_text, const std::string& now_text) {
  const std::map<std::string, std::string> before = values_of(before_text);
  std::vector<Change> found;
  for (const auto& [key, value] : values_of(now_text)) {
    const auto old = before.find(key);
    if (key.starts_with("training.") && old != before.end() && old->second != value)
      found.push_back({key, old->second, value});
  }
  return found;
}

/// Refuses moments of another optimizer. Muon's momenta are moments as AdamW's first ones are.
void check_optimizer(const io::CheckpointInfo& checkpoint, const std::vector<Change>& changes) {
  const std::string directory = checkpoint.directory.string();
  for (const auto& [key, before, now] : changes)
    require(key != "training.optimizer.name" || (before == "\"adamw\"" && now == "\"muon\""),
            Failure::input,
            "checkpoint {} has moments of {} = {}, with which {} cannot resume: set {} again, or "
            "set another output.directory and model.weights = \"{}\" to begin with these weights",
            directory, key, before, now, before, directory);
}

/// Refuses an optimizer that would have no step to do.
void check_steps_left(const io::CheckpointInfo& checkpoint, std::int64_t last_step,
                      const std::vector<Change>& changes) {
  if (checkpoint.step < last_step) return;
  for (const auto& [key, before, now] : changes)
    require(!key.starts_with("training.optimizer."), Failure::input,
            "checkpoint {} is after all of {} steps, so {} = {} would change nothing, it was {}: "
            "raise training.steps, or set another output.directory and model.weights = \"{}\" to "
            "begin with these weights",
            checkpoint.directory.string(), last_step, key, now, before,
            checkpoint.directory.string());
}

}  // namespace

std::string data_text(const data::Sampler& data, const deck::Deck& deck) {
  const std::vector<data::TokenFileIdentity> files = data.identities();
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    text += fmt::format("{} tokens, checksum {:016x}, ", files[i].tokens, files[i].checksum);
    if (files.size() > 1) text += fmt::format("share {}, ", data.shares()[i]);
  }
  text += deck.data.order;
  // The seed also decides which file of several each sample is of.
  if (deck.data.order == "shuffled" || files.size() > 1)
    text += fmt::format(" by seed {}", deck.training.seed);
  if (deck.data.documents == "isolate") {
    text += ", isolated documents";
    if (deck.data.begin_token >= 0) text += fmt::format(" from token {}", deck.data.begin_token);
    if (deck.data.end_token >= 0) text += fmt::format(" to token {}", deck.data.end_token);
  }
  return text;
}

namespace {

/// How the run begins. What the command line says of it is meant for the first turn of a batch job:
/// a later one, which has the same line, goes on from what an earlier one wrote. Collective.
std::string resume_of_turn(comm::Communicator& world, const RunOptions& options,
                           const std::string& run_directory) {
  if (options.resume == "auto") return options.resume;
  const char* const turns = std::getenv("SLURM_RESTART_COUNT");
  const bool goes_on = world.rank() == 0 && turns != nullptr && std::atoi(turns) > 0 &&
                       io::has_checkpoint_of(run_directory, io::batch_job());
  if (comm::broadcast(world, goes_on ? "y" : "", 0).empty()) return options.resume;
  if (log::leads())
    log::info("--resume {} was for the first turn of job {}, which wrote checkpoints: it goes on",
              options.resume, io::batch_job());
  return "auto";
}

/// @throws AgreedError
io::CheckpointInfo find_named(comm::Communicator& world, const std::string& directory) {
  const std::optional<io::CheckpointInfo> found = find_weights(world, directory);
  if (!found)
    throw comm::AgreedError(Failure::input,
                            "--resume {}: holds no checkpoint: found neither manifest.json nor "
                            "checkpoints/step-N. Name a run directory or one of its checkpoints",
                            directory);
  return *found;
}

}  // namespace

std::optional<io::CheckpointInfo> find_resume(comm::Communicator& world, const RunOptions& options,
                                              const std::string& run_directory,
                                              const model::Config& model,
                                              const std::string& data_text,
                                              const std::string& deck_text,
                                              std::int64_t last_step) {
  const std::string resume = resume_of_turn(world, options, run_directory);
  if (resume == "none") return std::nullopt;
  const std::optional<io::CheckpointInfo> found =
      resume == "auto" ? io::find_checkpoint(world, run_directory) : find_named(world, resume);
  if (!found) return std::nullopt;
  const std::vector<Change> changed = changes(found->deck_text, deck_text);
  comm::together(world, [&] {
    check_model(*found, model);
    check_data(*found, data_text, options.new_data);
    check_optimizer(*found, changed);
    check_steps_left(*found, last_step, changed);
  });
  if (log::leads()) {
    log::info("resuming from {} after {} steps", found->directory.string(), found->step);
    if (of_other_data(*found, data_text))
      log::info("the data are others from here on: {}, from the first sample", data_text);
    for (const auto& [key, before, now] : changed)
      log::info("{} = {} from here on, it was {}", key, now, before);
  }
  return found;
}

void load(const io::CheckpointInfo& checkpoint, const std::string& data_text,
          const model::Config& model, engine::Engine& engine, comm::Communicator& world) {
  comm::together(world, [&] {
    const std::vector<engine::Slab> slabs = engine.slabs();
    Progress shown("reading the checkpoint", elements(slabs), log::leads());
    read_slabs(checkpoint, slabs, &shown);
    engine.resume(progress(checkpoint, data_text, model));
  });
}

}  // namespace brume::app
