/// @file The verb `run`: deck -> profile -> plan -> engine -> results, on one page.
#include <array>
#include <chrono>
#include <limits>
#include <memory>

#include "all_ranks.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "prepare.hpp"
#include "signals.hpp"
#include "training.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

/// Gives the plan's ranks to ranks on nodes of their groups. Collective.
/// @return those that train, in the plan's order; nothing on a rank that the plan leaves out
std::unique_ptr<comm::Communicator> join_crew(const Prepared& prepared, comm::Communicator& job) {
  int mine = -1;
  for (int rank = 0; rank < prepared.plan.devices(); ++rank)
    if (plan::job_rank(prepared.plan, prepared.cluster, rank) == job.rank()) mine = rank;
  std::unique_ptr<comm::Communicator> crew = job.split(mine < 0 ? -1 : 0, mine);
  if (job.rank() == 0 && prepared.plan.devices() < job.size())
    log::info("{} of {} ranks train, in the order of the pipeline; the others wait for their end",
              prepared.plan.devices(), job.size());
  if (crew) log::start(crew->rank(), crew->size(), log::verbose());
  return crew;
}

/// Ranks that a plan leaves out wait here, without taking a core from those that train.
/// @return the highest exit code of any rank
int leave_together(comm::Communicator& job, int code) {
  std::array<double, 1> highest{double(code)};
  job.all_reduce(highest, comm::Reduction::max);
  return int(highest[0]);
}

}  // namespace

int run(const RunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Signals signals;
  return on_all_ranks([&](comm::Session& session, comm::Communicator& job) {
    const Prepared prepared = prepare(options, session, job);
    const std::unique_ptr<comm::Communicator> crew = join_crew(prepared, job);
    if (!crew) {
      signals.ignore();  // those that train answer them, and end this rank with them
      session.begin_phase("waiting for those that train", std::numeric_limits<double>::infinity());
      return leave_together(job, 0);
    }
    try {
      return leave_together(job, train(options, prepared, session, *crew, signals, start));
    } catch (const comm::AgreedError& error) {
      leave_together(job, int(error.failure()));
      throw;
    }
  });
}

}  // namespace brume::app
