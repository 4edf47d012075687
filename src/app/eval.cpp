/// @file The verb `eval`: how well the weights of a run, or of a Hugging Face model, predict a
/// file.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "all_ranks.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "completions.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/engine.hpp"
#include "inference.hpp"
#include "interop/hugging_face.hpp"
#include "interop/tokens.hpp"
#include "io/checkpoint.hpp"
#include "kernels/narrow.hpp"
#include "kernels/types.hpp"
#include "plan/padding.hpp"
#include "prepare.hpp"
#include "tokenizer/tokenizer.hpp"
#include "verbs.hpp"
#include "weights.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Evaluates on all ranks of a job.
class Evaluation {
 public:
  Evaluation(const EvalOptions& options, comm::Session& session, comm::Communicator& job)
      : options_(options), session_(session), job_(job), leader_(job.rank() == 0) {}

  void run() {
    read();
    if (!options_.completions.empty()) return score();
    choose_plan();
    const std::optional<data::Sampler> data = open_data();
    const std::int64_t sequences =
        std::min(options_.sequences.value_or(data->num_windows()), data->num_windows());
    if (leader_)
      log::info("{} of {} sequences of {} tokens, on {} rank{}", sequences, data->num_windows(),
                model_.seq_len, job_.size(), job_.size() == 1 ? "" : "s");
    with_engine([&](engine::Engine& engine) {
      const auto start = Clock::now();
      const double loss = engine.evaluate(*data, 0, sequences);
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (leader_) print(*data, loss, sequences, seconds);
    });
  }

 private:
  template <class Use>
  void with_engine(const Use& use) {
    const int threads = device::threads_per_rank(session_.ranks_per_node());
    const kernels::Runtime runtime(threads);
    engine::Engine engine(plan_, model_, inference_settings(session_, deck_, threads), job_);
    load_weights({options_.weights, checkpoint_}, model_, engine.slabs(), job_);
    if (adapter_) load_adapter(*adapter_, engine.slabs(), job_);
    use(engine);
  }

  /// Prints how likely the completions of a file are, a line of JSON each.
  void score() {
    choose_plan_of_one_sequence();
    std::vector<interop::TokenDocument> documents;
    std::optional<data::Sampler> data;
    comm::together(job_, [&] {
      documents = read_completions(
          options_.completions, {.tokenizer = tokenizer_path(), .begin = options_.begin}, model_);
      data.emplace(sequences_of(documents, options_.completions, model_));
    });
    const auto count = std::int64_t(documents.size());
    std::vector<double> likelihoods(documents.size()), misses(documents.size());
    with_engine([&](engine::Engine& engine) {
      const int own = plan::place(plan_, job_.rank()).index(model::data_axes);
      for (std::int64_t first = 0; first < count; first += job_.size()) {
        const engine::OwnLoss sum = engine.evaluate_own(*data, first);
        if (first + own >= count) continue;
        likelihoods[first + own] = -sum.loss;
        misses[first + own] = double(sum.misses);
      }
    });
    job_.all_reduce(likelihoods, comm::Reduction::sum);
    job_.all_reduce(misses, comm::Reduction::sum);
    if (!leader_) return;
    double sum = 0.0, bytes = 0.0;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const interop::TokenDocument& document = documents[i];
      const nlohmann::json line{{"log_likelihood", likelihoods[i]},
                                {"is_greedy", misses[i] == 0.0},
                                {"tokens", document.learned()},
                                {"bytes", document.answer_bytes}};
      fmt::print("{}\n", line.dump());
      sum += likelihoods[i];
      bytes += double(document.answer_bytes);
    }
    log::info("{} completions, {:.4f} bits a byte", count, -sum / std::numbers::ln2 / bytes);
  }

  void choose_plan_of_one_sequence() {
    require(options_.plan.empty(), Failure::input,
            "--completions are scored one a rank: leave --plan out");
    plan_ = plan::equal_stages(model_, job_.size(), 1,
                               {.nodes = session_.num_nodes(),
                                .devices_per_node = job_.size() / session_.num_nodes(),
                                .microbatch = 1,
                                .dp = job_.size(),
                                .zero_level = 3});
  }

  fs::path tokenizer_path() const {
    return app::tokenizer_path(options_.tokenizer,
                               model_folders(options_.weights, checkpoint_, deck_), model_,
                               options_.weights);
  }

  /// Bytes of text that the targets of samples stand for; nothing where the tokenizer beside the
  /// weights is missing, or not that of the file.
  std::optional<double> text_bytes(const data::Sampler& data, std::int64_t sequences) const {
    try {
      const fs::path path = tokenizer_path();
      if (path.empty()) return double(data.num_targets(0, sequences));
      const tokenizer::Tokenizer tokenizer(path);
      double bytes = 0.0;
      std::vector<std::int32_t> tokens(std::size_t(model_.seq_len)), targets(tokens.size());
      for (std::int64_t i = 0; i < sequences; ++i) {
        tokens.resize(targets.size());
        data.sample(i, tokens, targets);
        if (targets.back() >= 0) tokens.push_back(targets.back());
        std::int64_t first = 0;  // of the document
        for (const data::Document& part : data.documents(i)) {
          if (!part.continues) first = part.first;
          if (part.answer >= part.end) continue;
          bytes += double(tokenizer.text_bytes({tokens.begin() + first, tokens.begin() + part.end},
                                               std::size_t(part.answer - first)));
        }
      }
      return bytes;
    } catch (const Error& error) {
      if (!options_.tokenizer.empty() || error.failure() != Failure::input) throw;
      return std::nullopt;
    }
  }

  /// The deck of the checkpoint, or one for a pretrained model.
  void read() {
    checkpoint_ = find_weights(job_, options_.weights);
    comm::together(job_, [&] {
      const auto parse = [&](std::vector<std::string> sets) {
        sets.insert(sets.end(), options_.sets.begin(), options_.sets.end());
        deck_ = deck_of_weights(options_.weights, checkpoint_, job_.size(), sets);
        model_ = model::config(deck_.model, deck_.training.precision);
        model_.pairs = false;  // whose losses need the first weights of a training
        if (!model_.adapter.exists() && model_.quantization != Quantization::none)
          model::freeze(model_, [](const model::Parameter&) { return true; });
      };
      parse({});
      if (!options_.adapter.empty()) parse(adapter_sets(options_.adapter, model_));
    });
    if (!options_.adapter.empty()) adapter_ = open_adapter(options_.adapter, model_, job_);
    if (!checkpoint_) find_first_weights(options_.weights, model_, job_);
    session_.set_silence_limit(deck_.training.silence_limit_s);
    kernels::allow_tf32(deck_.training.tf32);
  }

  /// The plan that is given, or the checkpoint's where it is for as many ranks, or one that cuts
  /// batch and state over all ranks, which any model allows.
  void choose_plan() {
    comm::together(job_, [&] {
      hardware::Cluster here = cluster_of(session_.num_nodes(), job_.size());
      if (!options_.plan.empty()) {
        plan_ = plan::load(options_.plan);
      } else if (checkpoint_ && !checkpoint_->plan_text.empty()) {
        plan_ = plan::parse(checkpoint_->plan_text, checkpoint_->directory.string());
        if (plan_.devices() == job_.size()) here = hardware::cluster(deck_.cluster);
      }
      if (options_.plan.empty() && plan_.devices() != job_.size())
        plan_ = plan::equal_stages(model_, job_.size(), 1,
                                   {.nodes = here.groups[0].nodes,
                                    .devices_per_node = here.groups[0].devices_per_node,
                                    .microbatch = 1,
                                    .dp = job_.size(),
                                    .zero_level = 3});
      require(plan_.devices() == job_.size(), Failure::input, "{} is for {} ranks, the job has {}",
              options_.plan, plan_.devices(), job_.size());
      model_ = plan::padded(std::move(model_), plan_);
      plan::check(plan_, model_, here);
    });
  }

  std::optional<data::Sampler> open_data() const {
    const bool given = !options_.data.empty();
    const NamedTokens file{given ? "--data" : "data.valid",
                           given ? options_.data : deck_.data.valid};
    comm::together(job_, [&] {
      require(!file.path.empty(), Failure::input,
              "{}: was trained without data.valid: name a token file by --data", options_.weights);
    });
    const data::TokenChecks known = check_tokens({file}, deck_, model_, job_);
    std::optional<data::Sampler> data;
    comm::together(
        job_, [&] { data.emplace(open_validation(file.path, file.key, deck_, model_, known)); });
    return data;
  }

  void print(const data::Sampler& data, double loss, std::int64_t sequences, double seconds) const {
    const double tokens = double(data.num_targets(0, sequences));
    if (tokens == 0.0)
      log::warn("none of the tokens of {} is to be learned: there is no loss",
                counted(sequences, "sequence"));
    const std::optional<double> bytes = text_bytes(data, sequences);
    const double bits = bytes ? loss * tokens / std::numbers::ln2 / *bytes : 0.0;
    if (options_.json) {
      nlohmann::json all{{"loss", loss},
                         {"perplexity", std::exp(loss)},
                         {"sequences", sequences},
                         {"tokens", tokens},
                         {"seconds", seconds}};
      if (bytes) all["bits_per_byte"] = bits;
      fmt::print("{}\n", all.dump());
      return;
    }
    if (tokens > 0.0)
      fmt::print(
          "loss        {:.6f} nats a token\nperplexity  {:.4f}\nbits        {:.4f} a token\n", loss,
          std::exp(loss), loss / std::numbers::ln2);
    if (bytes && *bytes > 0.0) fmt::print("            {:.4f} a byte\n", bits);
    fmt::print("tokens      {} in {} sequences, {}\n", format_count(tokens), sequences,
               format_seconds(seconds));
  }

  const EvalOptions& options_;
  comm::Session& session_;
  comm::Communicator& job_;
  bool leader_;
  std::optional<io::CheckpointInfo> checkpoint_;
  std::unique_ptr<interop::PretrainedWeights> adapter_;  ///< null: none, or the weights' own
  deck::Deck deck_{};
  model::Config model_{};
  plan::Plan plan_{};
};

}  // namespace

int eval(const EvalOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& job) {
    Evaluation(options, session, job).run();
    return 0;
  });
}

}  // namespace brume::app
