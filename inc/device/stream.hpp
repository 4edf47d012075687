/// @file The queue of an accelerator behind a channel.
#pragma once

#include <memory>

namespace brume::device {

/// The state of a stream when it was recorded.
using Mark = std::shared_ptr<const void>;

/// A queue that works by itself: what is put into it runs later, in order. A channel that has one
/// counts work as done when it is in the queue, and other channels' streams wait for its marks.
/// One thread at a time, the channel's worker.
class Stream {
 public:
  virtual ~Stream() = default;

  virtual void bind() = 0;  ///< the calling thread will use this stream
  virtual Mark record() = 0;
  virtual Mark record_time() = 0;           ///< a mark that also knows when it was reached
  virtual void wait(const Mark& mark) = 0;  ///< later work runs after `mark`
  virtual void synchronize() = 0;  ///< blocks the caller until all that is in the queue is done
  virtual void synchronize(const Mark& mark) = 0;    ///< ... until `mark` is; any thread
  virtual bool reached(const Mark& mark) const = 0;  ///< whether `mark` is done; any thread

  /// The time [s] between two marks of record_time, by this or other streams of the device. Both
  /// must have been reached. Any thread.
  virtual double seconds(const Mark& from, const Mark& to) const = 0;
};

}  // namespace brume::device
