#include "device/channels.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace brume::device {

namespace {

/// Looks for a short while before the caller goes to sleep, giving its core away between looks.
/// Measured on a virtual machine: with a core to spare a hand-over takes 2-4 us, where waking a
/// sleeper on another core takes 25-40 us.
///
/// Beside busy threads of others the core comes back when their turn is over, milliseconds later,
/// while a sleeper that is woken goes before them. Where that happened nobody looks for a second:
/// measured on two cores beside two busy threads, hand-overs take 0.04 ms instead of 3 ms.
template <typename Condition>
void look_briefly(const Condition& holds) {
  using Clock = std::chrono::steady_clock;
  static std::atomic<Clock::duration> sleeps_until{};  // since the clock's epoch
  const auto begin = Clock::now();
  if (begin.time_since_epoch() < sleeps_until.load(std::memory_order_relaxed)) return;
  for (auto last = begin; !holds() && last - begin < std::chrono::microseconds(20);) {
    std::this_thread::yield();
    const auto now = Clock::now();
    if (now - last > std::chrono::microseconds(500))
      sleeps_until.store((now + std::chrono::seconds(1)).time_since_epoch(),
                         std::memory_order_relaxed);
    last = now;
  }
}

/// What a worker takes off its queue.
struct Item {
  enum class Kind { work, wait, record };
  Kind kind = Kind::work;
  Channels::Work work;
  Event event;           ///< to wait for, or to mark
  Span* span = nullptr;  ///< of work that is timed
};

/// Marks of the moments at which a stream began and ended some work; read when the stream has come
/// so far.
struct Timed {
  Span* span;
  Mark start, end;
};

/// One worker, its queue and how far it got.
class Channel {
 public:
  /// @param ending  of all channels: one that waits for another is let go by the end of both
  template <typename Body>
  void start(const std::atomic<bool>& ending, Body body) {
    ending_ = &ending;
    worker_ = std::thread(std::move(body));
  }

  void join() {
    if (worker_.joinable()) worker_.join();
  }

  void push(Item item) {
    bool asleep = false;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(item));
      ++enqueued_;
      asleep = idle_;
    }
    if (asleep) arrived_.notify_one();
  }

  /// Takes the next item; false when the object is being destroyed.
  bool pop(Item& item) {
    look_briefly([this] { return *ending_ || enqueued_ > done_; });
    std::unique_lock lock(mutex_);
    idle_ = true;
    arrived_.wait(lock, [this] { return *ending_ || !queue_.empty(); });
    idle_ = false;
    if (*ending_) return false;
    item = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }

  void complete_one() {
    bool awaited = false;
    {
      const std::lock_guard lock(mutex_);
      awaited = ++done_ >= awaited_;
      if (awaited) awaited_ = nobody;
    }
    if (awaited) completed_.notify_all();
  }

  void await(std::int64_t sequence) {
    const auto reached = [this, sequence] { return *ending_ || done_ >= sequence; };
    look_briefly(reached);
    if (reached()) return;
    std::unique_lock lock(mutex_);
    while (!reached()) {
      awaited_ = std::min(awaited_, sequence);
      completed_.wait(lock);
    }
  }

  /// Wakes all who wait here, after the end was set.
  void wake() {
    {
      const std::lock_guard lock(mutex_);  // or one who has just looked would sleep
    }
    arrived_.notify_all();
    completed_.notify_all();
  }

  std::int64_t enqueued() const { return enqueued_; }

  std::unique_ptr<Stream> stream;  ///< null: the worker does the work itself

  /// The work that a stream was given since the last read_times.
  void add_timed(Timed work) {
    const std::lock_guard lock(mutex_);
    timed_.push_back(std::move(work));
  }

  /// Fills in the spans of what the stream did; it must be done.
  void read_times(const Mark& started) {
    const std::lock_guard lock(mutex_);
    for (const Timed& work : timed_)
      if (started)
        *work.span = {stream->seconds(started, work.start), stream->seconds(started, work.end)};
    timed_.clear();
  }

  const Span* in_flight() {
    const std::lock_guard lock(mutex_);
    for (const Timed& work : timed_)
      if (!stream->reached(work.end)) return work.span;
    return working;
  }

  std::atomic<const Span*> working = nullptr;  ///< of the timed work in the worker's hands

 private:
  static constexpr std::int64_t nobody = std::numeric_limits<std::int64_t>::max();

  // Changed under the mutex only; atomic so that a brief look needs no lock.
  std::atomic<std::int64_t> enqueued_ = 0;
  std::atomic<std::int64_t> done_ = 0;
  const std::atomic<bool>* ending_ = nullptr;

  std::mutex mutex_;
  std::condition_variable arrived_;    // the queue has an item, or the end has come
  std::condition_variable completed_;  // `done_` has come to `awaited_`, or the end has come
  std::deque<Item> queue_;
  std::vector<Timed> timed_;
  // What the first sleeper waits for: told of each item, the thread that waits for the last one
  // took a core from those that compute 750 times a second.
  std::int64_t awaited_ = nobody;
  bool idle_ = false;  // the worker sleeps; an awake one looks at the queue by itself
  std::thread worker_;
};

void name_this_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace

struct Channels::Impl {
  std::vector<Channel> channels;  // of fixed size: workers hold references
  std::function<void(std::exception_ptr)> on_failure;
  std::atomic<bool> ending = false;
  std::atomic<bool> failed = false;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  Mark started_mark;  ///< the same moment in the streams' time

  explicit Impl(std::size_t num_channels) : channels(num_channels) {}

  ~Impl() {
    ending = true;
    for (Channel& channel : channels) channel.wake();
    for (Channel& channel : channels) channel.join();
  }

  Channel& at(int channel) {
    require(channel >= 0 && channel < static_cast<int>(channels.size()), Failure::bug,
            "channel {} of {}", channel, channels.size());
    return channels[static_cast<std::size_t>(channel)];
  }

  void serve(Channel& channel) {
    guarded([&] {
      if (channel.stream) channel.stream->bind();
    });
    for (Item item; channel.pop(item);) {
      guarded([&] { run(channel, item); });
      item.work = nullptr;  // what it holds is free before anyone hears that it is done
      channel.complete_one();
    }
  }

  template <typename Body>
  void guarded(Body&& body) {
    // Skipped items still count as done, so whoever waits for them is released.
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      body();
    } catch (...) {
      fail(std::current_exception());
    }
  }

  void run(Channel& channel, Item& item) {
    switch (item.kind) {
      case Item::Kind::work: return item.span ? run_timed(channel, item) : item.work();
      case Item::Kind::record: *item.event.mark = channel.stream->record(); return;
      case Item::Kind::wait: return await(channel, item.event);
    }
  }

  void run_timed(Channel& channel, Item& item) {
    channel.working = item.span;
    if (channel.stream) {
      Mark start = channel.stream->record_time();
      item.work();
      channel.add_timed({item.span, std::move(start), channel.stream->record_time()});
    } else {
      item.span->start_s = seconds_since_start();
      item.work();
      item.span->end_s = seconds_since_start();
    }
    channel.working = nullptr;
  }

  double seconds_since_start() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  }

  /// Starts the clock of idle channels. Streams go their own ways, so each begins after the one
  /// that has the mark.
  void start_clock() {
    started_mark = nullptr;
    for (Channel& channel : channels) {
      if (!channel.stream) continue;
      if (started_mark)
        channel.stream->wait(started_mark);
      else
        started_mark = channel.stream->record_time();
    }
    started = std::chrono::steady_clock::now();
  }

  /// First until the other worker has come so far; what it only put into its stream by then is left
  /// to this channel's stream, or waited for here when this channel has none.
  void await(Channel& channel, const Event& event) {
    Channel& other = at(event.channel);
    other.await(event.sequence);
    if (!event.mark || !*event.mark) return;  // the other one failed before it came there
    if (channel.stream)
      channel.stream->wait(*event.mark);
    else
      other.stream->synchronize(*event.mark);
  }

  void fail(std::exception_ptr thrown) {
    {
      const std::lock_guard lock(failure_mutex);
      if (failure) return;
      failure = thrown;
      failed.store(true, std::memory_order_relaxed);
    }
    if (on_failure) on_failure(std::move(thrown));
  }
};

Channels::Channels(std::vector<std::string> names,
                   std::function<void(std::exception_ptr)> on_failure,
                   std::vector<std::unique_ptr<Stream>> streams)
    : impl_(std::make_unique<Impl>(names.size())) {
  impl_->on_failure = std::move(on_failure);
  // All of them first: a worker may look at any other channel.
  for (std::size_t c = 0; c < streams.size(); ++c) impl_->at(int(c)).stream = std::move(streams[c]);
  for (std::size_t c = 0; c < names.size(); ++c) {
    Channel& channel = impl_->channels[c];
    channel.start(impl_->ending, [impl = impl_.get(), &channel, name = std::move(names[c])] {
      name_this_thread(name);
      impl->serve(channel);
    });
  }
}

Channels::~Channels() = default;

void Channels::enqueue(int channel, Work work, Span* span) {
  require(work != nullptr, Failure::bug, "no work was given to channel {}", channel);
  impl_->at(channel).push({Item::Kind::work, std::move(work), {}, span});
}

Event Channels::record(int channel) {
  Channel& from = impl_->at(channel);
  if (!from.stream) return {channel, from.enqueued(), nullptr};
  Event event{channel, from.enqueued() + 1, std::make_shared<Mark>()};
  from.push({Item::Kind::record, {}, event});
  return event;
}

void Channels::wait(int channel, const Event& event) {
  Channel& to = impl_->at(channel);
  require(event.sequence <= impl_->at(event.channel).enqueued(), Failure::bug,
          "event {} of channel {} was never recorded", event.sequence, event.channel);
  // A channel is in order: what came before on itself is no reason to stop.
  if (event.channel != channel) to.push({Item::Kind::wait, {}, event});
}

void Channels::synchronize() {
  for (Channel& channel : impl_->channels) channel.await(channel.enqueued());
  for (Channel& channel : impl_->channels)
    if (channel.stream && !impl_->failed) channel.stream->synchronize();
  for (Channel& channel : impl_->channels)
    if (channel.stream) channel.read_times(impl_->failed ? nullptr : impl_->started_mark);
  const std::lock_guard lock(impl_->failure_mutex);
  if (impl_->failure) std::rethrow_exception(impl_->failure);
}

void Channels::fail(std::exception_ptr thrown) { impl_->fail(std::move(thrown)); }

void Channels::start_clock() { impl_->start_clock(); }

const Span* Channels::in_flight(int channel) const { return impl_->at(channel).in_flight(); }

}  // namespace brume::device
