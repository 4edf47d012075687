#include "budget.hpp"

#include "base/error.hpp"

namespace brume::chat {
namespace {
constexpr std::size_t all_bytes = std::size_t{1} << 30, longest_text = std::size_t{1} << 26;
thread_local std::size_t charged_bytes = 0;
}  // namespace

void begin_budget() { charged_bytes = 0; }

void charge(std::size_t bytes) {
  charged_bytes += bytes;
  require(charged_bytes <= all_bytes, Failure::input,
          "the template takes too long or too much memory");
}

void require_size(std::size_t bytes) {
  require(bytes <= longest_text, Failure::input, "a text has more than {} bytes", longest_text);
}

}  // namespace brume::chat
