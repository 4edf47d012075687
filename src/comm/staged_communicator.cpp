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
  template <typename Body>
  void in_place(Values values, Body&& body) {
    std::visit([&]<typename T>(std::span<T> all) { staged<T>(all, all, body); }, values);
  }

  template <typename T, typename Body>
  void staged(std::span<const T> out, std::span<T> in, Body&& body) {
    const std::size_t count = std::max(out.size(), in.size());
    const auto bytes = std::int64_t(count * sizeof(T));
    if (bytes > staging_.bytes()) staging_ = device::Memory(bytes, device::Tier::host);
    if (!out.empty()) device::copy(staging_.data(), out.data(), bytes);
    device::finish();
    body(std::span(reinterpret_cast<T*>(staging_.data()), count));
    if (in.empty()) return;
    device::copy(in.data(), staging_.data(), bytes);
    device::finish();  // the next call may overwrite the staging memory
  }

  device::Memory staging_;  ///< as large as the largest transfer so far
};

}  // namespace

std::unique_ptr<Communicator> staged_communicator(std::unique_ptr<Communicator> host) {
  return std::make_unique<StagedCommunicator>(std::move(host));
}

}  // namespace brume::comm
