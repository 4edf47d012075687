/// @file Device memory over a communicator of host memory.
#include <algorithm>

#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "host_half.hpp"

namespace brume::comm {
namespace {

/// The calling thread's stream is waited for twice a call: before and after the host's work.
class StagedCommunicator final : public HostHalf {
 public:
  using HostHalf::HostHalf;

  void all_reduce(Values values) override {
    in_place(values, [&](Values here) { host_->all_reduce(here); });
  }
  void all_reduce(std::span<double> values, Reduction reduction) override {
    staged<double>(values, values,
                   [&](std::span<double> here) { host_->all_reduce(here, reduction); });
  }
  void reduce_scatter(Values values) override {
    in_place(values, [&](Values here) { host_->reduce_scatter(here); });
  }
  void all_gather(Values values) override {
    in_place(values, [&](Values here) { host_->all_gather(here); });
  }
  void all_to_all(std::span<const std::byte> out, std::span<const std::size_t> out_bytes,
                  std::span<std::byte> in, std::span<const std::size_t> in_bytes) override {
    std::byte* const there = staging(out.size() + in.size());
    std::byte* const back = there + out.size();
    if (!out.empty()) device::copy(there, out.data(), std::int64_t(out.size()));
    device::finish();
    host_->all_to_all({there, out.size()}, out_bytes, {back, in.size()}, in_bytes);
    if (!in.empty()) device::copy(in.data(), back, std::int64_t(in.size()));
    device::finish();  // the next call may overwrite the staging memory
  }
  void send(ConstValues values, int peer) override {
    std::visit(
        [&]<typename T>(std::span<const T> out) {
          staged<T>(out, {}, [&](std::span<const T> here) { host_->send(here, peer); });
        },
        values);
  }
  void recv(Values values, int peer) override {
    std::visit(
        [&]<typename T>(std::span<T> in) {
          staged<T>({}, in, [&](std::span<T> here) { host_->recv(here, peer); });
        },
        values);
  }
  std::unique_ptr<Communicator> split(int colour, int key) override {
    auto host = host_->split(colour, key);
    return host ? staged_communicator(std::move(host)) : nullptr;
  }

 private:
  std::byte* staging(std::size_t size) {
    const auto bytes = std::int64_t(size);
    if (bytes > staging_.bytes()) staging_ = device::Memory(bytes, device::Tier::host);
    return staging_.data();
  }

  template <typename Body>
  void in_place(Values values, Body&& body) {
    std::visit([&]<typename T>(std::span<T> all) { staged<T>(all, all, body); }, values);
  }

  template <typename T, typename Body>
  void staged(std::span<const T> out, std::span<T> in, Body&& body) {
    const std::size_t count = std::max(out.size(), in.size());
    const auto bytes = std::int64_t(count * sizeof(T));
    std::byte* const here = staging(count * sizeof(T));
    if (!out.empty()) device::copy(here, out.data(), bytes);
    device::finish();
    body(std::span(reinterpret_cast<T*>(here), count));
    if (in.empty()) return;
    device::copy(in.data(), here, bytes);
    device::finish();  // the next call may overwrite the staging memory
  }

  device::Memory staging_;  ///< as large as the largest transfer so far
};

}  // namespace

std::unique_ptr<Communicator> staged_communicator(std::unique_ptr<Communicator> host) {
  return std::make_unique<StagedCommunicator>(std::move(host));
}

}  // namespace brume::comm
