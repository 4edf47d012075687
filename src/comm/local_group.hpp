/// @file Where ranks that are threads of one process meet.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace brume::comm {

/// Ends the calls of a rank because another one failed: a consequence, never the cause.
class Released : public Error {
 public:
  using Error::Error;
};

/// The ranks of one communicator. Memory that a rank shows to the others stays valid until all are
/// done with it, also when the job fails meanwhile.
class LocalGroup {
 public:
  explicit LocalGroup(int size);

  int size() const { return size_; }

  /// Runs `use` on each rank with what all ranks show, in rank order. Returns when all have done
  /// so.
  ///
  /// @throws Error(bug) on every rank when they are not all in the same `call`
  template <typename Shown, typename Use>
  void meet(std::string_view call, int rank, Shown& shown, const Use& use) {
    slots_[static_cast<std::size_t>(rank)] = {call, &shown};
    arrive();
    const Departure departure{*this};
    require_same_call();
    std::vector<Shown*> all;
    for (const Slot& slot : slots_) all.push_back(static_cast<Shown*>(slot.shown));
    use(all);
  }

  /// Hands `values` over to the recv of rank `to`; returns when they are there.
  void send(std::span<const std::byte> values, int from, int to);
  void recv(std::span<std::byte> values, int from, int to);

  /// Ends all pending and all later calls with Released(reason).
  void release(const std::string& reason);

 private:
  struct Slot {
    std::string_view call;
    void* shown = nullptr;
  };

  enum class Mail { none, offered, being_read, read };
  struct Mailbox {
    Mail state = Mail::none;
    std::span<const std::byte> values;
    std::condition_variable changed;
  };

  /// Waits for all ranks once more before what they show may go.
  struct Departure {
    LocalGroup& group;
    ~Departure() { group.depart(); }
  };

  void arrive();  ///< until all ranks are here or the group is released
  void depart();  ///< until all ranks are done; none can stay away, so nothing else ends it
  bool pass(std::unique_lock<std::mutex>& lock, bool releasable);
  void require_same_call() const;
  void require_not_released() const;
  Mailbox& mailbox(int from, int to);

  const int size_;
  std::vector<Slot> slots_;         // [size_] each written by its rank before it arrives
  std::vector<Mailbox> mailboxes_;  // [size_, size_] from, to

  std::mutex mutex_;
  std::condition_variable passed_;
  int arrived_ = 0;
  std::int64_t passes_ = 0;
  bool released_ = false;
  std::string reason_;
};

/// All groups of one run, and how it ended.
class LocalJob {
 public:
  std::shared_ptr<LocalGroup> make_group(int size);

  void fail(int rank, std::exception_ptr failure);  ///< a rank left with an exception
  void abort(int rank, int exit_code);              ///< a rank ended the job
  void rethrow() const;  ///< the first exception that is no consequence, if the run failed

 private:
  void release(const std::string& reason);  // with mutex_ held

  std::mutex mutex_;
  std::vector<std::weak_ptr<LocalGroup>> groups_;
  bool released_ = false;
  std::string reason_;
  std::exception_ptr cause_;
  std::exception_ptr aborted_;
};

}  // namespace brume::comm
