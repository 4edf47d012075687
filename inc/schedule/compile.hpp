/// @file Plan to Program: what a rank does in an iteration, in 1F1B order.
#pragma once

#include <vector>

#include "base/deadline.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/pack.hpp"
#include "schedule/program.hpp"

namespace brume::schedule {

enum class Mode {
  train,
  evaluate,
  generate  ///< forwards of a model that Config::generates(), to logits
};

struct Options {
  Mode mode = Mode::train;
  bool overlap = true;          ///< false: transfers run only while nothing computes
  bool one_collective = false;  ///< collectives of all groups run one after the other
  bool tight = true;            ///< false: buffers are placed at once, in a few per cent more bytes
  Arenas enough = {};           ///< tight placing ends where arenas are this small
  Deadline deadline = {};       ///< placing many buffers tightly takes long
  int threads = 1;              ///< threads of compile_all
  Packings* packings = nullptr;  ///< packings of other ranks, which may be alike
};

/// Compiles, places and links the Program of one rank. Pure: any process can make any rank's.
///
/// Tasks are made in an order in which one thread could run them; what a transfer reads is emitted
/// one slot late and what it writes one slot early, so that buffers live long enough to overlap.
/// Waits follow from the bytes that tasks touch.
///
/// @throws OutOfTime when the deadline passes
Program compile(const plan::Plan& plan, const model::Config& model, int rank,
                const Options& options = {});

/// The arenas of that Program.
Arenas arena_bytes(const plan::Plan& plan, const model::Config& model, int rank,
                   const Options& options = {});

/// The Programs of all ranks.
std::vector<Program> compile_all(const plan::Plan& plan, const model::Config& model,
                                 const Options& options = {});

}  // namespace brume::schedule
