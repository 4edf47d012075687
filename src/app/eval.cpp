/// @file The verb `eval`: how well the weights of a run, or of a Hugging Face model, predict a
/// file.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string>

#include "all_ranks.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "device/memory.hpp"
#include "engine/engine.hpp"
#include "interop/hugging_face.hpp"
#include "io/checkpoint.hpp"
#include "kernels/narrow.hpp"
#include "kernels/types.hpp"
#include "prepare.hpp"
#include "verbs.hpp"
#include "weights.hpp"

namespace brume::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t no_limit = std::int64_t{1} << 60;  ///< [bytes] as much as can be had

/// Evaluates on all ranks of a job.
class Evaluation {
 public:
  Evaluation(const EvalOptions& options, comm::Session& session, comm::Communicator& job)
      : options_(options), session_(session), job_(job), leader_(job.rank() == 0) {}

  void run() {
    read();
    choose_plan();
    std::optional<data::Sampler> data;
    comm::together(job_, [&] { data.emplace(open_data()); });
    const std::int64_t sequences =
        std::min(options_.sequences.value_or(data->num_windows()), data->num_windows());
    if (leader_)
      log::info("{} of {} sequences of {} tokens, on {} ranks", sequences, data->num_windows(),
                model_.seq_len, job_.size());
    const int threads = device::threads_per_rank(session_.ranks_per_node());
    const kernels::Runtime runtime(threads);
    engine::Engine engine(plan_, model_, settings(threads), job_);
    load_weights({options_.weights, checkpoint_}, model_, engine, job_);
    const auto start = Clock::now();
    const double loss = engine.evaluate(*data, 0, sequences);
    if (leader_)
      print(loss, sequences, std::chrono::duration<double>(Clock::now() - start).count());
  }

 private:
  /// The deck of the checkpoint, or one for a pretrained model.
  void read() {
    checkpoint_ = find_weights(job_, options_.weights);
    comm::together(job_, [&] {
      require(
          checkpoint_ || interop::is_hugging_face(options_.weights), Failure::input,
          "{}: is neither a run directory with checkpoints, nor one of these, nor a Hugging Face "
          "model",
          options_.weights);
      deck_ = checkpoint_ ? deck::parse(checkpoint_->deck_text, checkpoint_->directory.string(),
                                        options_.sets)
                          : pretrained_deck(options_.weights, job_.size(), options_.sets);
      model_ = model::config(deck_.model, deck_.training.precision);
    });
    session_.set_silence_limit(deck_.training.silence_limit_s);
    kernels::allow_tf32(deck_.training.tf32);
  }

  /// The plan that is given, or the checkpoint's where it is for as many ranks, or one that cuts
  /// batch and state over all ranks, which any model allows.
  void choose_plan() {
    comm::together(job_, [&] {
      hardware::Cluster here{
          hardware::NodeGroup{.nodes = session_.num_nodes(),
                              .devices_per_node = job_.size() / session_.num_nodes(),
                              .memory_bytes = no_limit,
                              .host_memory_bytes = no_limit,
                              .disk_bytes = no_limit}};
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
      plan::check(plan_, model_, here);
    });
  }

  data::Sampler open_data() const {
    const std::string& path = options_.data.empty() ? deck_.data.valid : options_.data;
    require(!path.empty(), Failure::input,
            "{}: was trained without data.valid: name a token file by --data", options_.weights);
    return open_validation(path, options_.data.empty() ? "data.valid" : "--data", model_);
  }

  engine::Settings settings(int threads) const {
    engine::Settings s;
    s.threads = threads;
    s.first_core = device::first_core(session_.ranks_per_node(), session_.node_rank());
    s.scratch = deck_.cluster.all_groups().front().scratch;
    return s;
  }

  void print(double loss, std::int64_t sequences, double seconds) const {
    const double tokens = double(sequences) * model_.seq_len;
    if (options_.json) {
      const nlohmann::json all{{"loss", loss},
                               {"perplexity", std::exp(loss)},
                               {"sequences", sequences},
                               {"tokens", tokens},
                               {"seconds", seconds}};
      fmt::print("{}\n", all.dump());
      return;
    }
    fmt::print("loss        {:.6f} nats a token\nperplexity  {:.4f}\nbits        {:.4f} a token\n",
               loss, std::exp(loss), loss / std::numbers::ln2);
    fmt::print("tokens      {} in {} sequences, {}\n", format_count(tokens), sequences,
               format_seconds(seconds));
  }

  const EvalOptions& options_;
  comm::Session& session_;
  comm::Communicator& job_;
  bool leader_;
  std::optional<io::CheckpointInfo> checkpoint_;
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
