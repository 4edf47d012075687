#include "analyzer/analyzer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "analyzer/messages.hpp"
#include "other_orders.hpp"
#include "plan/knobs.hpp"
#include "price/price.hpp"
#include "stage_memory.hpp"
#include "stage_time.hpp"
#include "symbolic/batch.hpp"

namespace brume::analyzer {
namespace {

Expr sum(const std::vector<Term>& terms) {
  Expr total = 0.0;
  for (const Term& term : terms) total += term.value;
  return total;
}

}  // namespace

const std::vector<std::string>& variables() {
  static const std::vector<std::string> symbols = [] {
    std::vector<std::string> found;
    for (const plan::Knob& knob : plan::knobs)
      if (*knob.symbol) found.emplace_back(knob.symbol);
    return found;
  }();
  return symbols;
}

StageExpressions stage_expressions(const model::Config& model, const hardware::Machine& machine,
                                   StageRole role) {
  TimeTerms terms = stage_time(model, machine, role);
  const MemoryExpressions memory = stage_memory(model, role);
  TimeExpressions time;
  for (std::size_t i = 0; i < TimeTerms::num_parts; ++i)
    time.*TimeExpressions::parts()[i].time = sum(terms.*TimeTerms::parts()[i].time);
  return {.terms = std::move(terms),
          .time = time,
          .peak_forward_bytes = memory.peak_forward_bytes,
          .peak_backward_bytes = memory.peak_backward_bytes,
          .host_bytes = memory.host_bytes,
          .disk_bytes = memory.disk_bytes,
          .persistent_bytes = memory.persistent_bytes,
          .kept_bytes = memory.kept_bytes};
}

StageRole role_of(const plan::Plan& plan, int stage, const model::Config& model,
                  const hardware::Machine& machine) {
  const bool first = stage == 0, last = stage + 1 == plan.num_stages();
  const auto group = [&](int i) { return machine.index(plan.stages[i].group); };
  const int own = group(stage);
  const plan::BlockRange blocks = plan::block_range(plan, stage);
  const auto times = [&](int rank, int count) {
    if (machine.profile(own).slow_pairs.empty()) return 1.0;
    std::vector<int> ranks(std::size_t(count), 0);
    std::iota(ranks.begin(), ranks.end(), rank);
    return price::times_as_long(plan, machine, ranks);
  };
  return {
      .first = first,
      .last = last,
      .layers = plan.stages[stage].layers > 0,
      .group = own,
      .before = first ? own : group(stage - 1),
      .after = last ? own : group(stage + 1),
      .frozen = std::clamp(model.frozen_blocks - blocks.first, 0, blocks.last - blocks.first + 1),
      .dense = std::clamp(model.first_dense_layers - plan.stages[stage].first_layer, 0,
                          plan.stages[stage].layers),
      .disk = plan::uses_disk(plan.stages[stage]),
      .host_update = plan.stages[stage].host_update_ratio > 0.0,
      .gather_keys = plan.stages[stage].gather_keys == 1,
      .dispatch_tokens = plan.stages[stage].dispatch_tokens == 1,
      .mlp_tiles = plan.stages[stage].mlp_tiles,
      .times = times(plan::first_rank(plan, stage), plan.stages[stage].devices()),
      .world_times = times(0, plan.devices()),
      .first_in_unit = price::first_in_unit(plan, machine, stage)};
}

namespace {

/// Finds the values of variables() for one stage, in their order.
std::vector<double> numbers_of(const plan::Plan& plan, int stage) {
  std::vector<double> found;
  found.reserve(variables().size());
  for (const plan::Knob& knob : plan::knobs)
    if (*knob.symbol) found.push_back(plan::number(knob, plan, stage));
  return found;
}

/// Says where the microbatches in flight stand among variables().
std::size_t place_of_in_flight() {
  static const auto place = std::size_t(
      std::ranges::find(variables(), plan::symbol(plan::stage_in_flight)) - variables().begin());
  return place;
}

}  // namespace

std::map<std::string, double, std::less<>> bindings(const plan::Plan& plan, int stage) {
  std::map<std::string, double, std::less<>> values;
  const std::vector<double> numbers = numbers_of(plan, stage);
  for (std::size_t i = 0; i < numbers.size(); ++i) values.emplace(variables()[i], numbers[i]);
  return values;
}

/// A role's expressions: both peaks on the device, host memory, disk, the times of its passes.
class Analyzer::RoleTape {
 public:
  RoleTape(const model::Config& model, const hardware::Machine& machine, StageRole role)
      : tape_(symbolic::Tape(outputs(stage_expressions(model, machine, role)), variables()),
              std::vector(variables().size(), true)) {}

  static constexpr std::size_t num_memories = 6, num_outputs = num_memories + PassTimes::num_parts;

  /// Plans that are compared have many stages in common.
  struct Known {
    StagePrediction stage;
    ChunkBytes bytes;
  };
  /// @param values  of variables()
  const Known& at(const std::vector<double>& values) {
    const auto [known, fresh] = known_.try_emplace(values);
    if (fresh) known->second = predict(values);
    return known->second;
  }

 private:
  Known predict(const std::vector<double>& values) const {
    std::array<double, num_outputs> results;
    std::array<double*, num_outputs> columns;
    std::ranges::transform(results, columns.begin(), [](double& result) { return &result; });
    const std::vector<const double*> none(values.size());
    tape_.evaluate(tape_.common(values), none, columns, 1);
    Known known{
        .stage = {.time = {},
                  .peak_forward_bytes = std::llround(results[0]),
                  .peak_backward_bytes = std::llround(results[1]),
                  .host_bytes = std::llround(results[2]),
                  .disk_bytes = std::llround(results[3])},
        .bytes = {results[4], results[5], results[0] - results[4], results[1] - results[4]}};
    for (std::size_t i = 0; i < PassTimes::num_parts; ++i)
      known.stage.time.*PassTimes::parts()[i].time = results[num_memories + i];
    return known;
  }

  static std::array<Expr, num_outputs> outputs(const StageExpressions& e) {
    std::array<Expr, num_outputs> all{e.peak_forward_bytes, e.peak_backward_bytes, e.host_bytes,
                                      e.disk_bytes,         e.persistent_bytes,    e.kept_bytes};
    for (std::size_t i = 0; i < PassTimes::num_parts; ++i)
      all[num_memories + i] = e.time.*TimeExpressions::parts()[i].time;
    return all;
  }
  symbolic::BatchTape tape_;
  std::map<std::vector<double>, Known> known_;
};

Analyzer::Analyzer(const model::Config& model, const hardware::Machine& machine)
    : model_(model), machine_(machine), messages_(model, machine) {}

Analyzer::~Analyzer() = default;

Analyzer::RoleTape& Analyzer::tape(const plan::Plan& plan, int stage) {
  const StageRole role = role_of(plan, stage, model_, machine_);
  std::unique_ptr<RoleTape>& tape = tapes_[role];
  if (!tape) tape = std::make_unique<RoleTape>(model_, machine_, role);
  return *tape;
}

const Analyzer::SplitBackward& Analyzer::split_backward(const plan::Plan& plan, int stage) {
  const plan::Stage& s = plan.stages[stage];
  const auto [known, fresh] =
      splits_.try_emplace({s.group, s.first_layer, s.layers, s.stored_layers, s.split()});
  if (fresh) {
    const hardware::Profile& profile = machine_.profile(s.group);
    const SecondPart part = second_part(plan, stage, model_, profile);
    known->second = {.weights_s = price::task_s(profile, part.work_s, part.tasks),
                     .overhead_s = price::task_s(profile, 0.0, part.tasks),
                     .between_bytes = between_parts_bytes(s, model_)};
  }
  return known->second;
}

/// Bytes of a stage. If backwards are split, a forward's bytes exclude updates.
/// @param numbers  the stage's variables
ChunkBytes Analyzer::chunk_bytes(const plan::Plan& plan, int stage, std::vector<double> numbers) {
  const auto bytes_with = [&](double in_flight) {
    numbers[place_of_in_flight()] = in_flight;
    return tape(plan, stage).at(numbers).bytes;
  };
  ChunkBytes bytes = bytes_with(0.0);
  if (!plan.order.splits_backward()) return bytes;
  // Updates may make the first microbatch's peak, when nothing is kept yet.
  bytes.first_forward = bytes.forward;
  constexpr double many = 1000.0;
  bytes.forward = bytes_with(many).forward - many * bytes.kept;
  bytes.between_parts = split_backward(plan, stage).between_bytes;
  // At the last layer of a first part, the stage's first one, all others have done theirs.
  const double others = 1.0 - 1.0 / std::max(plan.stages[stage].layers, 1);
  bytes.backward += others * (bytes.between_parts - bytes.kept);
  return bytes;
}

/// Sets the memory of the stages on the ranks of `first` to the sum that these hold.
void Analyzer::set_memory_by_passes(const plan::Plan& plan, int first, Numbers numbers,
                                    Prediction& prediction) {
  const std::vector<int> stages = plan::stages_beside(plan, first);
  std::vector<ChunkBytes> chunks;
  std::int64_t host_bytes = 0, disk_bytes = 0;
  for (int stage : stages) {
    chunks.push_back(chunk_bytes(plan, stage, numbers[stage]));
    host_bytes += prediction.stages[stage].host_bytes;
    disk_bytes += prediction.stages[stage].disk_bytes;
  }
  const Peaks peaks = peaks_by_passes(plan, first, chunks);
  for (int stage : stages) {
    StagePrediction& all = prediction.stages[stage];
    all.peak_forward_bytes = std::llround(peaks.forward);
    all.peak_backward_bytes = std::llround(peaks.backward);
    all.host_bytes = host_bytes, all.disk_bytes = disk_bytes;
  }
}

Prediction Analyzer::analyze(const plan::Plan& plan) {
  Prediction prediction{};
  Pipeline pipeline{.stages = {},
                    .messages_s = {},
                    .tied = {},
                    .microbatches = plan.microbatches,
                    .order = plan.order};
  std::vector<std::vector<double>> numbers;  // [stage]
  for (int i = 0; i < plan.num_stages(); ++i) {
    numbers.push_back(numbers_of(plan, i));
    prediction.stages.push_back(tape(plan, i).at(numbers.back()).stage);
    if (plan.order.splits_backward()) {
      const SplitBackward& parts = split_backward(plan, i);
      pipeline.weights_s.push_back(parts.weights_s);
      prediction.stages.back().time.backward_s += parts.overhead_s;
    }
    pipeline.stages.push_back(prediction.stages.back().time);
  }
  for (int first = 0; !plan.order.is_1f1b() && first < plan.pipeline_size(); ++first)
    set_memory_by_passes(plan, first, numbers, prediction);
  messages_.add(plan, pipeline);
  prediction.messages_s = pipeline.messages_s;
  prediction.tied = pipeline.tied;
  prediction.iteration_s = iteration_time(pipeline);
  return prediction;
}

Prediction analyze(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine) {
  return Analyzer(model, machine).analyze(plan);
}

}  // namespace brume::analyzer
