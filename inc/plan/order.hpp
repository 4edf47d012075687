/// @file Order of a pipeline's passes. Facts that differ between orders stand here and in
/// `order.cpp`; all other code asks an Order.
#pragma once

#include <algorithm>
#include <compare>
#include <string>
#include <vector>

namespace brume::deck {
struct SearchKeys;
}
namespace brume::model {
struct Config;
}

namespace brume::plan {

struct Plan;

/// Forward or backward of one microbatch through one of a rank's chunks of layers.
struct Pass {
  bool forward;
  int microbatch;
  int chunk = 0;         ///< virtual stage among the ones on the same devices
  bool weights = false;  ///< second part of a split backward: gradients of weights

  bool operator==(const Pass&) const = default;
};

/// Number of passes that a rank has done.
struct Done {
  int forwards = 0, backwards = 0, weights = 0;

  constexpr void add(const Pass& pass) {
    ++(pass.forward ? forwards : pass.weights ? weights : backwards);
  }
};

/// Size of a pipeline. A rank stands for all ranks of a stage.
struct PipelineShape {
  int ranks = 1;  ///< Plan::pipeline_size()
  int microbatches = 1;
};

/// Microbatches pass through the chunks of a pipeline in rounds: first all microbatches of a round
/// through the first chunk, then all of them through the next one. A round has at least as many
/// microbatches as the pipeline has ranks, so that the first one returns when the last one has
/// left. Rounds are as even as possible; larger ones come first.
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

/// Order in which the ranks of a pipeline pass over microbatches. Members are keys of a plan.
struct Order {
  /// Microbatches by which a stage is ahead of the next one: 1 as in 1F1B, or 2, so that messages
  /// between stages hide behind computation.
  int run_ahead = 1;
  /// Stages on the same devices, each a chunk of the layers there (interleaved 1F1B).
  int chunks = 1;
  /// 1: backwards are in two parts, of which gradients of weights fill idle time: ZB-H1, with
  /// run_ahead 2 ZB-H2.
  int zero_bubble = 0;

  auto operator<=>(const Order&) const = default;

  /// True for 1F1B, ahead or not: no chunks, whole backwards.
  constexpr bool is_1f1b() const { return chunks == 1 && zero_bubble == 0; }
  constexpr bool splits_backward() const { return zero_bubble != 0; }
  /// True if each message has a whole pass to travel, because stages are further ahead than in
  /// 1F1B. With two microbatches none can.
  constexpr bool messages_run_ahead(int microbatches) const {
    return run_ahead > 1 && microbatches > 2;
  }
  /// True if sends and receives must follow one timetable of all ranks: messages form a circle, or
  /// stages are more than two forwards ahead.
  constexpr bool needs_timetable(bool messages_run_ahead) const {
    return chunks > 1 || (splits_backward() && messages_run_ahead);
  }

  constexpr Rounds rounds(const PipelineShape& shape) const {
    return {shape.microbatches, shape.ranks, chunks};
  }

  /// Passes in flight on a rank, besides the next one, during a forward:
  ///
  ///   p = min(r (S - 1 - s) + (v - 1) m, v G - 1)
  ///
  /// of v chunks, in rounds of up to m microbatches.
  constexpr int in_flight(const PipelineShape& shape, int rank) const {
    const Rounds of = rounds(shape);
    return std::min(run_ahead * (shape.ranks - 1 - rank) + (chunks - 1) * of.longest(),
                    of.passes() - 1);
  }

  /// Lower bound on the share of a stage's first forward and last backward that delays other
  /// stages. With chunks it is the first chunk. With split backwards it is a forward and the part
  /// by which the first part of a backward is longer than the second; run ahead it is a forward
  /// alone, of which a backward may do another one again.
  constexpr double fill_share() const {
    return splits_backward() ? 1.0 / (2 + run_ahead) : 1.0 / chunks;
  }

  /// Microbatches after which a pipeline is in its steady state, at least.
  int steady_microbatches(const PipelineShape& shape) const;

  /// Description for people, to be appended: "; each stage runs 2 ahead of the next".
  std::string text(const PipelineShape& shape) const;
};

/// Passes of one rank of a pipeline, in its order.
struct RankPasses {
  constexpr RankPasses(const Order& order, const PipelineShape& shape, int rank)
      : order(order),
        shape(shape),
        in_flight(order.in_flight(shape, rank)),
        most_in_flight(order.in_flight(shape, 0)) {}

  Order order;
  PipelineShape shape;
  int in_flight;       ///< Order::in_flight()
  int most_in_flight;  ///< in_flight of the first rank

  /// The pass after some others.
  constexpr Pass next(const Done& done) const {
    if (order.splits_backward()) return next_of_split(done);
    const Rounds rounds = order.rounds(shape);
    const Pass next = next_of(done, rounds.passes());
    if (order.chunks == 1) return next;
    Pass pass = rounds.forward(next.microbatch);
    pass.forward = next.forward;
    if (!next.forward) pass.chunk = order.chunks - 1 - pass.chunk;
    return pass;
  }

  constexpr bool complete(const Done& done) const {
    return (order.splits_backward() ? done.weights : done.backwards) ==
           order.chunks * shape.microbatches;
  }

  /// Calls `visit` with each pass.
  constexpr void each(const auto& visit) const {
    for (Done done; !complete(done);) {
      const Pass pass = next(done);
      visit(pass);
      done.add(pass);
    }
  }

  /// Calls `visit` with each forward, in an order without backwards.
  constexpr void each_forward(const auto& visit) const {
    const Rounds rounds = order.rounds(shape);
    for (int k = 0; k < rounds.passes(); ++k) visit(rounds.forward(k));
  }

  /// Most earlier microbatches in flight in a chunk.
  int in_flight_of_chunk(int chunk) const;

 private:
  /// 1F1B. Early stages run ahead so that late ones have work; then one forward and one backward
  /// alternate:
  ///
  ///   forward f where f < G and f <= b + p, else backward b
  ///
  /// Passes of a rank with chunks follow its rounds. A step of equal virtual stages without
  /// messages takes
  ///
  ///   (G + (S - 1) / v) (F + B),  where G >= S
  ///
  /// with F, B of all chunks of a rank, whether or not S divides G.
  ///
  /// @source  Narayanan et al. 2021, "PipeDream-Flush" (p = S - 1 - s)
  /// @source  Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
  ///          Clusters", 2.2: r = 2 is the order of Megatron-LM; with r = 1 fewer passes are in
  ///          flight, and messages are waited for
  constexpr Pass next_of(const Done& done, int passes) const {
    const bool forward = done.forwards < passes && done.forwards <= done.backwards + in_flight;
    return {forward, forward ? done.forwards : done.backwards};
  }

  /// Zero bubble: forwards and backwards as in 1F1B. Other stages wait only for the first part, the
  /// gradient of the stream (B). Second parts, the gradients of weights (W), follow so many
  /// microbatches later that all stages keep as many as the first one; at the end they follow. From
  /// the first stage's begin to the last one's end an iteration of equal stages without messages
  /// takes
  ///
  ///   G (F + B + W) + max((S - 1) F, (S - 1) (F + B - W) - (r - 1) min(G - S, S - 1) W)
  ///
  /// where G >= S and W is no longer than F. With r = 1, and W no longer than B, the second part is
  /// (S - 1) (F + B - W); with r = 2 it is (S - 1) max(F, F + B - 2 W) from G = 2 S - 1 on.
  ///
  /// @source  Qi et al. 2023, "Zero Bubble Pipeline Parallelism", 2.1 and 2.2: with r = 1 ZB-H1,
  ///          with r = 2 ZB-H2
  constexpr Pass next_of_split(const Done& done) const {
    if (done.backwards > done.weights + most_in_flight - in_flight ||
        done.backwards == shape.microbatches)
      return {.forward = false, .microbatch = done.weights, .weights = true};
    return next_of(done, shape.microbatches);
  }
};

/// Checks that a plan's stages and the model can work in its order.
/// @throws Error(input) naming the key, the expected and the found value
void check_order(const Plan& plan, const model::Config& model);

/// Orders that a search may try: 1F1B for each run-ahead that makes a difference, because some
/// stage but the last has more than one other microbatch in flight.
std::vector<Order> orders_of_1f1b(const PipelineShape& shape, const deck::SearchKeys& search);

/// Other orders that a search may try. They fill a pipeline if it has at least as many microbatches
/// as ranks.
std::vector<Order> other_orders(const PipelineShape& shape, int num_layers,
                                const deck::SearchKeys& search);

}  // namespace brume::plan
