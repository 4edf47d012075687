/// @file What a person sees of a search, and how it is ended early.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tuner/tuner.hpp"

namespace brume::app {

/// While it lives a search's progress is shown: on a terminal in one line, else once in 30 s.
class SearchWatch {
 public:
  /// In a job signals mean something else (signals.hpp).
  enum class Interrupt {
    ends_process,
    ends_search,  ///< with the best plan known; a second one ends the process
  };

  /// One in a process where interrupts end the search.
  SearchWatch(double limit_s, Interrupt interrupt);
  ~SearchWatch();
  SearchWatch(const SearchWatch&) = delete;
  SearchWatch& operator=(const SearchWatch&) = delete;

  tuner::Options options();

 private:
  void watch();
  void show(double seconds);

  double limit_s_;
  Interrupt interrupt_;
  bool terminal_;
  bool shown_ = false;
  tuner::Progress progress_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  ///< guarded by mutex_
  std::thread watcher_;
};

}  // namespace brume::app
