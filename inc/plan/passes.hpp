/// @file The order of a stage's passes, which schedule works through and the analyzer walks
/// through.
#pragma once

#include <algorithm>

#include "plan/plan.hpp"

namespace brume::plan {

/// A stage's forward or backward of one microbatch.
struct Pass {
  bool forward;
  int microbatch;
  int chunk = 0;         ///< virtual stage among the ones on the same devices
  bool weights = false;  ///< a backward's second part, the gradients of weights, where it is split

  bool operator==(const Pass&) const = default;
};

/// The next pass of a stage after some forwards and backwards. Early stages run ahead so that late
/// ones have work; then one forward and one backward alternate (1F1B).
///
///   forward f where f < G and f <= b + p, else backward b
///
/// @param ahead  p of the stage, which in_flight() says
/// @source  Narayanan et al. 2021, "PipeDream-Flush" (p = S - 1 - s)
constexpr Pass next_pass(int forwards, int backwards, int ahead, int microbatches) {
  const bool forward = forwards < microbatches && forwards <= backwards + ahead;
  return {forward, forward ? forwards : backwards};
}

/// The passes that a stage with split backwards has done.
struct Done {
  int forwards = 0, backwards = 0, weights = 0;

  void add(const Pass& pass) { ++(pass.forward ? forwards : pass.weights ? weights : backwards); }
};

/// The next pass of a stage with split backwards: forwards and backwards as above. Other stages
/// wait only for the first part, the gradient of the stream (B). Second parts, the gradients of
/// weights (W), follow so many microbatches later that all stages keep as many as the first one; at
/// the end they follow. From the first stage's begin to the last one's end an iteration of equal
/// stages without messages takes
///
///   G (F + B + W) + max((S - 1) F, (S - 1) (F + B - W) - (r - 1) min(G - S, S - 1) W)
///
/// where G >= S and W is no longer than F. With r = 1, and W no longer than B, the second part is
/// (S - 1) (F + B - W); with r = 2 it is (S - 1) max(F, F + B - 2 W) from G = 2 S - 1 on.
///
/// @param ahead  in_flight()
/// @param most   that of the first stage
/// @source  Qi et al. 2023, "Zero Bubble Pipeline Parallelism", 2.1 and 2.2: with r = 1 ZB-H1, with
///          r = 2 ZB-H2
constexpr Pass next_split_pass(const Done& done, int ahead, int most, int microbatches) {
  if (done.backwards > done.weights + most - ahead || done.backwards == microbatches)
    return {.forward = false, .microbatch = done.weights, .weights = true};
  return next_pass(done.forwards, done.backwards, ahead, microbatches);
}

/// The first block of a model that a backward may pass over: of two parts an embedding has only the
/// second one.
constexpr int first_backward_block(const Plan& plan) { return plan.zero_bubble ? 1 : 0; }

/// Microbatches go through the chunks of a pipeline in rounds: those of a round one after the other
/// through the first chunk, then through the next one. A round has at least as many microbatches as
/// the pipeline has ranks, so that the first one comes back when the last one has left; rounds are
/// as even as they can be, the larger ones first.
struct Rounds {
  int microbatches;
  int pipeline_size;
  int chunks;

  constexpr int passes() const { return microbatches * chunks; }
  constexpr int count() const { return std::max(1, microbatches / pipeline_size); }
  constexpr int longest() const { return (microbatches + count() - 1) / count(); }

  /// Chunk and microbatch of a rank's k-th forward; of its k-th backward, chunks counted from the
  /// last one.
  constexpr Pass forward(int k) const {
    const int least = microbatches / count(), longer = microbatches % count();
    const int of_longer = longer * (least + 1) * chunks;  // forwards
    const bool is_longer = k < of_longer;
    const int size = is_longer ? least + 1 : least, in_kind = is_longer ? k : k - of_longer;
    const int round = in_kind / (size * chunks), within = in_kind % (size * chunks);
    const int first = (is_longer ? 0 : longer * (least + 1)) + round * size;
    return {true, first + within % size, within / size};
  }
};

inline Rounds rounds(const Plan& plan) {
  return {plan.microbatches, plan.pipeline_size(), plan.chunks};
}

/// Passes over chunks that are in flight, beside the next one, on the ranks of stage s among the
/// first ones, while these pass forward:
///
///   p = min(r (S - 1 - s) + (v - 1) m, v G - 1)
///
/// of v chunks, in rounds of up to m microbatches; of one chunk in_flight().
constexpr int passes_in_flight(const Rounds& rounds, int run_ahead, int first) {
  return std::min(
      run_ahead * (rounds.pipeline_size - 1 - first) + (rounds.chunks - 1) * rounds.longest(),
      rounds.passes() - 1);
}

/// The next pass of a rank with several virtual stages: the order above, in rounds. A step of equal
/// virtual stages without messages takes
///
///   (G + (S - 1) / v) (F + B),  where G >= S
///
/// with F, B of all chunks of a rank, whether or not S divides G.
///
/// @param ahead  passes_in_flight()
/// @source  Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters",
///          2.2: r = 2 is the order of Megatron-LM; with r = 1 fewer passes are in flight, and
///          messages are waited for
constexpr Pass next_pass(int forwards, int backwards, int ahead, const Rounds& rounds) {
  const Pass next = next_pass(forwards, backwards, ahead, rounds.passes());
  Pass pass = rounds.forward(next.microbatch);
  pass.forward = next.forward;
  if (!next.forward) pass.chunk = rounds.chunks - 1 - pass.chunk;
  return pass;
}

/// Whether each message has a whole pass to travel: where stages run further ahead than in 1F1B.
/// With two microbatches none can.
constexpr bool messages_run_ahead(int run_ahead, int microbatches) {
  return run_ahead > 1 && microbatches > 2;
}

}  // namespace brume::plan
