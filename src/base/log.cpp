#include "base/log.hpp"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>

namespace brume::log {

void start(int rank, int size, bool verbose) {
  spdlog::set_default_logger(spdlog::stderr_color_mt(fmt::format("brume.{}", rank)));
  // Rank 0 speaks for the job; the others say who they are when something is wrong.
  spdlog::set_pattern(rank == 0 || size == 1 ? "%^%v%$" : fmt::format("%^rank {}: %v%$", rank));
  spdlog::set_level(rank != 0 ? spdlog::level::warn
                    : verbose ? spdlog::level::debug
                              : spdlog::level::info);
}

}  // namespace brume::log
