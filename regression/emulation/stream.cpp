#include "stream.hpp"

#include <cstdlib>
#include <random>

namespace brume::emulation {
namespace {

/// What all streams share.
struct Common {
  Clock seen;                 ///< what all threads of the host know to be done
  std::set<Stream*> streams;  ///< that there are now
  Clock times;                ///< [streams] how much work each was given; goes on in the next one
  std::vector<int> free;      ///< numbers of streams that are gone
};
Common& common() {
  static Common& made = *new Common;
  return made;
}

/// What the calling thread knows beyond that.
thread_local Clock seen_here;

unsigned seed() {
  const char* const asked = std::getenv("BRUME_EMULATED_SEED");
  return asked ? unsigned(std::atoi(asked)) : 1;
}

}  // namespace

Stream::Stream(int device, bool of_thread) : device_(device), of_thread_(of_thread) {
  const Locked locked;
  if (common().free.empty()) {
    common().free.push_back(int(common().times.size()));
    common().times.push_back(0);
  }
  index_ = common().free.back();
  common().free.pop_back();
  common().streams.insert(this);
  thread_ = std::thread([this] { serve(); });
}

Stream::~Stream() {
  {
    Locked locked;
    drain(locked);
    ending_ = true;
    common().streams.erase(this);
    arrived_.notify_one();
  }
  thread_.join();
  const Locked locked;
  common().free.push_back(index_);
}

void Stream::put(std::string_view name, Work work) {
  if (!of_thread_) giver_ = std::this_thread::get_id();
  push({name, std::move(work), {}, {}, {}});
}

std::shared_ptr<Moment> Stream::record() {
  auto moment = std::make_shared<Moment>();
  if (!of_thread_) moment->giver = std::this_thread::get_id();
  push({"", {}, moment, {}, {}});
  return moment;
}

void Stream::wait(std::shared_ptr<Moment> moment) {
  static int waits = 0;
  if (const int every = planted("wait"); every > 0 && ++waits % every == 0) return;
  push({"", {}, {}, std::move(moment), {}});
}

void Stream::push(Operation operation) {
  operation.seen_by_host = common().seen;
  join(operation.seen_by_host, seen_here);
  queue_.push_back(std::move(operation));
  arrived_.notify_one();
}

void Stream::drain(Locked& locked) {
  idle_.wait(locked.lock(), [this] { return queue_.empty(); });
}

void Stream::finish(Locked& locked) {
  const auto giver = giver_;
  const auto moment = record();
  moment->giver = giver;
  finish(locked, *moment);
}

void Stream::finish(Locked& locked, Moment& moment) {
  moment.reaching.wait(locked.lock(), [&] { return moment.reached; });
  join(moment.giver == std::this_thread::get_id() ? seen_here : common().seen, moment.clock);
}

const std::set<Stream*>& Stream::all() { return common().streams; }

void Stream::finish_all(Locked& locked) {
  for (bool again = true; again;) {
    again = false;
    for (Stream* stream : common().streams)
      if (!stream->queue_.empty()) {
        stream->drain(locked);
        again = true;
        break;  // while it was waited for, there may be others
      }
  }
}

void Stream::serve() {
  takes_own_memory = true;
  std::minstd_rand random(seed() * 7919u + unsigned(index_));
  Locked locked;
  for (;;) {
    arrived_.wait(locked.lock(), [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Operation& next = queue_.front();
    join(clock_, next.seen_by_host);
    if (next.awaited) {
      next.awaited->reaching.wait(locked.lock(), [&] { return next.awaited->reached; });
      join(clock_, next.awaited->clock);
    } else if (next.recorded) {
      next.recorded->reached = true;
      next.recorded->time = std::chrono::steady_clock::now();
      next.recorded->clock = clock_;
      next.recorded->reaching.notify_all();
    } else {
      const std::uint32_t time = ++common().times[std::size_t(index_)];
      clock_.resize(std::max(clock_.size(), std::size_t(index_) + 1));
      clock_[std::size_t(index_)] = time;
      locked.lock().unlock();
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      const std::vector<Interval> touched = next.work();
      locked.lock().lock();
      for (const Interval& interval : touched)
        check_order(interval, {next.name, index_, time}, clock_);
    }
    queue_.pop_front();
    if (queue_.empty()) idle_.notify_all();
  }
}

}  // namespace brume::emulation
