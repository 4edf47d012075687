#include "base/terminal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/text.hpp"

namespace brume::terminal {
namespace {

/// Calls with a descriptor of the terminal, where there is one.
template <typename Ask>
bool ask(int descriptor, Ask&& of_terminal) {
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr)
    return ::isatty(descriptor) == 1 && of_terminal(descriptor);
  // Ranks have pipes or terminals of mpirun's own making.
  const std::string launchers = fmt::format("/proc/{}/fd/{}", ::getppid(), descriptor);
  const int opened = ::open(launchers.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) return false;
  const bool answer = ::isatty(opened) == 1 && of_terminal(opened);
  ::close(opened);
  return answer;
}

}  // namespace

bool watched(int descriptor) {
  return ask(descriptor, [](int) { return true; });
}

std::string printable(std::string_view text) {
  std::string shown;
  if (!watched(STDOUT_FILENO)) return shown.append(text);
  for (const char c : text)
    if (const auto byte = static_cast<unsigned char>(c);
        byte >= 0x20 ? byte != 0x7F : c == '\n' || c == '\t')
      shown += c;
  return shown;
}

std::size_t columns(int descriptor) {
  constexpr std::size_t least = 60;
  winsize size{};
  const bool known = ask(descriptor, [&](int terminal) {
    return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  });
  return known ? std::max<std::size_t>(size.ws_col, least) : usual_columns;
}

}  // namespace brume::terminal
