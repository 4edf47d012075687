#include "reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <span>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/mix.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// A sum over a slab's elements that other slabs of the same parameter add to: a plan may cut it
/// anywhere.
std::uint64_t fingerprint(const engine::Slab& slab) {
  Fnv1a name;
  name.add(slab.name);
  const std::int64_t columns = slab.shape.empty() ? 1 : slab.shape.back();
  constexpr std::int64_t piece = 1 << 16;
  std::vector<float> values(std::size_t(std::min(piece, slab.elements)));
  std::uint64_t sum = 0;
  for (std::int64_t first = 0; first < slab.elements; first += piece) {
    const auto some = std::span(values).first(std::size_t(std::min(piece, slab.elements - first)));
    engine::get_values(slab, first, some);
    std::int64_t place = 0;
    for (std::size_t i = 0; i < some.size(); ++i, ++place) {
      const std::int64_t element = slab.first + first + std::int64_t(i);
      // The elements of a row follow each other in the whole parameter too.
      if (i == 0 || element % columns == 0) place = engine::global_index(slab, element);
      sum += mix(name.value() + std::uint64_t(place) * golden_step +
                 std::bit_cast<std::uint32_t>(some[i]));
    }
  }
  return sum;
}

/// A hash of the weights that does not depend on the plan. Collective.
std::string hash_of_weights(engine::Engine& engine, comm::Communicator& crew) {
  std::uint64_t mine = 0, all = 0;
  for (const engine::Slab& slab : engine.slabs())
    if (slab.kind == "weight" && slab.owned) mine += fingerprint(slab);
  for (const std::string& one : crew.gather(std::to_string(mine))) all += std::stoull(one);
  return fmt::format("{:016x}", all);
}

/// Rank 0's values on all ranks.
void share(std::vector<double>& values, comm::Communicator& crew) {
  std::array<double, 1> count{crew.rank() == 0 ? double(values.size()) : 0.0};
  crew.all_reduce(count, comm::Reduction::sum);
  values.resize(std::size_t(count[0]));
  crew.broadcast(std::as_writable_bytes(std::span(values)), 0);
}

std::string identities(const data::Sampler& data) {
  std::string text;
  for (const data::TokenFileIdentity& file : data.identities())
    text += fmt::format("{} tokens, checksum {:016x}; ", file.tokens, file.checksum);
  return text;
}

/// Makes a Reference of a run, or finds it.
class ReferenceMaker {
 public:
  ReferenceMaker(const Prepared& run, const std::string& name, engine::Engine& engine,
                 comm::Communicator& crew)
      : run_(run),
        engine_(engine),
        crew_(crew),
        leader_(crew.rank() == 0),
        directory_(run.deck.output.directory),
        made_{.run = name, .source = reference_source(run), .weights = {}} {}

  /// The reference of a run that has done steps: its own, or that of the run whose checkpoint it
  /// resumes from.
  io::Reference read() {
    comm::together(crew_, [&] {
      if (!leader_) return;
      const io::CheckpointInfo& from = *run_.resume;
      const fs::path folder =
          io::is_in(directory_, from) ? directory_ : from.directory.parent_path().parent_path();
      const std::optional<io::Reference> found = io::read_reference(folder);
      const char* const remedy =
          "Set model.weights to the weights to begin with, and another output.directory";
      require(found && found->run == from.run, Failure::input,
              "{}: has no log-probabilities of this run (reference.bin), which training.preference "
              "needs and only the initial weights give. {}",
              folder.string(), remedy);
      require(found->source == made_.source && std::ssize(found->train) == num_train(),
              Failure::input, "{}: reference.bin is of other pairs or of another model. {}",
              folder.string(), remedy);
      made_.train = found->train, made_.valid = found->valid, made_.weights = found->weights;
      if (found->run != made_.run) io::write_reference(directory_, made_);
      if (std::ssize(made_.valid) < num_valid())
        log::warn("validation takes {}, for which reference.bin has log-probabilities",
                  counted(std::ssize(made_.valid), "sequence"));
    });
    share();
    return std::move(made_);
  }

  std::optional<io::Reference> make(const fs::path& aside, const std::function<bool()>& stops) {
    made_.weights = hash_of_weights(engine_, crew_);
    comm::together(crew_, [&] {
      if (!leader_) return;
      for (const fs::path& folder : {directory_, aside})
        if (!folder.empty() && made_.train.empty()) take(folder);
    });
    share();
    if (complete()) return std::move(made_);
    Progress shown("computing log-probabilities by the initial weights",
                   double(num_train() + num_valid()), leader_);
    shown.add(double(made_.train.size() + made_.valid.size()));
    const data::Sampler train = run_.train_data->by_number();
    while (!complete()) {
      const bool trains = std::ssize(made_.train) < num_train();
      std::vector<double>& to = trains ? made_.train : made_.valid;
      const std::int64_t first = std::ssize(to), end = trains ? num_train() : num_valid();
      // Whole batches: an answer has the same bits wherever a job before stopped.
      constexpr std::int64_t batches = 4;
      const std::vector<double> some =
          engine_.log_probabilities(trains ? train : *run_.valid_data, first,
                                    std::min(end - first, batches * run_.plan.global_batch));
      to.insert(to.end(), some.begin(), some.end());
      shown.add(double(some.size()));
      const bool stopped = stops();
      if (complete() || stopped || Clock::now() - written_ > std::chrono::minutes(1)) keep();
      if (stopped && !complete()) return std::nullopt;
    }
    return std::move(made_);
  }

 private:
  std::int64_t num_train() const { return run_.train_data->num_windows(); }
  std::int64_t num_valid() const { return run_.valid_data ? eval_sequences(run_) : 0; }
  bool complete() const {
    return std::ssize(made_.train) == num_train() && std::ssize(made_.valid) >= num_valid();
  }

  void share() {
    app::share(made_.train, crew_);
    app::share(made_.valid, crew_);
  }

  /// Takes the numbers of a file of the same pairs by the same weights.
  void take(const fs::path& folder) {
    try {
      const std::optional<io::Reference> found = io::read_reference(folder);
      if (!found || found->source != made_.source || found->weights != made_.weights) return;
      if (std::ssize(found->train) > num_train()) return;
      made_.train = found->train, made_.valid = found->valid;
      io::write_reference(directory_, made_);
      log::info("log-probabilities by the initial weights: {} of {} from {}", made_.train.size(),
                num_train(), (folder / "reference.bin").string());
    } catch (const Error& error) {
      log::warn("{}: log-probabilities are computed again", error.what());
    }
  }

  void keep() {
    written_ = Clock::now();
    comm::together(crew_, [&] {
      if (leader_) io::write_reference(directory_, made_);
    });
  }

  const Prepared& run_;
  engine::Engine& engine_;
  comm::Communicator& crew_;
  bool leader_;
  fs::path directory_;
  io::Reference made_;
  Clock::time_point written_ = Clock::now();
};

}  // namespace

std::int64_t eval_sequences(const Prepared& run) {
  const std::int64_t count =
      std::min<std::int64_t>(run.deck.data.eval_sequences, run.valid_data->num_windows());
  return run.valid_data->pairs() ? std::max<std::int64_t>(2, count / 2 * 2) : count;
}

std::string reference_source(const Prepared& run) {
  return fmt::format("train: {}valid: {}{}, {}", identities(*run.train_data),
                     run.valid_data ? identities(*run.valid_data) : "none; ",
                     model::text(run.model), run.deck.training.precision);
}

std::optional<io::Reference> make_reference(const Prepared& run, const std::string& name,
                                            const fs::path& aside, engine::Engine& engine,
                                            comm::Communicator& crew,
                                            const std::function<bool()>& stops) {
  ReferenceMaker maker(run, name, engine, crew);
  if (engine.steps_done() > 0) return maker.read();
  return maker.make(aside, stops);
}

}  // namespace brume::app
