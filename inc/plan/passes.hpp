/// @file The order of a stage's passes, which schedule works through and the analyzer walks
/// through.
#pragma once

namespace brume::plan {

/// A stage's forward or backward of one microbatch.
struct Pass {
  bool forward;
  int microbatch;

  bool operator==(const Pass&) const = default;
};

/// What a stage does after so many forwards and backwards. Early stages run ahead so that late ones
/// have work; then one forward and one backward in turn (1F1B).
///
///   forward f where f < G and f <= b + p, else backward b
///
/// @param ahead  p of the stage, which in_flight() says
/// @source  Narayanan et al. 2021, "PipeDream-Flush" (p = S - 1 - s)
constexpr Pass next_pass(int forwards, int backwards, int ahead, int microbatches) {
  const bool forward = forwards < microbatches && forwards <= backwards + ahead;
  return {forward, forward ? forwards : backwards};
}

/// Whether each message has a whole pass to travel: where stages run further ahead than in 1F1B.
/// With two microbatches none can.
constexpr bool messages_run_ahead(int run_ahead, int microbatches) {
  return run_ahead > 1 && microbatches > 2;
}

}  // namespace brume::plan
