/// @file The verbs that bring weights in and out in Hugging Face's format.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "all_ranks.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "interop/hugging_face.hpp"
#include "io/checkpoint.hpp"
#include "io/run_lock.hpp"
#include "model/model.hpp"
#include "resume.hpp"
#include "verbs.hpp"
#include "weights.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;

/// The slabs that a rank writes: neighbours, about as many bytes as the others have.
std::vector<engine::Slab> share(const std::vector<engine::Slab>& slabs, int rank, int ranks) {
  double all = 0.0, before = 0.0;
  for (const engine::Slab& slab : slabs) all += double(slab.elements);
  std::vector<engine::Slab> mine;
  for (const engine::Slab& slab : slabs) {
    const double middle = before + 0.5 * double(slab.elements);
    if (int(middle / all * ranks) == rank) mine.push_back(slab);
    before += double(slab.elements);
  }
  return mine;
}

/// Imports a model on all ranks of a job.
class HuggingFaceImport {
 public:
  HuggingFaceImport(const ImportHuggingFaceOptions& options, comm::Communicator& job)
      : options_(options), job_(job), leader_(job.rank() == 0) {}

  void run() {
    const auto start = std::chrono::steady_clock::now();
    std::string text;
    comm::together(job_, [&] {
      if (!leader_) return;
      require_new();
      text = deck::schema().write(pretrained_deck(options_.directory, job_.size(), sets()));
    });
    deck_ = deck::parse(comm::broadcast(job_, text, 0), "brume import hf");
    model_ = model::config(deck_.model, "fp32");
    model_.adapter = {};  // a training adds it
    comm::together(job_, [&] {
      weights_.emplace(options_.directory, model_);
      if (leader_) weights_->require_tied();
      if (leader_) lock_.emplace(options_.output);
    });
    deck_.training.precision = model::name(precision_of(weights_->dtype()));
    log::info("reading {} parameters of {}", format_count(double(model::num_parameters(model_))),
              options_.directory);
    comm::together(job_, [&] {
      if (leader_) write_deck();
    });
    write_checkpoint();  // last: where an import was killed before, the next one finds none
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    log::info("{}: its weights, {} in the files, are a checkpoint after {}", options_.output,
              interop::name(weights_->dtype()), format_seconds(taken.count()));
  }

 private:
  /// What the user sets wins over the run directory and over what `import tokens -o data` writes.
  std::vector<std::string> sets() const {
    std::vector<std::string> all{"output.directory=" + nlohmann::json(options_.output).dump(),
                                 "data.valid=\"data/valid.tok\""};
    all.insert(all.end(), options_.sets.begin(), options_.sets.end());
    return all;
  }

  /// Weights must not take the place of a training's.
  void require_new() const {
    require(!io::has_checkpoint(options_.output), Failure::input,
            "{}: holds checkpoints already: name another run directory", options_.output);
  }

  void write_checkpoint() {
    std::vector<engine::Slab> mine =
        share(interop::whole_weights(model_), job_.rank(), job_.size());
    // As in the files: half the bytes where these are narrow, and the same values.
    for (engine::Slab& slab : mine) slab.storage = precision_of(weights_->dtype(slab.name));
    io::CheckpointWriter writer(options_.output, job_);
    Progress shown("importing", elements(mine), leader_);
    writer.write({.step = 0,
                  .samples = 0,
                  .scaling = {},
                  .valid_loss = {},
                  .run = {},
                  .job = {},
                  .data_text = {},
                  .deck_text = deck::schema().write(deck_),
                  .plan_text = {},
                  .profile_text = {},
                  .model_text = model::text(model_),
                  .directory = {},
                  .ranks = job_.size()},
                 mine, [&](std::size_t n, std::int64_t first, std::span<float> values) {
                   weights_->get(mine[n], first, values);
                   shown.add(double(values.size()));
                   return values;
                 });
  }

  void write_deck() const {
    interop::copy_companions(options_.directory, fs::path(options_.output) / "hf");
    const fs::path deck = fs::path(options_.output) / "deck.toml";
    write_file(deck, deck::schema().write(deck_, true));
    log::info("{}: a deck to start from: say your data and cluster there, then `brume run {}`",
              deck.string(), deck.string());
  }

  const ImportHuggingFaceOptions& options_;
  comm::Communicator& job_;
  bool leader_;
  deck::Deck deck_{};
  model::Config model_{};
  std::optional<interop::PretrainedWeights> weights_;
  std::optional<io::RunLock> lock_;
};

// --- out
// ------------------------------------------------------------------------------------------

interop::Dtype dtype_of(const std::string& name, const std::string& precision) {
  if (name == "f32" || (name.empty() && precision == "fp32")) return interop::Dtype::f32;
  if (name == "bf16" || (name.empty() && (precision == "bf16" || precision == "fp8")))
    return interop::Dtype::bf16;
  return interop::Dtype::f16;
}

/// Finds config.json and the tokenizer of a run's model: it was imported with them, or its weights
/// were taken from beside them. @return the first directory that is there, or nothing
fs::path companions(const ExportHuggingFaceOptions& options, const io::CheckpointInfo& checkpoint,
                    const deck::Deck& deck) {
  std::error_code none;
  for (const fs::path& place : model_folders(options.run, checkpoint, deck))
    if (fs::exists(place / "config.json", none)) return place;
  return {};
}

/// Refuses to mix two models' files.
void require_no_model(const std::string& directory) {
  std::error_code none;
  require(!interop::is_hugging_face(directory) &&
              !fs::exists(fs::path(directory) / "config.json", none) &&
              !fs::exists(fs::path(directory) / "adapter_config.json", none),
          Failure::input, "{}: holds a model already: name another directory", directory);
}

/// Exports a run's weights on all ranks of a job.
class HuggingFaceExport {
 public:
  HuggingFaceExport(const ExportHuggingFaceOptions& options, comm::Communicator& job)
      : options_(options), job_(job), leader_(job.rank() == 0) {}

  void run() {
    comm::together(job_, [&] {
      if (!leader_) return;
      require_no_model(options_.output);
      make_directory(options_.output);
    });
    open();
    model_.adapter.exists() && !options_.merge ? write_adapter() : write_model();
  }

 private:
  void open() {
    while (!reader_) try {
        found_ = find_weights(job_, options_.run);
        comm::together(job_, [&] {
          require(found_.has_value(), Failure::input, "{}: holds no checkpoints", options_.run);
          reader_.emplace(*found_).hold();
        });
      } catch (const comm::AgreedError&) {
        reader_.reset();
        if (!found_ || !has_left(job_, *found_)) throw;
        found_.reset();
      }
    comm::together(job_, [&] {
      deck_ = deck::parse(found_->deck_text, found_->directory.string());
      model_ = model::config(deck_.model, "fp32");
      if (!has_adapter(*found_)) model_.adapter = {};  // imported, and not trained yet
      require(!options_.merge || model_.adapter.exists(), Failure::input,
              "{}: has no adapter to merge: leave out --merge", options_.run);
    });
  }

  void fill(std::vector<engine::Slab>& slabs) { reader_->fill(slabs); }

  void write_adapter() {
    comm::together(job_, [&] {
      if (!leader_) return;
      const std::string& weights = deck_.model.weights;
      const fs::path base = interop::is_hugging_face(weights) ? fs::absolute(weights) : fs::path();
      interop::write_adapter(options_.output, model_, deck_.training.adapter, base.string(),
                             dtype_of(options_.dtype, "fp32"),
                             [this](std::vector<engine::Slab>& slabs) { fill(slabs); });
      report("adapter");
    });
  }

  /// Each rank writes some of the files.
  void write_model() {
    std::optional<interop::HuggingFaceWriter> writer;
    interop::MergeSums sums;
    const interop::Dtype dtype = dtype_of(options_.dtype, deck_.training.precision);
    comm::together(job_, [&] {
      std::map<std::string, interop::Dtype> own;
      // Imported weights leave as they came: norms may be wider than matrices.
      if (options_.dtype.empty() && found_->plan_text.empty())
        for (const engine::Slab& slab : interop::whole_weights(model_))
          own[slab.name] = dtype_of("", model::name(found_->formats.at(slab.name)));
      writer.emplace(options_.output, model_, dtype, options_.max_file_bytes, own);
      Progress shown("exporting", writer->num_files(), leader_);
      for (int file = job_.rank(); file < writer->num_files(); file += job_.size()) {
        sums += writer->write_file(file, [this](std::vector<engine::Slab>& s) { fill(s); });
        shown.add(job_.size());
      }
    });
    comm::together(job_, [&] {
      if (!leader_) return;
      const fs::path beside = companions(options_, *found_, deck_);
      if (!beside.empty()) interop::copy_companions(beside, options_.output);
      writer->finish(beside.empty() ? fs::path() : beside / "config.json");
      report("model");
      if (beside.empty())
        log::info("no tokenizer is known: put the tokenizer's files next to the model");
    });
    if (options_.merge) report_merge(sums, dtype);
  }

  void report(const char* written) const {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start_;
    log::info("{}: the {} after {} steps, in {}", options_.output, written, found_->step,
              format_seconds(taken.count()));
  }

  void report_merge(const interop::MergeSums& mine, interop::Dtype dtype) {
    std::array<double, 3> sums{mine.weights, mine.terms, mine.kept};
    job_.all_reduce(sums, comm::Reduction::sum);
    const auto [weights, terms, kept] = sums;
    if (leader_)
      log::info(
          "the adapter changes the weights of its layers by {:.3g} % (norm); {} keeps {:.4g} "
          "% of the change",
          100.0 * std::sqrt(terms / weights), interop::name(dtype),
          terms > 0.0 ? 100.0 * kept / terms : 100.0);
  }

  const ExportHuggingFaceOptions& options_;
  comm::Communicator& job_;
  bool leader_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<io::CheckpointInfo> found_;
  std::optional<io::CheckpointReader> reader_;
  deck::Deck deck_{};
  model::Config model_{};
};

}  // namespace

int export_hugging_face(const ExportHuggingFaceOptions& options) {
  return on_all_ranks([&](comm::Session&, comm::Communicator& job) {
    HuggingFaceExport(options, job).run();
    return 0;
  });
}

int import_hugging_face(const ImportHuggingFaceOptions& options) {
  return on_all_ranks([&](comm::Session&, comm::Communicator& job) {
    HuggingFaceImport(options, job).run();
    return 0;
  });
}

}  // namespace brume::app
