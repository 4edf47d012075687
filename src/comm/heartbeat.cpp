#include "comm/heartbeat.hpp"

#include <mpi.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "comm/movement.hpp"
#include "comm/mpi_call.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/silence.hpp"

namespace brume::comm {
namespace {

constexpr double look_s = 0.5;
constexpr double answers_s = 2 * look_s;  ///< before a verdict others are asked

/// Tags of messages.
enum Topic : int { life, question, answer };

/// What ranks send each other, but for questions, which are the number of a silent rank.
struct Sign {
  enum Kind : int { alive, goodbye } kind = alive;
  float still_s = 0.0F;           ///< [s] since any rank was seen to get on
  std::array<char, 248> doing{};  ///< a text that ends with a zero; of an answer: empty, if the
                                  ///< rank does not wait

  std::string text() const { return {doing.data(), ::strnlen(doing.data(), doing.size())}; }
};

Sign sign_of(Sign::Kind kind, double still_s, const std::string& doing) {
  Sign sign{.kind = kind, .still_s = float(still_s)};
  doing.copy(sign.doing.data(), sign.doing.size() - 1);
  return sign;
}

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
    check_mpi(MPI_Sendrecv(mine.data(), int(mine.size()), MPI_CHAR, next, life, theirs.data(),
                           int(theirs.size()), MPI_CHAR, previous.rank, life, group.get(),
                           MPI_STATUS_IGNORE));
    previous.host = theirs.data();
  }

  MpiGroup group;
  int rank = 0, size = 1, next = 0;
  SilentRank previous{};
  std::function<void(const SilentRank&)> on_silence;
  std::function<void(const Standstill&)> on_still;
  std::atomic<double> limit_s;
  std::atomic<double> still_limit_s = std::numeric_limits<double>::infinity();
  std::mutex mutex;
  std::condition_variable changed;
  bool ending = false;
  std::mutex doing_mutex;
  std::function<Doing()> doing;
  std::thread thread;

  // Only the thread uses what follows.
  MPI_Request sending = MPI_REQUEST_NULL, receiving = MPI_REQUEST_NULL;
  Sign sent, received;
  bool previous_left = false;
  bool asked = false;  // others, since the rank before this one was last heard of
  Movement movement;
  Silence own_rest{look_s}, rest{look_s};  // of this rank, and of all

  /// What this rank does now, as far as anybody told.
  Doing own_doing() {
    const std::lock_guard lock(doing_mutex);
    return doing ? doing() : Doing();
  }

  /// Sends, unless the last sign is still on its way. @return whether it went out
  bool send(Sign::Kind kind) {
    int done = 0;
    check_mpi(MPI_Test(&sending, &done, MPI_STATUS_IGNORE));
    if (!done) return false;
    sent = sign_of(kind, rest.silence_s(), own_doing().text);
    check_mpi(MPI_Isend(&sent, sizeof sent, MPI_BYTE, next, life, group.get(), &sending));
    return true;
  }

  void listen() {
    check_mpi(MPI_Irecv(&received, sizeof received, MPI_BYTE, previous.rank, life, group.get(),
                        &receiving));
  }

  /// @return whether a sign has come since the last call
  bool hear() {
    bool heard = false;
    for (int done = 1; !previous_left;) {
      check_mpi(MPI_Test(&receiving, &done, MPI_STATUS_IGNORE));
      if (!done) break;
      heard = true;
      asked = false;
      previous_left = received.kind == Sign::goodbye;
      previous.doing = received.text();
      rest.hear(double(received.still_s) + look_s);
      if (!previous_left) listen();
    }
    return heard;
  }

  /// The rank that has a message about `topic` for this one; -1: there is none.
  int sender(Topic topic) {
    int there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, topic, group.get(), &there, &status));
    return there ? status.MPI_SOURCE : -1;
  }

  /// The answer to an earlier question may come late: the last one counts.
  void note_waiting(int from, const std::string& waits_in) {
    std::erase_if(previous.waiting, [&](const WaitingRank& one) { return one.rank == from; });
    if (!waits_in.empty()) previous.waiting.push_back({from, waits_in});
  }

  /// What this rank waits in for a silent one; empty: for others, or not.
  std::string waits_in(int silent) {
    const Doing now = own_doing();
    return std::ranges::find(now.awaited, silent) == now.awaited.end() ? std::string() : now.text;
  }

  void answer_questions() {
    for (int from = 0; (from = sender(question)) >= 0;) {
      int silent = -1;
      check_mpi(MPI_Recv(&silent, 1, MPI_INT, from, question, group.get(), MPI_STATUS_IGNORE));
      const Sign reply = sign_of(Sign::alive, 0.0, waits_in(silent));
      check_mpi(MPI_Send(&reply, sizeof reply, MPI_BYTE, from, answer, group.get()));
    }
  }

  /// Asks who waits for the silent rank, and hears who has answered.
  void find_waiting() {
    if (!asked) ask();
    asked = true;
    for (int from = 0; (from = sender(answer)) >= 0;) {
      Sign reply;
      check_mpi(
          MPI_Recv(&reply, sizeof reply, MPI_BYTE, from, answer, group.get(), MPI_STATUS_IGNORE));
      note_waiting(from, reply.text());
    }
  }

  void ask() {
    previous.waiting.clear();
    note_waiting(rank, waits_in(previous.rank));
    for (int other = 0; other < size; ++other)
      if (other != rank && other != previous.rank)
        check_mpi(MPI_Send(&previous.rank, 1, MPI_INT, other, question, group.get()));
  }

  void tell() {
    std::ranges::sort(previous.waiting, {}, &WaitingRank::rank);
    on_silence(previous);
  }

  /// @return whether it stands still, and has said so
  bool stands_still() {
    const double limit = still_limit_s;
    const Movement::Seen seen = movement.look();
    const bool moves = seen.moved || std::isinf(limit), waits = seen.waits;
    const double all_s = rest.look(moves), own_s = own_rest.look(moves || waits);
    // News of the rank that is furthest off are this old.
    const bool still = waits ? all_s >= limit + 2 * look_s * size : own_s >= limit;
    if (still) on_still({rank, waits ? all_s : own_s, waits, own_doing().text});
    return still;
  }

  bool wait_for_end(double s) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(s), [this] { return ending; });
  }

  void run() {
    pthread_setname_np(pthread_self(), "heartbeat");
    try {
      exchange_signs();
    } catch (const Error&) {
      tell();  // MPI cannot reach a neighbour any more
    }
  }

  /// Sends and listens until both neighbours in the ring have come to their end.
  void exchange_signs() {
    Silence silence(look_s);
    listen();
    for (bool ends = false, said_goodbye = false; !(said_goodbye && previous_left);) {
      if (!said_goodbye) said_goodbye = send(ends ? Sign::goodbye : Sign::alive) && ends;
      answer_questions();
      previous.silence_s = silence.look(hear() || previous_left);
      if (previous.silence_s >= limit_s - answers_s) find_waiting();
      if (previous.silence_s >= limit_s) return tell();
      if (!ends && stands_still()) return;
      if (ends)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      else
        ends = wait_for_end(look_s);
    }
    check_mpi(MPI_Wait(&sending, MPI_STATUS_IGNORE));
  }
};

Heartbeat::Heartbeat(int place, double limit_s, std::function<void(const SilentRank&)> on_silence,
                     std::function<void(const Standstill&)> on_still)
    : impl_(std::make_unique<Impl>(place, limit_s)) {
  impl_->on_silence = std::move(on_silence);
  impl_->on_still = std::move(on_still);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
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

void Heartbeat::set_still_limit(double limit_s) { impl_->still_limit_s = limit_s; }

void Heartbeat::set_doing(std::function<Doing()> doing) {
  const std::lock_guard lock(impl_->doing_mutex);
  impl_->doing = std::move(doing);
}

}  // namespace brume::comm
