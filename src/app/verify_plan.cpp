#include "verify_plan.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "schedule/verify.hpp"

namespace brume::app {
namespace {

/// They take less than half a second: 32 layers on one stage 0.03 s with 4000, 2.2 s with 31000.
constexpr std::int64_t most_tasks = 12000;

void refuse(const std::vector<std::string>& findings) {
  if (findings.empty()) return;
  throw Error(Failure::input,
              "the plan cannot run: {}{}. Leave --plan out to have one searched, and report this "
              "plan as a fault of Brume",
              findings.front(),
              findings.size() > 1 ? fmt::format(" (and {} more)", findings.size() - 1) : "");
}

}  // namespace

void check_order(const schedule::Program& program) { refuse(schedule::verify(program)); }

void check_messages(std::span<const schedule::Program> programs, const plan::Plan& plan) {
  refuse(schedule::verify(programs, plan));
}

int check_rank(const plan::Plan& plan, const model::Config& model, int rank,
               const schedule::Options& options) {
  const schedule::Program whole = schedule::compile(plan, model, rank, options);
  const std::int64_t tasks = std::ssize(whole.tasks);
  if (tasks <= most_tasks) {
    check_order(whole);
    return plan.microbatches;
  }
  plan::Plan shorter = plan;
  shorter.microbatches = int(std::max<std::int64_t>(1, plan.microbatches * most_tasks / tasks));
  shorter.global_batch = plan.global_batch / plan.microbatches * shorter.microbatches;
  check_order(schedule::compile(shorter, model, rank, options));
  return shorter.microbatches;
}

}  // namespace brume::app
