#include "tokenizer/pattern.hpp"

#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <new>

#include "base/error.hpp"

namespace brume::tokenizer {
namespace {

const OnigUChar* bytes(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

/// @param about  of an error in a pattern
std::string reason(int error, OnigErrorInfo* about = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> said{};
  const int size = onig_error_code_to_str(said.data(), error, about);
  return {said.begin(), said.begin() + size};
}

}  // namespace

void Pattern::Free::operator()(re_pattern_buffer* code) const { onig_free(code); }
void Pattern::Free::operator()(re_registers* region) const { onig_region_free(region, 1); }

Pattern::Pattern(std::string_view pattern, const std::string& where) {
  // Once for all threads: onig_new() does it too, but without a lock.
  static const int ready = [] {
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    return onig_initialize(&utf8, 1);
  }();
  require(ready == ONIG_NORMAL, Failure::resource, "Oniguruma does not start: {}", reason(ready));
  regex_t* code = nullptr;
  OnigErrorInfo about{};
  const int error = onig_new(&code, bytes(pattern), bytes(pattern) + pattern.size(),
                             ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &about);
  require(error == ONIG_NORMAL, Failure::input, "{}: the pattern '{:.200}' is refused: {}", where,
          pattern, reason(error, &about));
  code_.reset(code);
  region_.reset(onig_region_new());
  if (!region_) throw std::bad_alloc();
}

std::optional<Pattern::Match> Pattern::find(std::string_view text, std::size_t from) const {
  // Places are of type int there, so a search sees 1 GiB before its beginning and as much after.
  constexpr std::size_t reach = std::size_t{1} << 30;
  const std::size_t first = from - std::min(from, reach);
  const std::string_view seen = text.substr(first, 2 * reach - 1);
  const OnigUChar* end = bytes(seen) + seen.size();
  const int found = onig_search(code_.get(), bytes(seen), end, bytes(seen) + (from - first), end,
                                region_.get(), ONIG_OPTION_NONE);
  if (found == ONIG_MISMATCH) return std::nullopt;
  require(found >= 0, Failure::resource, "a text of {} bytes is too long for its pattern: {}",
          text.size(), reason(found));
  return Match{first + std::size_t(region_->beg[0]), first + std::size_t(region_->end[0])};
}

}  // namespace brume::tokenizer
