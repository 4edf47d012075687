#include "base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace brume {

int num_cores() { return int(std::max(1u, std::thread::hardware_concurrency())); }

void parallel_for(std::size_t count, int threads,
                  const std::function<void(std::size_t i, std::size_t thread)>& body) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr thrown;
  std::size_t thrown_by = count;
  const auto work = [&](std::size_t thread) {
    for (std::size_t i = next++; i < count; i = next++) try {
        body(i, thread);
      } catch (...) {
        const std::lock_guard lock(mutex);
        next = count;
        if (i >= thrown_by) continue;
        thrown_by = i;
        thrown = std::current_exception();
      }
  };
  std::vector<std::jthread> others;
  const std::size_t most = std::min(count, std::size_t(std::max(1, threads)));
  for (std::size_t thread = 1; thread < most; ++thread) others.emplace_back(work, thread);
  work(0);
  others.clear();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace brume
