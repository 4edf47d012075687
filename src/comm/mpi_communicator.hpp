/// @file The communicator of MPI processes.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "comm/communicator.hpp"
#include "comm/session.hpp"

namespace brume::comm {

/// Values of one message; what is longer goes in pieces. MPI counts values in int, and the system
/// copies at most 2 GiB between processes in a call: these are 1 GiB of fp32.
inline constexpr std::size_t longest_message = std::size_t{1} << 28;

/// Owns an MPI communicator.
class MpiGroup {
 public:
  explicit MpiGroup(MPI_Comm group) : group_(group) {}
  ~MpiGroup();
  MpiGroup(MpiGroup&& other) noexcept : group_(std::exchange(other.group_, MPI_COMM_NULL)) {}
  MpiGroup& operator=(MpiGroup&&) = delete;

  MPI_Comm get() const { return group_; }

 private:
  MPI_Comm group_;
};

/// A communicator of MPI processes. It makes non-blocking MPI calls only and polls each until it is
/// done.
class MpiCommunicator final : public Communicator {
 public:
  /// @param longest  values that one MPI call carries; what is longer goes in pieces
  explicit MpiCommunicator(MpiGroup group, std::size_t longest = longest_message);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return Session::library_version(); }

  void barrier() override;
  void all_reduce(Values values) override;
  void all_reduce(std::span<double> values, Reduction reduction) override;
  void reduce_scatter(Values values) override;
  void all_gather(Values values) override;
  void all_to_all(std::span<const std::byte> out, std::span<const std::size_t> out_bytes,
                  std::span<std::byte> in, std::span<const std::size_t> in_bytes) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  std::vector<std::string> gather(const std::string& mine) override;
  std::vector<std::string> gather_at(const std::string& mine, int root) override;
  void send(ConstValues values, int peer) override;
  void recv(Values values, int peer) override;
  std::unique_ptr<Communicator> split(int colour, int key) override;
  void abort(int exit_code) override;

 private:
  std::vector<std::uint64_t> gather_lengths(const std::string& mine);  ///< [bytes], by rank
  template <typename T>
  void gather_parts(std::span<T> values);
  template <typename T>
  void send_values(std::span<const T> values, int peer);
  template <typename T>
  void receive_values(std::span<T> values, int peer);

  MpiGroup group_;
  std::size_t longest_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace brume::comm
