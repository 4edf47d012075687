/// @file The engine over streams that work late: on a device made of threads, which takes the place
/// of the build's own (device/device.hpp, comm/device_group.hpp). Its kernels are those of the
/// host.
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <cstring>
#include <string_view>

#include "base/error.hpp"
#include "comm/device_group.hpp"
#include "contract.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"
#include "late_stream.hpp"

namespace brume::device {
namespace {

/// Late but for the channel that computes: kernels of the host do not wait for a stream.
class ThreadStream final : public test::LateStream {
 public:
  void bind() override {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    at_once_ = std::string_view(name.data()) == "compute";
    LateStream::bind();
  }
};

test::LateStream& bound() {
  require(test::LateStream::current != nullptr, Failure::bug, "this thread has no stream");
  return *test::LateStream::current;
}

}  // namespace

void use_device(int) {}
Description describe_device() { return {.name = "threads"}; }
std::unique_ptr<Stream> make_stream() { return std::make_unique<ThreadStream>(); }

void copy(void* to, const void* from, std::int64_t bytes) {
  bound().put([=] { std::memcpy(to, from, std::size_t(bytes)); });
}
void fill(void* to, std::byte value, std::int64_t bytes) {
  bound().put([=] { std::memset(to, std::to_integer<int>(value), std::size_t(bytes)); });
}
void finish() { bound().synchronize(); }
void copy_now(void* to, const void* from, std::int64_t bytes) {
  std::memcpy(to, from, std::size_t(bytes));
}

}  // namespace brume::device

namespace brume::comm {

std::unique_ptr<Communicator> device_group(std::unique_ptr<Communicator> host) {
  return staged_communicator(std::move(host));
}
bool one_collective_at_a_time() { return false; }
std::string device_transport(Communicator&) { return "threads"; }

}  // namespace brume::comm

namespace brume::engine {
namespace {

test::Trained train(const plan::Plan& plan, const model::Config& model, const Settings& settings,
                    const data::Sampler& data) {
  test::Trained result;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    const test::Trained mine = test::train(plan, model, settings, world, data);
    if (world.rank() == 0) result = mine;
  });
  return result;
}

class LateDevice : public ::testing::TestWithParam<int> {};

/// Whatever streams do late: each plan with its knobs gives what one rank gives, and no guard or
/// poison is seen, with transfers beside computation and without.
TEST_P(LateDevice, RandomPlanTrainsLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 7919 + 13);
  const model::Config model = test::random_model(random);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  const plan::Plan plan = GetParam() % 2 == 0 ? test::random_plan(random, model, 4)
                                              : test::mixed_plan(random, model, 6);
  Settings settings = test::contract_settings(4);
  const test::Trained one =
      train(test::one_rank_plan(model, plan.global_batch), model, settings, data);
  settings.check_memory = GetParam() % 4 < 2;
  const test::Trained all = train(plan, model, settings, data);
  EXPECT_LE(test::largest_difference(all.losses, one.losses), 1e-5) << plan::text(plan);
  EXPECT_LE(test::largest_difference(all.norms, one.norms), 1e-4) << plan::text(plan);
  settings.overlap = false;
  settings.one_collective = true;
  const test::Trained serial = train(plan, model, settings, data);
  EXPECT_EQ(serial.losses, all.losses);
  EXPECT_EQ(serial.norms, all.norms);
}

INSTANTIATE_TEST_SUITE_P(Engine, LateDevice, ::testing::Range(0, test::trials(6)));

/// Times are those of the streams: a task begins when what it waits for and what stands before it
/// on its channel has ended, and the iteration ends with the last one.
TEST(LateTimes, TasksRunWhenTheirStreamsDo) {
  std::mt19937 random(3);
  model::Config model = test::random_model(random);
  model.num_layers = 4;
  model.num_heads = 2;
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  plan::Plan plan = test::plan_of(random, model, {{1, 2, 1}, {1, 2, 1}});
  for (plan::Stage& stage : plan.stages)
    stage.weight_offload_ratio = stage.optim_offload_ratio = stage.act_offload_ratio = 0.5;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Engine engine(plan, model, test::contract_settings(3), world);
    engine.step(data);
    const StepMetrics metrics = engine.step(data);
    const std::vector<schedule::Span>& times = engine.last_times();
    const std::vector<schedule::Task>& tasks = engine.program().tasks;
    std::array<double, schedule::num_channels> busy_until_s{};
    double last_s = 0.0;
    for (std::size_t id = 0; id < tasks.size(); ++id) {
      const schedule::Span& time = times[id];
      double& before_s = busy_until_s[std::size_t(tasks[id].channel)];
      EXPECT_GE(time.start_s, before_s) << schedule::label(tasks[id]);
      EXPECT_GE(time.end_s, time.start_s) << schedule::label(tasks[id]);
      for (int other : tasks[id].waits)
        EXPECT_GE(time.start_s, times[std::size_t(other)].end_s) << schedule::label(tasks[id]);
      before_s = time.end_s;
      last_s = std::max(last_s, time.end_s);
    }
    EXPECT_EQ(metrics.iteration_s, last_s);
    EXPECT_GT(metrics.busy_s[std::size_t(schedule::Channel::h2d)], 0.0);
  });
}

}  // namespace
}  // namespace brume::engine

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const brume::kernels::Runtime runtime(1);
  return RUN_ALL_TESTS();
}
