#include "budget.hpp"

#include "base/error.hpp"

namespace brume::chat {
namespace {
constexpr std::size_t least_bytes = std::size_t{1} << 28, times_input = 64;
constexpr std::size_t longest_text = std::size_t{1} << 26;
thread_local std::size_t charged_bytes = 0, most_bytes = least_bytes;
}  // namespace

void begin_budget() {
  charged_bytes = 0;
  most_bytes = least_bytes;
}

void end_input() { most_bytes = least_bytes + times_input * charged_bytes; }

void charge(std::size_t bytes) {
  charged_bytes += bytes;
  require(charged_bytes <= most_bytes, Failure::input,
          "the template takes too long or too much memory");
}

void require_size(std::size_t bytes) {
  require(bytes <= longest_text, Failure::input, "a text has more than {} bytes", longest_text);
}

}  // namespace brume::chat
