#include "comm/mpi_communicator.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/error.hpp"
#include "comm/mpi_call.hpp"
#include "comm/mpi_reduce.hpp"
#include "comm/parts.hpp"

namespace brume::comm {

MpiGroup::~MpiGroup() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (group_ != MPI_COMM_NULL && !finalized) MPI_Comm_free(&group_);
}

namespace {

constexpr int all_to_all_tag = 2;  // mpi_reduce.cpp has 1, messages have 0

/// Calls transfer(piece) for consecutive pieces of at most `longest` values; at least once.
template <typename T, typename Transfer>
void in_pieces(std::span<T> values, std::size_t longest, const Transfer& transfer) {
  for (; values.size() > longest; values = values.subspan(longest)) transfer(values.first(longest));
  transfer(values);
}

}  // namespace

MpiCommunicator::MpiCommunicator(MpiGroup group, std::size_t longest)
    : group_(std::move(group)), longest_(longest) {
  check_mpi(MPI_Comm_rank(group_.get(), &rank_));
  check_mpi(MPI_Comm_size(group_.get(), &size_));
}

void MpiCommunicator::barrier() {
  MPI_Request request;
  check_mpi(MPI_Ibarrier(group_.get(), &request));
  wait(request);
}

void MpiCommunicator::all_reduce(Values values) {
  std::visit([&](auto all) { reduce_to_all(group_.get(), all, Reduction::sum, longest_); }, values);
}

void MpiCommunicator::all_reduce(std::span<double> values, Reduction reduction) {
  reduce_to_all(group_.get(), values, reduction, longest_);
}

void MpiCommunicator::reduce_scatter(Values values) {
  std::visit(
      [&](auto all) {
        part_size(all.size(), size_);
        reduce_own_part(group_.get(), all, Reduction::sum);
      },
      values);
}

void MpiCommunicator::all_gather(Values values) {
  std::visit([&](auto all) { gather_parts(all); }, values);
}

template <typename T>
void MpiCommunicator::gather_parts(std::span<T> values) {
  const std::size_t part = part_size(values.size(), size_);
  if (values.size() > longest_) return gather_in_pieces(group_.get(), values, longest_);
  MPI_Request request;
  check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), mpi_count(part),
                           mpi_type<T>(), group_.get(), &request));
  wait(request);
}

/// Sends every part at once, an empty one too, so that lengths that differ between ranks are found.
void MpiCommunicator::all_to_all(std::span<const std::byte> out,
                                 std::span<const std::size_t> out_bytes, std::span<std::byte> in,
                                 std::span<const std::size_t> in_bytes) {
  const auto outgoing = parts_of(out, out_bytes, size_);
  const auto incoming = parts_of(in, in_bytes, size_);
  const auto own = static_cast<std::size_t>(rank_);
  require_part(outgoing[own].size(), incoming[own].size(), own);
  std::vector<MPI_Request> receives, sends;
  std::vector<std::size_t> received(incoming.size()), sender;  // bytes by rank; rank by receive
  for (std::size_t away = 1; away < incoming.size(); ++away) {
    const std::size_t from = (own + incoming.size() - away) % incoming.size();
    in_pieces(incoming[from], longest_, [&](std::span<std::byte> piece) {
      sender.push_back(from);
      check_mpi(MPI_Irecv(piece.data(), mpi_count(piece.size()), MPI_BYTE, int(from),
                          all_to_all_tag, group_.get(), &receives.emplace_back()));
    });
  }
  for (std::size_t away = 1; away < outgoing.size(); ++away) {
    const std::size_t to = (own + away) % outgoing.size();
    in_pieces(outgoing[to], longest_, [&](std::span<const std::byte> piece) {
      check_mpi(MPI_Isend(piece.data(), mpi_count(piece.size()), MPI_BYTE, int(to), all_to_all_tag,
                          group_.get(), &sends.emplace_back()));
    });
  }
  std::ranges::copy(outgoing[own], incoming[own].begin());
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const MPI_Status status = wait(receives[i]);
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes));
    received[sender[i]] += static_cast<std::size_t>(bytes);
  }
  wait(sends);
  for (std::size_t from = 0; from < incoming.size(); ++from)
    if (from != own) require_part(received[from], incoming[from].size(), from);
}

void MpiCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  in_pieces(bytes, longest_, [&](std::span<std::byte> piece) {
    MPI_Request request;
    check_mpi(
        MPI_Ibcast(piece.data(), mpi_count(piece.size()), MPI_BYTE, root, group_.get(), &request));
    wait(request);
  });
}

std::vector<std::uint64_t> MpiCommunicator::gather_lengths(const std::string& mine) {
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size_));
  MPI_Request request;
  check_mpi(MPI_Iallgather(&length, 1, MPI_UINT64_T, lengths.data(), 1, MPI_UINT64_T, group_.get(),
                           &request));
  wait(request);
  return lengths;
}

std::vector<std::string> MpiCommunicator::gather(const std::string& mine) {
  const std::vector<std::uint64_t> bytes = gather_lengths(mine);
  const std::uint64_t all_bytes = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  std::vector<std::string> texts;
  if (all_bytes > longest_) {
    for (int root = 0; root < size_; ++root)
      texts.push_back(comm::broadcast(*this, rank_ == root ? mine : std::string(), root));
    return texts;
  }
  const std::vector<int> lengths(bytes.begin(), bytes.end());
  std::vector<int> offsets(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
  std::string all(all_bytes, '\0');
  MPI_Request request;
  check_mpi(MPI_Iallgatherv(mine.data(), mpi_count(mine.size()), MPI_CHAR, all.data(),
                            lengths.data(), offsets.data(), MPI_CHAR, group_.get(), &request));
  wait(request);
  for (std::size_t r = 0; r < lengths.size(); ++r)
    texts.push_back(
        all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r])));
  return texts;
}

std::vector<std::string> MpiCommunicator::gather_at(const std::string& mine, int root) {
  const std::vector<std::uint64_t> bytes = gather_lengths(mine);
  if (rank_ != root) {
    send_values(std::as_bytes(std::span(mine)), root);
    return {};
  }
  std::vector<std::string> texts;
  for (int rank = 0; rank < size_; ++rank) {
    std::string& text = texts.emplace_back(rank == root ? mine : std::string());
    if (rank == root) continue;
    text.resize(bytes[static_cast<std::size_t>(rank)]);
    receive_values(std::as_writable_bytes(std::span(text)), rank);
  }
  return texts;
}

void MpiCommunicator::send(ConstValues values, int peer) {
  std::visit([&](auto out) { send_values(out, peer); }, values);
}
void MpiCommunicator::recv(Values values, int peer) {
  std::visit([&](auto in) { receive_values(in, peer); }, values);
}

template <typename T>
void MpiCommunicator::send_values(std::span<const T> values, int peer) {
  in_pieces(values, longest_, [&](std::span<const T> piece) {
    MPI_Request request;
    check_mpi(MPI_Isend(piece.data(), mpi_count(piece.size()), mpi_type<T>(), peer, 0, group_.get(),
                        &request));
    wait_for_message(request);
  });
}

template <typename T>
void MpiCommunicator::receive_values(std::span<T> values, int peer) {
  in_pieces(values, longest_, [&](std::span<T> piece) {
    MPI_Request request;
    check_mpi(MPI_Irecv(piece.data(), mpi_count(piece.size()), mpi_type<T>(), peer, 0, group_.get(),
                        &request));
    const MPI_Status status = wait_for_message(request);
    int received = 0;
    check_mpi(MPI_Get_count(&status, mpi_type<T>(), &received));
    require(static_cast<std::size_t>(received) == piece.size(), Failure::bug,
            "rank {} of the group sent {} values, {} were expected", peer, received, piece.size());
  });
}

std::unique_ptr<Communicator> MpiCommunicator::split(int colour, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(group_.get(), colour < 0 ? MPI_UNDEFINED : colour, key, &part));
  if (part == MPI_COMM_NULL) return nullptr;
  return std::make_unique<MpiCommunicator>(MpiGroup(part), longest_);
}

void MpiCommunicator::abort(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

}  // namespace brume::comm
