#include "answering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/key_moves.hpp"
#include "inference.hpp"
#include "interop/hugging_face.hpp"
#include "kernels/narrow.hpp"
#include "kernels/types.hpp"
#include "prepare.hpp"
#include "weights.hpp"

namespace brume::app {
namespace fs = std::filesystem;

Answering::Answering(const AnswerOptions& options, comm::Session& session, comm::Communicator& job)
    : options_(options), session_(session), job_(job) {
  checkpoint_ = find_weights(job_, options_.weights);
  comm::together(job_, [&] {
    read_deck();
    const std::vector<fs::path> folders = model_folders(options_.weights, checkpoint_, deck_);
    translator_.emplace(tokenizer_path(options_.tokenizer, folders, model_, options_.weights),
                        folders, options_, model_.vocab_size);
  });
  if (!options_.adapter.empty()) adapter_ = open_adapter(options_.adapter, model_, job_);
  if (!checkpoint_) find_first_weights(options_.weights, model_, job_);
  session_.set_silence_limit(deck_.training.silence_limit_s);
  kernels::allow_tf32(deck_.training.tf32);
}

void Answering::read_deck() {
  std::vector<std::string> own;  // settings of the user win
  const auto parse = [&] {
    std::vector<std::string> sets = own;
    sets.insert(sets.end(), options_.sets.begin(), options_.sets.end());
    deck_ = deck_of_weights(options_.weights, checkpoint_, job_.size(), sets);
    model_ = model::config(deck_.model, deck_.training.precision);
  };
  parse();
  const bool given = std::ranges::any_of(
      options_.sets, [](const std::string& set) { return set.starts_with("training.precision"); });
  if (!checkpoint_ && !given) {
    const interop::Dtype dtype = interop::PretrainedWeights(options_.weights, model_).dtype();
    own.push_back(fmt::format("training.precision=\"{}\"", model::name(precision_of(dtype))));
  }
  if (!options_.adapter.empty())
    for (std::string& set : adapter_sets(options_.adapter, model_)) own.push_back(std::move(set));
  if (!own.empty()) parse();
}

void Answering::identify() {
  comm::together(job_, [&] {
    if (job_.rank() != 0) return;
    Fnv1a hash;
    hash.add(checkpoint_
                 ? checkpoint_->identity
                 : weights_identity(interop::PretrainedWeights(options_.weights, model_), model_));
    if (adapter_) hash.add(weights_identity(*adapter_, model_));
    hash.add(model::text(model_));
    hash.add(model::name(model_.precision));
    translator_->add_to(hash);
    identity_ = fmt::format("{:016x}", hash.value());
  });
  identity_ = comm::broadcast(job_, std::move(identity_), 0);
}

std::string Answering::fingerprint(std::string_view question,
                                   const AnswerSettings& settings) const {
  const generation::Sampling& how = settings.sampling;
  Fnv1a hash;
  hash.add(identity_);
  hash.add(question);
  hash.add(
      fmt::format("{} {} {} {}", settings.max_tokens, how.top_k, how.seed, how.log_probabilities));
  for (const generation::SamplingKey& key : generation::sampling_keys())
    hash.add(fmt::format("{}", how.*key.value));
  for (const std::string& stop : settings.stops) hash.add(stop);
  return fmt::format("{:016x}", hash.value());
}

void Answering::with_generators(const std::function<void(const PhaseGenerators&)>& use) {
  const int threads = device::threads_per_rank(session_.ranks_per_node());
  const kernels::Runtime runtime(threads);
  const auto make = [&](const plan::Plan& plan, const model::Config& model,
                        comm::Communicator& ranks) {
    auto made = std::make_unique<engine::Generator>(
        plan, model, inference_settings(session_, deck_, threads), ranks);
    load_weights({options_.weights, checkpoint_}, model_, made->slabs(), job_);
    if (adapter_) load_adapter(*adapter_, made->slabs(), job_);
    return made;
  };
  if (!plan_.prompts) return use({*make(plan_.plan, plan_.model, job_)});
  // The ranks of a copy are the same ones by both plans, in the same order.
  const auto by_copy = [&](const plan::Plan& plan) {
    return job_.split(0, engine::ranks_by_copy(plan)[std::size_t(job_.rank())]);
  };
  const auto answer_ranks = by_copy(plan_.plan), prompt_ranks = by_copy(*plan_.prompts);
  const auto answers = make(plan_.plan, plan_.model, *answer_ranks),
             prompts = make(*plan_.prompts, plan_.prompt_model(), *prompt_ranks);
  use({*answers, prompts.get()});
}

/// Memory that a rank may take, the least of all ranks' [bytes].
double Answering::memory_bytes() {
  const device::Description device = device::describe_device();
  const std::int64_t left = device.memory_bytes > 0
                                ? device.free_bytes
                                : device::available_bytes() / session_.ranks_per_node();
  std::array<double, 1> bytes{left > 0 ? generation_share_of_memory * double(left) : 1e18};
  job_.all_reduce(bytes, comm::Reduction::min);
  return bytes.front();
}

void Answering::choose_plan(std::int64_t tokens, int batch, Copies copies) {
  const double bytes = memory_bytes();
  comm::together(job_, [&] {
    plan_ = choose_generation_plan(model_,
                                   {.tokens = tokens,
                                    .batch = batch,
                                    .memory_bytes = bytes,
                                    .cache_gib = options_.cache_gib,
                                    .copies = copies,
                                    .tp = options_.tp,
                                    .plan = options_.plan},
                                   session_.num_nodes(), job_.size());
  });
}

}  // namespace brume::app
