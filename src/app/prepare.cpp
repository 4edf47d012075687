/// @file The preparation of a training: deck, data, checkpoints, profile, plan.
#include "prepare.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "kernels/narrow.hpp"
#include "kernels/types.hpp"
#include "plan/padding.hpp"
#include "planning.hpp"
#include "profiles.hpp"
#include "resume.hpp"
#include "run_settings.hpp"

namespace brume::app {
namespace {

/// Says what sequences are too short for.
void say_cuts(const data::Sampler& data, const char* key, int seq_len) {
  const auto say = [&](std::int64_t count, const char* what, const char* fate) {
    if (count > 0)
      log::warn("{}: {} {} in sequences of model.seq_len = {} tokens: raise it to keep all", key,
                counted(count, what), fate, seq_len);
  };
  say(data.pairs_left_out(), "pair", "left out, because the prompt leaves no room for an answer");
  say(data.answers_cut(), "answer", "cut at the end");
}

void warn_of_precision(const deck::Deck& deck, const model::Config& model) {
  const bool converts =
      (model.precision == model::Precision::bf16 && !kernels::has_bfloat16_instructions()) ||
      (model.precision == model::Precision::fp16 && !kernels::has_float16_instructions());
  if (converts)
    log::warn("{} saves memory, but not time: matrix products here convert to fp32",
              deck.training.precision);
  if (model.precision == model::Precision::fp8 && !kernels::has_float8_instructions())
    log::warn("fp8 is slower than bf16 here: factors are rounded to 8 bits and multiplied in bf16");
  if (deck.training.tf32 && !kernels::has_tf32_instructions())
    log::warn("training.tf32 changes nothing here: only NVIDIA devices since Ampere round to TF32");
}

/// Makes a Prepared, room by room.
class Preparation {
 public:
  Preparation(const RunOptions& options, comm::Session& session, comm::Communicator& job)
      : options_(options), session_(session), job_(job), leader_(job.rank() == 0) {}

  Prepared run() {
    begin("reading " + options_.deck);
    read_deck();
    open_data();
    count_steps();
    lock_directory();
    begin("looking for checkpoints in " + made_.deck.output.directory);
    made_.resume = find_resume(job_, options_, made_.deck.output.directory, made_.model,
                               made_.data_text, deck::schema().write(made_.deck), made_.last_step);
    count_start();
    if (const std::string& weights = made_.deck.model.weights; !made_.resume && !weights.empty())
      made_.first_weights = find_first_weights(weights, made_.model, job_);
    if (const std::string& adapter = made_.deck.training.adapter.weights;
        !adapter.empty() && !(made_.resume && has_adapter(*made_.resume)))
      made_.first_adapter = open_adapter(adapter, made_.model, job_);
    read_samples();
    choose_plan();
    check_plan();
    return std::move(made_);
  }

 private:
  /// @param waits_s  [s] beside what any work may stand still
  void begin(const std::string& doing, double waits_s = 0.0) {
    session_.begin_phase(doing, still_limit_s(made_.deck) + waits_s);
  }

  void read_deck() {
    deck::Deck& deck = made_.deck;
    deck = load_deck(job_, session_.ranks_per_node(), options_.deck, options_.sets);
    session_.set_silence_limit(deck.training.silence_limit_s);
    begin("reading " + options_.deck);
    made_.model = model::config(deck.model, deck.training.precision);
    require_groups_fit(deck, made_.model);
    kernels::allow_tf32(deck.training.tf32);
    if (options_.elastic) take_launch(deck.cluster);
    made_.cluster = hardware::cluster(deck.cluster);
    comm::together(job_, [&] {
      refuse_mist(deck, "run");
      require(job_.size() == made_.cluster.devices(), Failure::input,
              "the deck's cluster has {} devices, the job has {}: start {}, change "
              "cluster.nodes or cluster.devices_per_node, or take the ranks that are there by "
              "--elastic",
              made_.cluster.text(), counted(job_.size(), "rank"),
              counted(made_.cluster.devices(), "rank"));
      require_placed();
    });
    if (!leader_) return;
    warn_of_precision(deck, made_.model);
    if (session_.num_nodes() != made_.cluster.nodes())
      log::warn("cluster.nodes = {}, but the job runs on {}: limits and times are the deck's",
                made_.cluster.nodes(), session_.num_nodes());
  }

  /// A job that lost nodes, or was given more of them, goes on with those that it has.
  void take_launch(deck::ClusterKeys& cluster) {
    const int mine = session_.ranks_per_node();
    const auto [least, most] = std::ranges::minmax(session_.ranks_of_nodes());
    comm::together(job_, [&] {
      require(cluster.groups.empty(), Failure::input,
              "--elastic is for a cluster of equal nodes, this deck has cluster.groups");
      require(least == most, Failure::input,
              "--elastic is for as many ranks on each node, here some nodes have {} and some {}",
              least, most);
    });
    if (leader_ && (cluster.nodes != session_.num_nodes() || cluster.devices_per_node != mine))
      log::warn(
          "the job has {} x {} ranks, the deck's cluster {} x {}: planning for those that are "
          "there",
          session_.num_nodes(), mine, cluster.nodes, cluster.devices_per_node);
    cluster.nodes = session_.num_nodes();
    cluster.devices_per_node = mine;
  }

  /// Plans count on what the deck says of each node, as its memory and what stays within it.
  void require_placed() const {
    std::vector<int> devices;
    for (const hardware::NodeGroup& group : made_.cluster.groups)
      devices.insert(devices.end(), std::size_t(group.nodes), group.devices_per_node);
    const std::vector<int>& ranks = session_.ranks_of_nodes();
    if (ranks.size() != devices.size()) return;  // one machine may pass for others
    for (std::size_t node = 0; node < ranks.size(); ++node)
      require(ranks[node] == devices[node], Failure::input,
              "{} started on node {} of {}, which has {} in the deck: start as many as that{}",
              counted(ranks[node], "rank") + (ranks[node] == 1 ? " was" : " were"), node + 1,
              ranks.size(), counted(devices[node], "device"),
              made_.cluster.num_groups() > 1
                  ? ""
                  : fmt::format(", by mpirun --map-by ppr:{}:node or srun --ntasks-per-node={}",
                                devices[node], devices[node]));
  }

  void open_data() {
    const deck::DataKeys& keys = made_.deck.data;
    begin(fmt::format("opening data {} {} {}", keys.train, fmt::join(keys.files, " "), keys.valid));
    std::vector<NamedTokens> files;
    if (!keys.train.empty()) files.push_back({"data.train", keys.train});
    for (const std::string& path : keys.files) files.push_back({"data.files", path});
    if (!keys.valid.empty()) files.push_back({"data.valid", keys.valid});
    const data::TokenChecks known = check_tokens(files, made_.deck, made_.model, job_);
    comm::together(job_, [&] {
      made_.train_data.emplace(open_training(made_.deck, made_.model, known));
      if (!keys.valid.empty())
        made_.valid_data.emplace(
            open_validation(keys.valid, "data.valid", made_.deck, made_.model, known));
    });
    made_.model.document_share = made_.train_data->document_share();
    made_.data_text = data_text(*made_.train_data, made_.deck);
    if (leader_ && made_.model.pairs) {
      say_cuts(*made_.train_data, "data.train", made_.model.seq_len);
      if (made_.valid_data) say_cuts(*made_.valid_data, "data.valid", made_.model.seq_len);
    }
    if (leader_)
      log::debug("data: {}; {} sequences of {} tokens, of whose attention a share of {:.3f} counts",
                 made_.data_text, made_.train_data->num_windows(), made_.model.seq_len,
                 made_.model.document_share);
    require_same(job_, "reads", made_.data_text);
  }

  /// Tokens and epochs become steps, the last of which may take more than what was asked for.
  void count_steps() {
    const deck::TrainingKeys& training = made_.deck.training;
    const double sequences = training.tokens > 0.0
                                 ? training.tokens / made_.model.seq_len
                                 : training.epochs * double(made_.train_data->num_windows());
    const double steps = std::ceil(sequences / training.global_batch);
    comm::together(job_, [&] {
      require(steps <= double(std::numeric_limits<int>::max()), Failure::input,
              "training.tokens and training.epochs ask for {} steps: ask for less",
              format_count(steps));
      const int given = training.optimizer.warmup_steps + training.optimizer.decay_steps;
      require(training.steps > 0 || given <= steps, Failure::input,
              "training.optimizer: warmup_steps and decay_steps are {} steps, the training has {}",
              given, steps);
    });
    made_.steps = training.steps > 0 ? training.steps : std::int64_t(steps);
    made_.last_step = options_.steps.value_or(made_.steps);
    if (leader_ && training.steps == 0) log::info("the training has {} steps", made_.steps);
  }

  void lock_directory() {
    begin("locking " + made_.deck.output.directory, io::RunLock::Patience{}.own_job_s);
    comm::together(job_, [&] {
      if (leader_ && !options_.dry_run)
        made_.lock = std::make_unique<io::RunLock>(made_.deck.output.directory);
    });
  }

  /// Measuring and searching count too: a machine may kill a job there.
  void count_start() {
    comm::together(job_, [&] {
      if (made_.lock) made_.lock->begin(made_.resume ? made_.resume->step : 0);
    });
  }

  void read_samples() {
    const std::string& prompts = made_.deck.training.samples.prompts;
    if (prompts.empty()) return;
    begin("reading " + prompts);
    made_.sample_prompts = read_sample_prompts(made_.deck, made_.model, job_);
  }

  void choose_plan() {
    const std::optional<io::CheckpointInfo>& resume = made_.resume;
    if (resume && !resume->plan_text.empty() && !options_.replan && options_.plan.empty()) {
      made_.plan = plan::parse(resume->plan_text, resume->directory.string());
      if (made_.cluster.num_groups() > 1 || made_.plan.devices() == job_.size()) {
        made_.machine =
            hardware::parse_machine(resume->profile_text, "checkpoint", made_.deck.cluster);
        // The order of nodes was for those of the job before.
        if (leave_out_other_nodes(job_, session_.ranks_per_node(), *made_.machine) ||
            std::ssize(made_.plan.node_order) != made_.cluster.nodes())
          made_.plan.node_order.clear();
        if (leader_)
          log::debug("plan: the checkpoint's, for as many ranks; --replan searches another one");
        return;
      }
      if (leader_)
        log::warn("the checkpoint's plan needs {} ranks: searching a new one",
                  made_.plan.devices());
    }
    begin("reading or measuring the profile");
    made_.machine = obtain_machine(job_, session_.ranks_per_node(), made_.deck, made_.model);
    made_.searched = options_.plan.empty();
    if (leader_)
      log::debug("plan: {}", !made_.searched ? options_.plan
                             : resume
                                 ? "searched, as this job asks for another than the checkpoint's"
                                 : "searched, because there is none to go on with");
    begin(made_.searched ? "searching a plan" : "reading " + options_.plan);
    std::string text;
    comm::together(job_, [&] {
      if (!leader_) return;
      text = plan::text(made_.searched ? search_plan(made_.deck, made_.model, *made_.machine,
                                                     options_.search_state)
                                       : plan::load(options_.plan));
    });
    made_.plan = plan::parse(comm::broadcast(job_, text, 0), "plan");
  }

  void check_plan() {
    comm::together(job_, [&] {
      const plan::Plan& plan = made_.plan;
      made_.model = plan::padded(std::move(made_.model), plan);
      made_.cluster = hardware::usable(made_.cluster, *made_.machine);
      for (hardware::NodeGroup& group : made_.cluster.groups)
        group.on_device = device::on_device();  // whatever machine the profile is of
      require(made_.cluster.num_groups() > 1 || plan.devices() == job_.size(), Failure::input,
              "the plan is for {} ranks, the job has {}", plan.devices(), job_.size());
      check_given(plan, made_.deck, made_.model, made_.cluster);
    });
  }

  const RunOptions& options_;
  comm::Session& session_;
  comm::Communicator& job_;
  bool leader_;
  Prepared made_;
};

}  // namespace

double still_limit_s(const deck::Deck& deck) { return 2.0 * deck.training.silence_limit_s; }

Prepared prepare(const RunOptions& options, comm::Session& session, comm::Communicator& job) {
  return Preparation(options, session, job).run();
}

}  // namespace brume::app
