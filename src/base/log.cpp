#include "base/log.hpp"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/terminal.hpp"
#include "base/text.hpp"

namespace brume::log {
namespace {
bool asked_verbose = false;
bool is_leader = true;

/// The text of a message as it stands on a terminal. In a file sentences stay whole, to be found.
class Message : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const std::string lines = terminal::watched(STDERR_FILENO)
                                  ? wrapped(text, terminal::columns(STDERR_FILENO))
                                  : std::string(text);
    out.append(lines.data(), lines.data() + lines.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Message>();
  }
};

/// Takes a line of progress away that stands where a message begins.
class ClearLine : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&, spdlog::memory_buf_t& out) override {
    constexpr std::string_view clear = "\r\033[K";
    if (terminal::watched(STDERR_FILENO)) out.append(clear.data(), clear.data() + clear.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<ClearLine>();
  }
};

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
  auto pattern = std::make_unique<spdlog::pattern_formatter>();
  pattern->add_flag<ClearLine>('&').add_flag<Message>('*').set_pattern(
      rank == 0 || size == 1 ? "%&%^%*%$" : fmt::format("%&%^rank {}: %*%$", rank));
  spdlog::set_formatter(std::move(pattern));
  spdlog::set_level(rank != 0 ? spdlog::level::warn
                    : verbose ? spdlog::level::debug
                              : spdlog::level::info);
}

bool verbose() { return asked_verbose; }

bool leads() { return is_leader; }

}  // namespace brume::log
