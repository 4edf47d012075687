#include "base/progress.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace brume {
namespace {

using namespace std::chrono_literals;

/// What work says on standard error: a terminal, or a pipe.
std::string said(bool terminal, const std::function<void()>& work) {
  std::array<int, 2> ends{-1, -1};  // read, written
  if (terminal) {
    ends[0] = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (ends[0] < 0 || ::grantpt(ends[0]) != 0 || ::unlockpt(ends[0]) != 0) return "no terminal";
    ends[1] = ::open(::ptsname(ends[0]), O_RDWR | O_NOCTTY);
  } else if (::pipe(ends.data()) != 0) {
    return "no pipe";
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    // It may not be mistaken for a rank that mpirun started on somebody's terminal.
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"}) ::unsetenv(name);
    work();
    std::_Exit(0);
  }
  ::waitpid(child, nullptr, 0);
  std::string text;
  pollfd waiting{ends[0], POLLIN, 0};
  std::array<char, 4096> buffer{};
  while (::poll(&waiting, 1, 100) > 0 && (waiting.revents & POLLIN) != 0) {
    const ssize_t bytes = ::read(ends[0], buffer.data(), buffer.size());
    if (bytes <= 0) break;
    text.append(buffer.data(), std::size_t(bytes));
  }
  ::close(ends[0]);
  ::close(ends[1]);
  return text;
}

/// Four parts of work, a pause before each.
void work(std::chrono::milliseconds pause, bool shown = true) {
  Progress progress("reading the weights", 8.0, shown);
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(pause);
    progress.add(2.0);
  }
}

TEST(Progress, IsALineOfATerminalThatGoes) {
  const std::string text = said(true, [] { work(300ms); });
  const std::string line =
      "\r\x1b\\[Kreading the weights: ([0-9]+) % after [0-9]+ s, [0-9.]+ m?s left";
  std::vector<std::string> shares;
  const std::regex each(line);
  for (std::sregex_iterator at(text.begin(), text.end(), each), end; at != end; ++at)
    shares.push_back((*at)[1]);
  // A machine that much else shares may say a quarter, too, or leave one out.
  const std::vector<std::string> quarters{"25", "50", "75", "100"};
  ASSERT_GE(shares.size(), 2u) << text;
  EXPECT_EQ(shares.back(), "100") << text;
  std::size_t next = 0;
  for (const std::string& share : shares) {
    while (next < quarters.size() && quarters[next] != share) ++next;
    EXPECT_LT(next++, quarters.size()) << text;
  }
  EXPECT_TRUE(text.ends_with("left\r\x1b[K")) << text;
  EXPECT_TRUE(std::regex_match(text, std::regex("(" + line + ")+\r\x1b\\[K"))) << text;
}

TEST(Progress, ShortWorkAndOtherRanksSayNothing) {
  // Within half a second, which a busy machine may need several tries for.
  std::string text = "none";
  for (int i = 0; i < 20 && !text.empty(); ++i) text = said(true, [] { work(1ms); });
  EXPECT_EQ(text, "");
  EXPECT_EQ(said(true, [] { work(200ms, false); }), "");
}

// In a log a line each 30 s would be said, none of them of a second's work.
TEST(Progress, FillsNoLogs) {
  EXPECT_EQ(said(false, [] { work(300ms); }), "");
}

}  // namespace
}  // namespace brume
