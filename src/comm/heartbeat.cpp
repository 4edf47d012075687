#include "comm/heartbeat.hpp"

#include <mpi.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "comm/mpi_call.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/silence.hpp"

namespace brume::comm {
namespace {

constexpr double look_s = 0.5;

/// What ranks send each other.
struct Sign {
  enum Kind : int { alive, goodbye } kind = alive;
  std::array<char, 252> doing{};  ///< a text that ends with a zero
};

MPI_Comm own_group(int place) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, place, &copy));
  return copy;
}

}  // namespace

struct Heartbeat::Impl {
  Impl(int place, double limit_s) : group(own_group(place)), limit_s(limit_s) {
    check_mpi(MPI_Comm_rank(group.get(), &rank));
    check_mpi(MPI_Comm_size(group.get(), &size));
    previous.rank = (rank + size - 1) % size;
    next = (rank + 1) % size;
    std::array<char, MPI_MAX_PROCESSOR_NAME> mine{}, theirs{};
    int length = 0;
    check_mpi(MPI_Get_processor_name(mine.data(), &length));
    check_mpi(MPI_Sendrecv(mine.data(), int(mine.size()), MPI_CHAR, next, 0, theirs.data(),
                           int(theirs.size()), MPI_CHAR, previous.rank, 0, group.get(),
                           MPI_STATUS_IGNORE));
    previous.host = theirs.data();
  }

  MpiGroup group;
  int rank = 0, size = 1, next = 0;
  SilentRank previous{};
  std::function<void(const SilentRank&)> on_silence;
  std::atomic<double> limit_s;
  std::mutex mutex;
  std::condition_variable changed;
  bool ending = false;
  std::mutex doing_mutex;
  std::function<std::string()> doing;
  std::thread thread;

  // Only the thread uses what follows.
  MPI_Request sending = MPI_REQUEST_NULL, receiving = MPI_REQUEST_NULL;
  Sign sent, received;
  bool previous_left = false;

  /// What this rank does now, as far as anybody told.
  std::string own_doing() {
    const std::lock_guard lock(doing_mutex);
    return doing ? doing() : std::string();
  }

  /// Sends, unless the last sign is still on its way. @return whether it went out
  bool send(Sign::Kind kind) {
    int done = 0;
    check_mpi(MPI_Test(&sending, &done, MPI_STATUS_IGNORE));
    if (!done) return false;
    sent = {.kind = kind};
    const std::string text = own_doing();
    text.copy(sent.doing.data(), sent.doing.size() - 1);
    check_mpi(MPI_Isend(&sent, sizeof sent, MPI_BYTE, next, 0, group.get(), &sending));
    return true;
  }

  void listen() {
    check_mpi(
        MPI_Irecv(&received, sizeof received, MPI_BYTE, previous.rank, 0, group.get(), &receiving));
  }

  /// @return whether a sign has come since the last call
  bool hear() {
    bool heard = false;
    for (int done = 1; !previous_left;) {
      check_mpi(MPI_Test(&receiving, &done, MPI_STATUS_IGNORE));
      if (!done) break;
      heard = true;
      previous_left = received.kind == Sign::goodbye;
      previous.doing.assign(received.doing.data(),
                            ::strnlen(received.doing.data(), received.doing.size()));
      if (!previous_left) listen();
    }
    return heard;
  }

  void tell() {
    previous.listener_doing = own_doing();
    on_silence(previous);
  }

  bool wait_for_end(double s) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(s), [this] { return ending; });
  }

  void run() {
    pthread_setname_np(pthread_self(), "heartbeat");
    try {
      exchange_signs();
    } catch (const std::exception&) {
      tell();  // MPI cannot reach a neighbour any more
    }
  }

  /// Sends and listens until both neighbours in the ring have come to their end.
  void exchange_signs() {
    Silence silence(look_s);
    listen();
    for (bool ends = false, said_goodbye = false; !(said_goodbye && previous_left);) {
      if (!said_goodbye) said_goodbye = send(ends ? Sign::goodbye : Sign::alive) && ends;
      previous.silence_s = silence.look(hear() || previous_left);
      if (previous.silence_s >= limit_s) return tell();
      if (ends)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      else
        ends = wait_for_end(look_s);
    }
    check_mpi(MPI_Wait(&sending, MPI_STATUS_IGNORE));
  }
};

Heartbeat::Heartbeat(int place, double limit_s, std::function<void(const SilentRank&)> on_silence)
    : impl_(std::make_unique<Impl>(place, limit_s)) {
  impl_->on_silence = std::move(on_silence);
  if (impl_->size > 1) impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->changed.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void Heartbeat::set_limit(double limit_s) { impl_->limit_s = limit_s; }

void Heartbeat::set_doing(std::function<std::string()> doing) {
  const std::lock_guard lock(impl_->doing_mutex);
  impl_->doing = std::move(doing);
}

}  // namespace brume::comm
