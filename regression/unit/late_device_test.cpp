/// @file The engine over streams that work late: on a device made of threads, which takes the place
/// of the build's own (device/device.hpp, comm/device_group.hpp). Its kernels are those of the
/// host.
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "kernels_main.hpp"
#include "late_stream.hpp"
#include "stream_cases.hpp"

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

/// At once where the thread's channel has no stream.
void put(const std::function<void()>& work) {
  test::LateStream::current ? test::LateStream::current->put(work) : work();
}

std::mutex profiler;
std::set<std::string> names;  ///< that it was told

}  // namespace

void set_environment(bool) {}
void use_device(int, int) {}
Description describe_device() { return {.name = "threads"}; }
std::unique_ptr<Stream> make_stream() { return std::make_unique<ThreadStream>(); }

void copy(void* to, const void* from, std::int64_t bytes) {
  put([=] { std::memcpy(to, from, std::size_t(bytes)); });
}
void fill(void* to, std::byte value, std::int64_t bytes) {
  put([=] { std::memset(to, std::to_integer<int>(value), std::size_t(bytes)); });
}
bool is_profiled() { return true; }
void Range::begin(const std::string& name) {
  const std::lock_guard lock(profiler);
  names.insert(name);
}
void Range::end() {}
void finish() {
  if (test::LateStream::current) test::LateStream::current->synchronize();
}
void copy_now(void* to, const void* from, std::int64_t bytes) {
  std::memcpy(to, from, std::size_t(bytes));
}

}  // namespace brume::device

namespace brume::comm {

std::unique_ptr<Communicator> device_group(std::unique_ptr<Communicator> host, int, Carries) {
  return staged_communicator(std::move(host));
}
bool one_collective_at_a_time() { return false; }
std::string device_transport(Communicator&) { return "threads"; }

}  // namespace brume::comm

namespace brume::engine {
namespace {

TEST(Profilers, SeeTasksByTheNamesOfTheTrace) {
  std::mt19937 random(5);
  const model::Config model = test::random_model(random);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(test::one_rank_plan(model, 2), model, test::contract_settings(2), world);
    engine.step(data);
    engine.step(data);
    for (const schedule::Task& task : engine.program().tasks)
      EXPECT_TRUE(device::names.contains(schedule::label(task))) << schedule::label(task);
  });
}

}  // namespace
}  // namespace brume::engine
