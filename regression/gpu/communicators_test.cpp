/// @file Communicators of device memory: NCCL on one rank, the staged path on several that share a
/// device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.hpp"
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

/// Loss and norm: doubles in device memory.
TEST(DeviceCommunicators, DoublesAreSummedToo) {
  BRUME_NEEDS_GPU();
  for (const int ranks : {1, 3})
    run_local(ranks, [ranks](Communicator& world) {
      const test::BoundStream stream;
      auto host = world.split(0, world.rank());
      const auto group =
          ranks == 1 ? nccl_communicator(std::move(host)) : staged_communicator(std::move(host));
      const device::Memory memory(2 * sizeof(double));
      std::array<double, 2> values{0.5 + world.rank(), 1e-9};
      device::copy_now(memory.data(), values.data(), memory.bytes());
      group->all_reduce(std::span(reinterpret_cast<double*>(memory.data()), 2), Reduction::sum);
      device::finish();
      device::copy_now(values.data(), memory.data(), memory.bytes());
      EXPECT_EQ(values[0], 0.5 * ranks + ranks * (ranks - 1) / 2);
      EXPECT_DOUBLE_EQ(values[1], ranks * 1e-9);
    });
}

/// Expects parts of unequal lengths, one of them empty, to arrive from every rank.
void expect_exchanged(Communicator& group) {
  const auto length = [](int from, int to) {
    return std::size_t((5 * from + 3 * to + 1) % 7) * 20'000;
  };
  std::vector<float> out, expected;
  std::vector<std::size_t> out_bytes, in_bytes;
  for (int r = 0; r < group.size(); ++r) {
    const std::size_t sent = length(group.rank(), r), received = length(r, group.rank());
    out.insert(out.end(), sent, float(10 * group.rank() + r + 1));
    expected.insert(expected.end(), received, float(10 * r + group.rank() + 1));
    out_bytes.push_back(sent * sizeof(float));
    in_bytes.push_back(received * sizeof(float));
  }
  const test::OnDevice there(out), here(std::vector<float>(expected.size(), -1.0f));
  // Memory is freed after the work of all streams, so no rank's may wait for a rank that frees.
  group.barrier();
  group.all_to_all(std::as_bytes(std::span(there.data(), there.size())), out_bytes,
                   std::as_writable_bytes(std::span(here.data(), here.size())), in_bytes);
  EXPECT_EQ(here.values(), expected);
  group.barrier();
}

TEST(DeviceCommunicators, AllToAllThroughTheHostDeliversPartsOfAnyLength) {
  BRUME_NEEDS_GPU();
  for (const int ranks : {2, 4})
    run_local(ranks, [](Communicator& world) {
      const test::BoundStream stream;
      expect_exchanged(*staged_communicator(world.split(0, world.rank())));
    });
}

TEST(DeviceCommunicators, AllToAllByNcclDeliversPartsOfAnyLength) {
  BRUME_NEEDS_GPU();
  for (int ranks = 1; ranks <= std::min(4, device::cuda_devices()); ++ranks)
    run_local(ranks, [](Communicator& world) {
      device::cuda_check(cudaSetDevice(world.rank()), "choosing a device");
      const test::BoundStream stream;
      const auto group = nccl_communicator(world.split(0, world.rank()));
      for (int i = 0; i < 3; ++i) expect_exchanged(*group);
    });
}

/// What the environment asks for holds, what it cannot have is an error.
TEST(DeviceGroup, FollowsTheDevicesAndTheWish) {
  BRUME_NEEDS_GPU();
  run_local(2, [](Communicator& world) {
    EXPECT_NE(device_transport(world).find("MPI"), std::string::npos);
    EXPECT_EQ(device_group(world.split(0, world.rank()))->size(), 2);
  });
  ::setenv("BRUME_TRANSPORT", "nccl_serial", 1);
  run_local(2, [](Communicator& world) {
    EXPECT_TRUE(one_collective_at_a_time());
    EXPECT_THROW(device_group(world.split(0, world.rank())), Error);
  });
  ::setenv("BRUME_TRANSPORT", "pigeons", 1);
  run_local(1, [](Communicator& world) { EXPECT_THROW(device_transport(world), Error); });
  ::unsetenv("BRUME_TRANSPORT");
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
