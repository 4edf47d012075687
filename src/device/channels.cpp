/// @file Channels: workers that take items in order, and wait for each other's events.
#include "device/channels.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "channel.hpp"

namespace brume::device {
namespace {

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
