#include "signals.hpp"

#include <unistd.h>

#include <array>
#include <csignal>

#include "base/error.hpp"

namespace brume::app {
namespace {

volatile std::sig_atomic_t received = 0;  // a handler may touch nothing else
constexpr std::array stop_signals{SIGUSR1, SIGTERM, SIGINT};

void remember(int) {
  if (received) _exit(int(Failure::stopped));
  received = 1;
}

}  // namespace

Signals::Signals() {
  received = 0;
  for (int signal : stop_signals) std::signal(signal, remember);
}

Signals::~Signals() {
  for (int signal : stop_signals) std::signal(signal, SIG_DFL);
}

bool Signals::pending() const { return received != 0; }

}  // namespace brume::app
