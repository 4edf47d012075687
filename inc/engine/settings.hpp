/// @file Settings of an engine, and memory that it lends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "engine/optimizer.hpp"
#include "engine/preference.hpp"
#include "schedule/program.hpp"

namespace brume::engine {

struct Settings {
  std::int64_t steps = 1;  ///< length of the whole training, for the learning rate
  Optimizer optimizer;
  Preference preference{};  ///< constants of losses of pairs
  double loss_scale = 0.0;  ///< a power of two; 0: LossScaling's in fp16, 1 else
  std::uint64_t seed = 1;
  int threads = 1;      ///< cores this rank computes with
  int first_core = -1;  ///< first core on its node; -1: the system chooses
  std::string scratch;  ///< directory for what lies on disk; empty: $TMPDIR, else /tmp
  /// Frozen parameters, by name, whose weights slabs() keeps in fp32, on disk; below fp32 the
  /// others' weights are rounded.
  std::set<std::string> exact = {};
  std::int64_t beside_bytes = 0;  ///< host memory that the rank will take beside its plan
  /// Memory that Engine::lend() gives, by tier; not of the disk.
  schedule::Arenas lent_bytes = {};
  bool overlap = true;  ///< false: transfers run only while nothing computes
  /// One at a time, of all groups; also where BRUME_TRANSPORT says so.
  bool one_collective = false;
  /// Poison buffers at birth, check the guards behind them after each task.
  bool check_memory = false;
  /// Called by channels' threads after each task; may be empty.
  std::function<void()> on_task_done;
};

/// Memory of a rank that something else uses between two steps.
struct LentMemory {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
};

}  // namespace brume::engine
