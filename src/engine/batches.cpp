#include "batches.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "zigzag.hpp"

namespace brume::engine {
namespace {

constexpr std::int32_t not_learned = -1;  ///< in the place of a target

/// Numbers of each rank's samples, as many for each. The sample with most work goes first, each to
/// the rank with the least work that has room.
/// @param work  of each sample
std::vector<std::vector<std::int64_t>> deal(const std::vector<double>& work, int ranks) {
  std::vector<std::int64_t> by_work(work.size());
  std::iota(by_work.begin(), by_work.end(), 0);
  std::ranges::stable_sort(by_work, std::ranges::greater{},
                           [&](std::int64_t number) { return work[std::size_t(number)]; });
  std::vector<std::vector<std::int64_t>> dealt(static_cast<std::size_t>(ranks));
  using Load = std::pair<double, std::size_t>;  // of a rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::size_t rank = 0; rank < dealt.size(); ++rank) least.emplace(0.0, rank);
  const std::size_t room = work.size() / dealt.size();
  for (const std::int64_t number : by_work) {
    const auto [load, rank] = least.top();
    least.pop();
    dealt[rank].push_back(number);
    if (dealt[rank].size() < room) least.emplace(load + work[std::size_t(number)], rank);
  }
  return dealt;
}

}  // namespace

Batch BatchReader::take(const data::Sampler& data, std::int64_t first, std::int64_t count) {
  const Asked asked{&data, first, count};
  struct Waiting {
    explicit Waiting(std::atomic<bool>& flag) : flag(flag) { flag = true; }
    ~Waiting() { flag = false; }
    std::atomic<bool>& flag;
  } const waiting(waits_);
  if (coming_.valid() && ahead_ == asked) return coming_.get();
  drop();
  return read(asked, {});
}

void BatchReader::read_ahead(const data::Sampler& data, std::int64_t first, std::int64_t count) {
  drop();
  ahead_ = {&data, first, count};
  stop_ = std::stop_source();
  try {
    coming_ = std::async(std::launch::async, [this, asked = ahead_, stop = stop_.get_token()] {
      return read(asked, stop);
    });
  } catch (const std::system_error&) {
    // Without a thread it is read when it is taken.
  }
}

/// Ends reading ahead, between two samples.
void BatchReader::drop() {
  stop_.request_stop();
  if (coming_.valid()) coming_.wait();
  coming_ = {};
}

Batch BatchReader::read(const Asked& asked, const std::stop_token& stop) const {
  const plan::Stage& stage = plan_.stages[place_.stage];
  const auto seq_len = std::size_t(model_.seq_len), padded = std::size_t(model_.padded_len()),
             own_tokens = padded / std::size_t(stage.cp);
  const auto sequences = std::size_t(plan_.microbatches * stage.microbatch);
  std::vector<std::int32_t> inputs(padded), targets(padded, not_learned);
  Batch batch;
  for (std::vector<std::int32_t>* all : {&batch.inputs, &batch.targets})
    all->reserve(sequences * own_tokens);
  // Tokens that pad a sequence are a document behind it.
  batch.begins.resize(sequences * padded, std::int32_t(seq_len));
  std::size_t slot = 0;
  for (const std::int64_t in_batch : own_sequences(*asked.data, asked.first)) {
    if (stop.stop_requested()) return batch;
    asked.data->sample(asked.first + in_batch,
                       {std::span(inputs).first(seq_len), std::span(targets).first(seq_len),
                        std::span(batch.begins).subspan(slot, seq_len)});
    slot += padded;
    check_tokens(inputs, 0), check_tokens(targets, not_learned);
    if (in_batch >= asked.count) std::ranges::fill(targets, not_learned);
    const auto add_own = [&](const std::vector<std::int32_t>& all, std::vector<std::int32_t>& to) {
      for (int row = 0; row < int(own_tokens); ++row)
        to.push_back(all[std::size_t(position(stage, model_.padded_len(), place_.cp_rank, row))]);
    };
    add_own(inputs, batch.inputs), add_own(targets, batch.targets);
  }
  const std::int64_t count = std::min<std::int64_t>(asked.count, plan_.global_batch);
  for (std::int64_t i = 0; model_.pairs && i < count; ++i)
    batch.learned_of.push_back(asked.data->num_targets(asked.first + i, 1));
  batch.learned = model_.pairs ? std::accumulate(batch.learned_of.begin(), batch.learned_of.end(),
                                                 std::int64_t{0})
                               : asked.data->num_targets(asked.first, count);
  return batch;
}

std::vector<std::int64_t> BatchReader::own_sequences() const {
  const plan::Stage& stage = plan_.stages[place_.stage];
  const std::int64_t data_rank = place_.index(model::data_axes) / stage.cp;
  std::vector<std::int64_t> numbers;
  for (std::int64_t m = 0; m < plan_.microbatches; ++m)
    for (int j = 0; j < stage.microbatch; ++j)
      numbers.push_back((m * stage.dp + data_rank) * stage.microbatch + j);
  return numbers;
}

std::vector<std::int64_t> BatchReader::own_sequences(const data::Sampler& data,
                                                     std::int64_t first) const {
  std::vector<std::int64_t> numbers = own_sequences();
  int ranks = 1;  // of the stage with most, whose sequences no other stage parts
  for (const plan::Stage& stage : plan_.stages) ranks = std::max(ranks, stage.dp);
  if (deal_ == Deal::in_order || !model_.isolated || model_.pairs || ranks == 1) return numbers;
  std::vector<double> pairs;
  for (int i = 0; i < plan_.global_batch; ++i) pairs.push_back(data.attention_pairs(first + i));
  const std::vector<std::vector<std::int64_t>> dealt = deal(pairs, ranks);
  const std::int64_t rounds = std::ssize(dealt[0]) / plan_.microbatches;
  for (std::int64_t& number : numbers) {
    const std::int64_t row = number / rounds, microbatch = row / ranks, rank = row % ranks;
    number = dealt[std::size_t(rank)][std::size_t(microbatch * rounds + number % rounds)];
  }
  return numbers;
}

/// Kernels trust what they are given.
void BatchReader::check_tokens(std::span<const std::int32_t> tokens, std::int32_t least) const {
  const auto [lowest, highest] = std::ranges::minmax_element(tokens);
  require(*lowest >= least && *highest < model_.vocab_size, Failure::input,
          "the data hold tokens {} to {}, the model has a vocabulary of {}", *lowest, *highest,
          model_.vocab_size);
}

}  // namespace brume::engine
