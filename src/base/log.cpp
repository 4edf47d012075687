#include "base/log.hpp"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace brume::log {
namespace {
bool asked_verbose = false;
bool is_leader = true;
}  // namespace

void start(int rank, int size, bool verbose) {
  asked_verbose = verbose;
  is_leader = rank == 0;
  // A logger of no registered name: a job starts its log again once it knows its rank.
  const auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  sink->set_color(spdlog::level::info, "");  // only what is wrong has a colour
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') sink->set_color_mode(spdlog::color_mode::never);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", sink));
  // Rank 0 speaks for the job; the others say who they are when something is wrong.
  spdlog::set_pattern(rank == 0 || size == 1 ? "%^%v%$" : fmt::format("%^rank {}: %v%$", rank));
  spdlog::set_level(rank != 0 ? spdlog::level::warn
                    : verbose ? spdlog::level::debug
                              : spdlog::level::info);
}

bool verbose() { return asked_verbose; }

std::size_t columns() {
  constexpr std::size_t usual = 100, least = 60;
  winsize size{};
  if (::isatty(STDERR_FILENO) == 0 || ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0) return usual;
  return size.ws_col == 0 ? usual : std::max<std::size_t>(size.ws_col, least);
}

bool leads() { return is_leader; }

}  // namespace brume::log
