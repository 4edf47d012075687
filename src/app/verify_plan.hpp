/// @file Whether the Programs of a plan that a person wrote can run as they are.
#pragma once

#include <span>

#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/compile.hpp"
#include "schedule/program.hpp"

namespace brume::app {

/// Refuses a Program of which two tasks may touch the same bytes in any order.
/// @throws Error(input) with the first finding
void check_order(const schedule::Program& program);

/// Refuses Programs, those of all ranks, that do not match or would wait for each other for ever.
/// @throws Error(input) with the first finding
void check_messages(std::span<const schedule::Program> programs, const plan::Plan& plan);

/// Checks the order of one rank's Program. Its time grows with the square of the tasks, so a
/// Program of many is checked with fewer microbatches, which are alike.
///
/// @return  the microbatches with which it was checked
/// @throws Error(input) with the first finding
int check_rank(const plan::Plan& plan, const model::Config& model, int rank,
               const schedule::Options& options);

}  // namespace brume::app
