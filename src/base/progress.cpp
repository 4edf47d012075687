#include "base/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"

namespace brume {
namespace {

using Period = std::chrono::steady_clock::duration;
constexpr std::chrono::milliseconds first_on_terminal{500}, then_on_terminal{250};
constexpr std::chrono::seconds in_log_every{30};

}  // namespace

Progress::Progress(std::string what, double total, bool shown)
    : what_(std::move(what)),
      total_(total),
      shown_(shown),
      terminal_(terminal::watched(STDERR_FILENO)),
      next_(begin_ + (terminal_ ? Period(first_on_terminal) : Period(in_log_every))) {}

Progress::~Progress() {
  if (!line_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

void Progress::add(double amount) {
  done_ += amount;
  const Clock::time_point now = Clock::now();
  if (!shown_ || now < next_ || !(done_ > 0.0)) return;
  next_ = now + (terminal_ ? Period(then_on_terminal) : Period(in_log_every));
  const double share = std::min(1.0, done_ / std::max(total_, done_));
  const double taken_s = std::chrono::duration<double>(now - begin_).count();
  const std::string line = fmt::format("{}: {:.0f} % after {:.0f} s, {} left", what_, 100.0 * share,
                                       taken_s, format_seconds(taken_s * (1.0 / share - 1.0)));
  if (!terminal_) return log::info("{}", line);
  fmt::print(stderr, "\r\033[K{}", line);
  std::fflush(stderr);
  line_ = true;
}

}  // namespace brume
