/// @file Communicators of device memory: NCCL on one rank, the staged path on several that share a
/// device.
#include <gtest/gtest.h>

#include "comm/communicator.hpp"
#include "comm/cuda.hpp"
#include "comm/device_group.hpp"
#include "gpu.hpp"

namespace brume::comm {
namespace {

TEST(DeviceCommunicators, SeveralRanksOnOneDeviceSumThroughTheHost) {
  BRUME_NEEDS_GPU();
  run_local(4, [](Communicator& world) {
    const test::BoundStream stream;
    const auto group = staged_communicator(world.split(0, world.rank()));
    const test::OnDevice values(std::vector<float>(1000, float(world.rank() + 1)));
    group->all_reduce(std::span(values.data(), values.size()));
    EXPECT_EQ(values.values(), std::vector<float>(1000, 10.0f));

    const int peer = world.rank() ^ 1;
    const std::span<float> message(values.data(), 10);
    if (world.rank() < peer)
      group->send(message, peer);
    else
      group->recv(message, peer);
    EXPECT_EQ(values.values()[0], 10.0f);
  });
}

TEST(DeviceCommunicators, NcclRefusesRanksThatShareADevice) {
  BRUME_NEEDS_GPU();
  run_local(2, [](Communicator& world) {
    EXPECT_FALSE(devices_differ(world));
    EXPECT_ANY_THROW(nccl_communicator(world.split(0, world.rank())));
  });
}

/// One rank: sums and gathers keep their values, and two groups live beside each other.
TEST(DeviceCommunicators, NcclRunsInTheStreamOfItsThread) {
  BRUME_NEEDS_GPU();
  run_local(1, [](Communicator& world) {
    const test::BoundStream stream;
    const auto first = nccl_communicator(world.split(0, 0));
    const auto second = first->split(0, 0);
    const std::vector<float> given{1.0f, 2.0f, 3.0f};
    const test::OnDevice values(given);
    first->all_reduce(std::span(values.data(), values.size()));
    second->all_gather(std::span(values.data(), values.size()));
    second->reduce_scatter(std::span(values.data(), values.size()));
    EXPECT_EQ(values.values(), given);
  });
}

}  // namespace
}  // namespace brume::comm
