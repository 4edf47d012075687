#include "comm/local_group.hpp"

#include <algorithm>

namespace brume::comm {

LocalGroup::LocalGroup(int size)
    : size_(size),
      slots_(static_cast<std::size_t>(size)),
      mailboxes_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)) {}

void LocalGroup::arrive() {
  std::unique_lock lock(mutex_);
  require_not_released();
  if (!pass(lock, true)) require_not_released();
}

void LocalGroup::depart() {
  std::unique_lock lock(mutex_);
  pass(lock, false);
}

bool LocalGroup::pass(std::unique_lock<std::mutex>& lock, bool releasable) {
  const std::int64_t before = passes_;
  if (++arrived_ == size_) {
    arrived_ = 0;
    ++passes_;
    passed_.notify_all();
    return true;
  }
  passed_.wait(lock, [&] { return passes_ != before || (releasable && released_); });
  // A meeting that is complete is held, even if the release came before this rank woke up.
  return passes_ != before;
}

void LocalGroup::require_same_call() const {
  for (std::size_t r = 1; r < slots_.size(); ++r) {
    require(slots_[r].call == slots_[0].call, Failure::bug,
            "rank 0 of the group is in {}, rank {} in {}: collectives need one order",
            slots_[0].call, r, slots_[r].call);
  }
}

void LocalGroup::require_not_released() const {
  if (released_) throw Released(Failure::network, reason_);
}

LocalGroup::Mailbox& LocalGroup::mailbox(int from, int to) {
  require(from >= 0 && from < size_ && to >= 0 && to < size_, Failure::bug,
          "a message from rank {} to rank {} in a group of {}", from, to, size_);
  return mailboxes_[static_cast<std::size_t>(from * size_ + to)];
}

void LocalGroup::send(std::span<const std::byte> values, int from, int to) {
  Mailbox& box = mailbox(from, to);
  std::unique_lock lock(mutex_);
  require_not_released();
  box.values = values;
  box.state = Mail::offered;
  box.changed.notify_all();
  // The values must stay where they are while the receiver reads, released or not.
  box.changed.wait(
      lock, [&] { return box.state == Mail::read || (released_ && box.state == Mail::offered); });
  const bool read = box.state == Mail::read;
  box.state = Mail::none;
  if (!read) require_not_released();
}

void LocalGroup::recv(std::span<std::byte> values, int from, int to) {
  Mailbox& box = mailbox(from, to);
  std::unique_lock lock(mutex_);
  box.changed.wait(lock, [&] { return box.state == Mail::offered || released_; });
  require_not_released();
  box.state = Mail::being_read;
  const std::span<const std::byte> sent = box.values;

  lock.unlock();
  std::copy_n(sent.begin(), std::min(sent.size(), values.size()), values.begin());
  lock.lock();
  box.state = Mail::read;
  box.changed.notify_all();
  require(sent.size() == values.size(), Failure::bug,
          "rank {} of the group sent {} bytes, {} were expected", from, sent.size(), values.size());
}

void LocalGroup::release(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  released_ = true;
  reason_ = reason;
  passed_.notify_all();
  for (Mailbox& box : mailboxes_) box.changed.notify_all();
}

std::shared_ptr<LocalGroup> LocalJob::make_group(int size) {
  const auto group = std::make_shared<LocalGroup>(size);
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
  if (released_) group->release(reason_);
  return group;
}

void LocalJob::fail(int rank, std::exception_ptr failure) {
  std::string what = "an exception of unknown type";
  try {
    std::rethrow_exception(failure);
  } catch (const Released&) {
    return;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  const std::lock_guard lock(mutex_);
  if (!cause_) cause_ = failure;
  release(fmt::format("rank {} failed: {}", rank, what));
}

void LocalJob::abort(int rank, int exit_code) {
  const auto text = fmt::format("rank {} aborted the job with exit code {}", rank, exit_code);
  const std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = std::make_exception_ptr(Error(static_cast<Failure>(exit_code), text));
  release(text);
}

void LocalJob::rethrow() const {
  // An abort is made because of an exception, so that one tells more.
  if (cause_) std::rethrow_exception(cause_);
  if (aborted_) std::rethrow_exception(aborted_);
}

void LocalJob::release(const std::string& reason) {
  if (released_) return;
  released_ = true;
  reason_ = reason;
  for (const std::weak_ptr<LocalGroup>& entry : groups_) {
    if (const auto group = entry.lock()) group->release(reason);
  }
}

}  // namespace brume::comm
