/// @file Evaluations by an engine: losses and log-probabilities.
#include <array>
#include <cmath>

#include "engine_impl.hpp"

namespace brume::engine {

double Engine::evaluate(const data::Sampler& data, std::int64_t first, std::int64_t sequences) {
  flush();
  Impl& e = *impl_;
  require(!e.model.pairs, Failure::bug, "pairs have no mean loss");
  const std::int64_t targets = data.num_targets(first, sequences);
  if (targets == 0) return std::nan("");
  StepScalars scalars = e.scalars(0);
  scalars.loss_scale = Impl::mean_of(targets);
  double loss = 0.0;
  std::vector<Span> times;
  BatchReader batches(e.plan, e.model, e.train.rank);
  for (std::int64_t done = 0; done < sequences; done += e.plan.global_batch) {
    e.load(batches.take(data, first + done, sequences - done));
    if (const std::int64_t next = done + e.plan.global_batch; next < sequences)
      batches.read_ahead(data, first + next, sequences - next);
    e.run_evaluation(scalars, times);
    loss += e.totals()[0];
  }
  return loss;
}

OwnLoss Engine::evaluate_own(const data::Sampler& data, std::int64_t first) {
  flush();
  Impl& e = *impl_;
  StepScalars scalars = e.scalars(0);
  scalars.loss_scale = 1.0f;
  e.load(BatchReader(e.plan, e.model, e.train.rank).take(data, first, e.plan.global_batch));
  std::vector<Span> times;
  e.run_evaluation(scalars, times);
  std::array<double, 2> sums{};
  if (const Buffer* const own = named(e.evaluation, "loss"))
    device::copy_now(sums.data(), e.arena.at(*own), sizeof sums);
  return {.loss = sums[0], .misses = std::int64_t(sums[1])};
}

std::vector<double> Engine::log_probabilities(const data::Sampler& data, std::int64_t first,
                                              std::int64_t count) {
  flush();
  Impl& e = *impl_;
  require(e.model.pairs, Failure::bug, "only samples that are pairs have losses of their own");
  std::vector<double> all;
  std::vector<Span> times;
  BatchReader batches(e.plan, e.model, e.train.rank);
  while (std::ssize(all) < count) {
    const std::int64_t done = std::ssize(all);
    e.load(batches.take(data, first + done, count - done));
    if (const std::int64_t next = done + e.plan.global_batch; next < count)
      batches.read_ahead(data, first + next, count - next);
    const std::vector<double> some = e.score(times);
    all.insert(all.end(), some.begin(),
               some.begin() + std::min<std::int64_t>(std::ssize(some), count - done));
  }
  return all;
}

}  // namespace brume::engine
