#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "order.hpp"

namespace brume::schedule {
namespace {

/// When passes end.
class Timetable {
 public:
  Timetable(const plan::Plan& plan, const Options& options);

  /// When a pass ends; a backward in two parts has the end of its first one.
  int end(bool forward, int stage, int microbatch) const {
    return (forward ? forwards_ : backwards_)[at(stage, microbatch)];
  }

 private:
  std::size_t at(int stage, int microbatch) const {
    return std::size_t(stage) * std::size_t(plan_.microbatches) + std::size_t(microbatch);
  }
  std::optional<int> input(const plan::Pass& pass, int stage) const;

  static constexpr int not_yet = -1;
  const plan::Plan& plan_;
  std::vector<int> forwards_, backwards_;
};

/// When what a pass needs is there, once that is known.
std::optional<int> Timetable::input(const plan::Pass& pass, int stage) const {
  const bool from_before = pass.forward && stage > 0;
  const bool from_after = !pass.forward && stage + 1 < plan_.num_stages();
  if (!from_before && !from_after) return 0;
  const int when = end(pass.forward, from_before ? stage - 1 : stage + 1, pass.microbatch);
  return when == not_yet ? std::nullopt : std::optional(when);
}

Timetable::Timetable(const plan::Plan& plan, const Options& options)
    : plan_(plan),
      forwards_(at(plan.num_stages(), 0), not_yet),
      backwards_(at(plan.num_stages(), 0), not_yet) {
  struct Rank {
    std::vector<plan::Pass> passes;
    std::size_t done = 0;
    int now = 0;
  };
  std::vector<Rank> ranks;
  for (int first = 0; first < plan.pipeline_size(); ++first)
    ranks.push_back({.passes = passes(plan, first, options)});
  for (bool moves = true; std::exchange(moves, false);)
    for (int first = 0; first < plan.pipeline_size(); ++first) {
      Rank& rank = ranks[first];
      for (; rank.done < rank.passes.size(); ++rank.done, moves = true) {
        const plan::Pass& pass = rank.passes[rank.done];
        if (pass.weights) {
          ++rank.now;
          continue;
        }
        const int stage = first + pass.chunk * plan.pipeline_size();
        const std::optional<int> there = input(pass, stage);
        if (!there) break;
        rank.now =
            std::max(rank.now, *there) + (pass.forward || plan.order.splits_backward() ? 1 : 2);
        (pass.forward ? forwards_ : backwards_)[at(stage, pass.microbatch)] = rank.now;
      }
    }
  for (const Rank& rank : ranks)
    require(rank.done == rank.passes.size(), Failure::bug, "the order of passes deadlocks");
}

/// The turn of messages between two neighbours in the circle, of which the edge leads to the next.
int turn(int edge, int pipeline_size) {
  return pipeline_size % 2 == 1 && edge + 1 == pipeline_size ? 2 : edge % 2;
}

}  // namespace

std::vector<std::vector<Exchange>> exchanges(const plan::Plan& plan, int first,
                                             const Options& options) {
  const Timetable times(plan, options);
  const int size = plan.pipeline_size();
  const std::vector<plan::Pass> own = passes(plan, first, options);
  std::vector<int> ends;
  std::vector<std::tuple<int, int, Exchange>> all;  // by moment and turn
  const auto edge = [&](int from, int to) { return std::min(from, to) % size; };
  const auto add = [&](bool forward, int from, int to, int microbatch, bool sends) {
    const auto [begin, end] = plan::block_range(plan, sends ? from : to);
    all.push_back({times.end(forward, from, microbatch),
                   turn(edge(from, to), size),
                   {{forward ? Slot::Kind::forward : Slot::Kind::backward, microbatch,
                     forward == sends ? end : begin},
                    sends}});
  };
  for (const plan::Pass& pass : own) {
    if (pass.weights) continue;
    const int stage = first + pass.chunk * size, next = pass.forward ? stage + 1 : stage - 1,
              before = pass.forward ? stage - 1 : stage + 1;
    const auto is_there = [&](int other) { return other >= 0 && other < plan.num_stages(); };
    ends.push_back(times.end(pass.forward, stage, pass.microbatch));
    if (is_there(next)) add(pass.forward, stage, next, pass.microbatch, true);
    if (is_there(before)) add(pass.forward, before, stage, pass.microbatch, false);
  }
  std::ranges::stable_sort(all, {}, [](const auto& exchange) {
    return std::pair(std::get<0>(exchange), std::get<1>(exchange));
  });
  std::vector<std::vector<Exchange>> after(ends.size() + 1);
  for (const auto& [moment, turn, exchange] : all)
    after[std::ranges::upper_bound(ends, moment) - ends.begin()].push_back(exchange);
  return after;
}

}  // namespace brume::schedule
