#include "../../src/app/verify_plan.hpp"

#include <gtest/gtest.h>

#include "refusal.hpp"

namespace brume::app {
namespace {

const model::Config small{.num_layers = 4,
                          .hidden_size = 16,
                          .num_heads = 2,
                          .ffn_size = 64,
                          .seq_len = 8,
                          .vocab_size = 32};

/// Two stages of two ranks, the second one's weights on the host.
plan::Plan small_plan(int microbatches) {
  plan::Plan plan = plan::equal_stages(
      small, 2 * microbatches, 2,
      {.layers = 2, .devices_per_node = 2, .dp = 2, .zero_level = 3, .weight_offload_ratio = 0.5});
  plan.stages[0].weight_offload_ratio = 0.0;
  return plan;
}

TEST(VerifyPlan, AFinePlanPasses) {
  const plan::Plan plan = small_plan(4);
  const auto programs = schedule::compile_all(plan, small);
  check_messages(programs, plan);
  for (int rank = 0; rank < plan.devices(); ++rank)
    EXPECT_EQ(check_rank(plan, small, rank, {}), 4) << rank;
}

TEST(VerifyPlan, ManyMicrobatchesAreCheckedAsFewer) {
  const plan::Plan plan = small_plan(4096);
  const int checked = check_rank(plan, small, 2, {});
  EXPECT_GE(checked, 16);
  EXPECT_LT(checked, 4096);
}

TEST(VerifyPlan, TasksInNoOrderAreAnInputError) {
  schedule::Program program = schedule::compile(small_plan(4), small, 2);
  for (schedule::Task& task : program.tasks) task.waits.clear();
  const std::string what = test::refusal([&] { check_order(program); }, Failure::input);
  EXPECT_NE(what.find("the plan cannot run: rank 2: '"), std::string::npos) << what;
  EXPECT_NE(what.find("touch the same bytes in no order (and "), std::string::npos) << what;
}

TEST(VerifyPlan, AMissingReceiveIsAnInputError) {
  const plan::Plan plan = small_plan(4);
  auto programs = schedule::compile_all(plan, small);
  std::erase_if(programs[2].tasks, [](const schedule::Task& task) {
    return task.operation == schedule::Operation::recv;
  });
  const std::string what = test::refusal([&] { check_messages(programs, plan); }, Failure::input);
  EXPECT_NE(what.find("the plan cannot run: "), std::string::npos) << what;
}

}  // namespace
}  // namespace brume::app
