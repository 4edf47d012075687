/// @file Communicators of a rank, and the ranks that its tasks communicate with.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "plan/plan.hpp"
#include "schedule/program.hpp"

namespace brume::engine {

/// Communicators of a rank, one per group and channel, so that no two channels ever meet in one.
class Groups {
 public:
  /// Collective over `world`.
  Groups(const plan::Plan& plan, const schedule::Program& program, comm::Communicator& world);
  comm::Communicator& of(const schedule::Task& task) const;

 private:
  std::map<model::AxisSet, std::unique_ptr<comm::Communicator>> groups_;
  std::unique_ptr<comm::Communicator> p2p_forward_, p2p_backward_;
};

/// The other ranks without which a task that communicates does not end; none for other tasks.
std::vector<int> partners(const plan::Plan& plan, int rank, const schedule::Task& task);

/// Whether ranks send each other parts of what they have.
bool sends_parts(schedule::Operation operation);

}  // namespace brume::engine
