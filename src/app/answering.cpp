#include "answering.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "inference.hpp"
#include "interop/hugging_face.hpp"
#include "interop/tokens.hpp"
#include "kernels/narrow.hpp"
#include "kernels/types.hpp"
#include "prepare.hpp"
#include "weights.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;

constexpr int host_pass_tokens = 1024, device_pass_tokens = 2048;
constexpr double share_of_memory = 0.8;

/// Bytes of all layers' key caches on a rank of a stage.
double key_bytes(const plan::Stage& stage, const model::Config& model) {
  return stage.layers * model::cache_bytes(model).evaluate(stage.split().values());
}

}  // namespace

Answering::Answering(const AnswerOptions& options, comm::Session& session, comm::Communicator& job)
    : options_(options), session_(session), job_(job) {
  checkpoint_ = find_weights(job_, options_.weights);
  comm::together(job_, [&] {
    read_deck();
    read_tokenizer();
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

std::int32_t Answering::token_of(const std::string& text, const char* option) const {
  const auto found = tokenizer_ ? tokenizer_->find(text) : std::nullopt;
  require(found.has_value(), Failure::input, "{} '{}': {}", option, text,
          tokenizer_ ? "the tokenizer has no such token" : "tokens are bytes");
  return *found;
}

/// Reads the tokenizer, and finds the tokens by which texts begin and answers end.
void Answering::read_tokenizer() {
  tokenizer_path_ =
      tokenizer_path(options_.tokenizer, options_.weights, checkpoint_, deck_, model_);
  if (!tokenizer_path_.empty()) tokenizer_.emplace(tokenizer_path_);
  const std::string first = options_.begin             ? *options_.begin
                            : !tokenizer_path_.empty() ? interop::begin_token(tokenizer_path_)
                                                       : std::string();
  if (!first.empty())
    begin_ = token_of(first, options_.begin ? "--begin" : "the post-processor's first token");
  for (const std::string& end : options_.ends) ends_.insert(token_of(end, "--end"));
  if (!options_.ends.empty()) return;
  for (const fs::path& folder : model_folders(options_.weights, checkpoint_, deck_)) {
    const std::vector<std::int32_t> ends = interop::end_tokens(folder);
    ends_.insert(ends.begin(), ends.end());
    if (!ends_.empty()) break;
  }
}

void Answering::read_conversations() {
  if (chat_) return;
  chat_.emplace(interop::conversation_writer(tokenizer_path_, tokenizer_ ? &*tokenizer_ : nullptr,
                                             options_.chat_template, "", ""));
  // Models that learned to chat end their answers by the token that ends texts of the tokenizer.
  if (!options_.ends.empty() || !tokenizer_ || chat_->end_token().empty()) return;
  if (const auto end = tokenizer_->find(chat_->end_token())) ends_.insert(*end);
}

std::vector<std::int32_t> Answering::encode(std::string_view text, bool conversation) {
  std::vector<std::int32_t> tokens;
  if (begin_ && !conversation) tokens.push_back(*begin_);
  if (tokenizer_)
    tokenizer_->encode(text, tokens);
  else
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  for (const std::int32_t token : tokens)
    require(token < model_.vocab_size, Failure::input,
            "the tokenizer makes token {}, the model has a vocabulary of {}", token,
            model_.vocab_size);
  return tokens;
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
    for (int token = 0; tokenizer_ && token < tokenizer_->vocab_size(); ++token)
      hash.add(tokenizer_->text_within(token));
    hash.add(chat_ ? chat_->identity() : "");
    hash.add(fmt::format("{} {}", begin_.value_or(-1), fmt::join(ends_, " ")));
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

std::string Answering::bytes_of(std::int32_t token) const {
  if (!tokenizer_) return {char(token)};
  return std::string(tokenizer_->text_within(token));
}

std::string Answering::refusal(std::int64_t tokens, std::int64_t room) const {
  if (tokens == 0) return "the prompt has no tokens: give it some, or name one by --begin";
  if (tokens < room) return {};
  return fmt::format(
      "the prompt has {} tokens, of which fewer than {} fit", tokens,
      room < model_.seq_len ? fmt::format("{}", room) : fmt::format("model.seq_len = {}", room));
}

double Answering::cache_bytes() const { return key_bytes(plan_.stages.front(), sizes_); }

void Answering::with_generator(const std::function<void(engine::Generator&)>& use) {
  const int threads = device::threads_per_rank(session_.ranks_per_node());
  const kernels::Runtime runtime(threads);
  engine::Generator generator(plan_, sizes_, inference_settings(session_, deck_, threads), job_);
  load_weights({options_.weights, checkpoint_}, model_, generator.slabs(), job_);
  if (adapter_) load_adapter(*adapter_, generator.slabs(), job_);
  use(generator);
}

std::vector<generation::Choice> Answering::choose(
    engine::Generator& generator, const generation::Scheduler::Pass& pass,
    const generation::Scheduler& scheduler,
    const std::function<Draw(std::int64_t id)>& draw_of) const {
  const std::span<const float> logits = generator.run(pass.tokens);
  comm::Communicator& copy = generator.copy();
  std::vector<generation::Choice> chosen(pass.wanted.size());
  const auto vocab = std::size_t(model_.vocab_size);
  for (std::size_t i = 0; i < chosen.size() && copy.rank() == generator.sampler(); ++i) {
    const Draw draw = draw_of(pass.wanted[i]);
    chosen[i] = generation::choose(logits.subspan(i * vocab, vocab), draw.how,
                                   scheduler.history(pass.wanted[i]), draw.sequence);
  }
  if (!chosen.empty())
    copy.broadcast(std::as_writable_bytes(std::span(chosen)), generator.sampler());
  return chosen;
}

model::Config Answering::sized(int tp, int blocks) const {
  model::Config model = model_;
  model.seq_len = needed_tokens_;
  const int longest = device::on_device() ? device_pass_tokens : host_pass_tokens;
  model::Generation sizes{.tokens = int(round_up(std::max(longest, batch_), tp)),
                          .sequences = batch_};
  model = model::generating(model, sizes);
  model.generation.blocks = blocks > 0 ? blocks : model.blocks_per_sequence() * batch_;
  return model;
}

/// Memory that a rank may take, the least of all ranks' [bytes].
double Answering::memory_bytes() {
  const device::Description device = device::describe_device();
  const std::int64_t left = device.memory_bytes > 0
                                ? device.free_bytes
                                : device::available_bytes() / session_.ranks_per_node();
  std::array<double, 1> bytes{left > 0 ? share_of_memory * double(left) : 1e18};
  job_.all_reduce(bytes, comm::Reduction::min);
  return bytes.front();
}

/// Blocks of the cache that fit, with the model, into so much memory of a rank; 0: not even one
/// sequence has room.
int Answering::blocks_beside(const plan::Plan& plan, int tp, double memory_bytes) const {
  const model::Config all = sized(tp, 0), least = sized(tp, all.blocks_per_sequence());
  double bytes = memory_bytes, block_bytes = 0.0;
  for (const plan::Stage& stage : plan.stages)
    block_bytes = std::max(block_bytes, key_bytes(stage, all) / all.generation.blocks);
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const schedule::Arenas needed =
        engine::generator_bytes(plan, least, plan::first_rank(plan, stage));
    bytes = std::min(bytes, memory_bytes - double(needed[std::size_t(schedule::Tier::device)]));
  }
  if (bytes < 0.0) return 0;
  double blocks = least.generation.blocks + std::floor(bytes / block_bytes);
  if (options_.cache_gib > 0.0)
    blocks = std::min(blocks, std::floor(options_.cache_gib * 0x1p30 / block_bytes));
  blocks = std::min(blocks, double(all.generation.blocks));
  return std::max(int(blocks), least.generation.blocks);
}

plan::Plan Answering::plan_of(int tp) const {
  const int copies = job_.size() / tp;
  return plan::equal_stages(model_, copies, 1,
                            {.nodes = session_.num_nodes(),
                             .devices_per_node = job_.size() / session_.num_nodes(),
                             .microbatch = 1,
                             .dp = copies,
                             .tp = tp});
}

void Answering::choose_plan(std::int64_t tokens, int batch, Copies copies) {
  // Learned positions keep their number.
  const std::int64_t needed = round_up(tokens, 64);
  needed_tokens_ =
      model_.rotary() ? int(std::min<std::int64_t>(needed, model_.seq_len)) : model_.seq_len;
  batch_ = batch;
  const double bytes = memory_bytes();
  comm::together(job_, [&] {
    const hardware::Cluster here = cluster_of(session_, job_);
    const auto use = [&](plan::Plan plan, int tp) {
      plan_ = engine::generating(std::move(plan));
      sizes_ = sized(tp, 0);
      plan::check(plan_, sizes_, here);
      const int blocks = blocks_beside(plan_, tp, bytes);
      if (blocks > 0) sizes_ = sized(tp, blocks);
      return blocks > 0;
    };
    if (!options_.plan.empty()) {
      const plan::Plan given = plan::load(options_.plan);
      require(given.devices() == job_.size(), Failure::input, "{} is for {} ranks, the job has {}",
              options_.plan, given.devices(), job_.size());
      int tp = 1;
      for (const plan::Stage& stage : given.stages) tp = std::lcm(tp, stage.tp);
      use(given, tp);
      return;
    }
    std::optional<Error> refused;
    std::vector<int> widths;
    for (int tp = 1; tp <= job_.size(); ++tp)
      if (job_.size() % tp == 0 && (options_.tp == 0 || options_.tp == tp)) widths.push_back(tp);
    if (copies == Copies::widest) std::ranges::reverse(widths);
    int widest = 0;  // that the model allows
    for (const int tp : widths) {
      try {
        if (use(plan_of(tp), tp)) return;
        widest = std::max(widest, tp);
      } catch (const Error& error) {
        if (error.failure() != Failure::input) throw;
        refused = error;
      }
    }
    if (widest > 0) {  // memory seems short: this takes the least of each rank
      use(plan_of(widest), widest);
      return;
    }
    if (refused) throw Error(*refused);
    require(job_.size() % std::max(1, options_.tp) == 0, Failure::input,
            "--tp {} does not divide the job's {} ranks", options_.tp, job_.size());
  });
}

}  // namespace brume::app
