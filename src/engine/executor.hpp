/// @file Runs a Program: a channel for each of its channels, an event for each wait.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <vector>

#include "compute.hpp"
#include "device/channels.hpp"
#include "groups.hpp"

namespace brume::engine {

/// Which tasks of a Program do their work; the others only keep their place in the order.
enum class Parts { train, update, both };

/// Executes Programs of one rank on the rank's channels. Adds no ordering of its own.
class Executor {
 public:
  Executor(const Arena& arena, const Compute& compute, const Groups& groups,
           const Settings& settings, model::Precision precision,
           std::function<void(std::exception_ptr)> on_failure);

  /// Makes each kind of transfer of `program` once, alone, with whatever is in its memory: a
  /// library connects ranks when they first need it, and may wait for all of a device meanwhile.
  void connect(const schedule::Program& program);

  /// Runs `program` to its end; `times` gets an entry per task. @throws what a task threw
  void run(const schedule::Program& program, Parts parts, const StepScalars& step,
           const GuardCheck* guards, std::vector<schedule::Span>& times);

  /// The tasks that run now; any thread.
  std::vector<schedule::Task> in_flight() const;

 private:
  void execute(const schedule::Program& program, int task, const StepScalars& step);
  void communicate(const schedule::Program& program, const schedule::Task& task,
                   bool only_connects) const;
  model::Precision format(const schedule::Task& task, const schedule::Buffer& buffer) const;
  void copy(const schedule::Program& program, const schedule::Task& task) const;
  void read_or_write(const schedule::Program& program, const schedule::Task& task) const;

  const Arena& arena_;
  const Compute& compute_;
  const Groups& groups_;
  model::Precision precision_;
  std::function<void()> on_task_done_;
  // What runs, for in_flight().
  std::atomic<const schedule::Program*> program_ = nullptr;
  std::atomic<const schedule::Span*> times_ = nullptr;
  device::Channels channels_;  ///< last: its threads use the rest
};

}  // namespace brume::engine
