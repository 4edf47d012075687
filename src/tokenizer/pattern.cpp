#define PCRE2_CODE_UNIT_WIDTH 8
#include "pattern.hpp"

#include <pcre2.h>

#include <array>
#include <new>

#include "base/error.hpp"

namespace brume::tokenizer {
namespace {

/// White space as Unicode has it; PCRE2's own \s also takes U+180E.
constexpr std::string_view white_space = R"(\t-\r\x{85}\p{Z})";

/// Translates what both libraries know, and refuses what they may read in two ways.
class Translation {
 public:
  Translation(std::string_view onig, const std::string& where) : rest_(onig), where_(where) {}

  std::string run() {
    while (!rest_.empty()) next();
    return std::move(pcre_);
  }

 private:
  void next() {
    const char c = rest_.front();
    if (c == '\\')
      escape();
    else if (in_class_)
      class_member(c);
    else if (c == '(')
      group();
    else if (c == '^' || c == '$' || rest_.starts_with("{,"))
      refuse(1);
    else
      take(1);
    if (c == '[' && pcre_.back() == '[') begin_class();
  }

  void begin_class() {
    in_class_ = true;
    if (rest_.starts_with('^')) take(1);
    if (rest_.starts_with(']')) refuse(1);
  }

  void class_member(char c) {
    if (c == '[' || rest_.starts_with("&&")) refuse(2);
    take(1);
    if (c == ']') in_class_ = false;
  }

  void group() {
    for (const std::string_view known : {"(?:", "(?i:", "(?!", "(?="})
      if (rest_.starts_with(known)) return take(known.size());
    if (rest_.starts_with("(?")) refuse(3);
    take(1);
  }

  void escape() {
    if (rest_.size() < 2) refuse(1);
    const char c = rest_[1];
    if (c == 's')
      return put(in_class_ ? std::string(white_space) : fmt::format("[{}]", white_space));
    if (c == 'S' && !in_class_) return put(fmt::format("[^{}]", white_space));
    if (c == 'd') return put(R"(\p{Nd})");
    if (c == 'p' || c == 'P') return category();
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    const bool other = static_cast<unsigned char>(c) >= 0x80;
    if (other || (letter && c != 'r' && c != 'n' && c != 't')) refuse(2);
    take(2);
  }

  /// A general category: \p{L}, \p{Lu}, or negated.
  void category() {
    const std::size_t end = rest_.find('}');
    if (rest_.size() < 5 || rest_[2] != '{' || (end != 4 && end != 5) ||
        std::string_view("CLMNPSZ").find(rest_[3]) == std::string_view::npos)
      refuse(end == std::string_view::npos ? 2 : end + 1);
    take(end + 1);
  }

  void put(const std::string& text) {
    pcre_ += text;
    rest_.remove_prefix(2);
  }
  void take(std::size_t size) {
    pcre_ += rest_.substr(0, size);
    rest_.remove_prefix(size);
  }
  [[noreturn]] void refuse(std::size_t size) const {
    throw Error(Failure::input, "{}: the pattern has '{}', which is not supported", where_,
                rest_.substr(0, size));
  }

  std::string_view rest_;
  const std::string& where_;
  std::string pcre_;
  bool in_class_ = false;
};

}  // namespace

void Pattern::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void Pattern::Free::operator()(pcre2_real_match_data_8* data) const { pcre2_match_data_free(data); }

Pattern::Pattern(std::string_view onig, const std::string& where) {
  const std::string pcre = Translation(onig, where).run();
  int error = 0;
  std::size_t at = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context != nullptr) pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, context));
  pcre2_compile_context_free(context);
  if (!code_) {
    std::array<char, 256> said{};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(said.data()), said.size());
    throw Error(Failure::input, "{}: the pattern '{:.200}' is refused: {}", where, onig,
                said.data());
  }
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower, no more
  data_.reset(pcre2_match_data_create(1, nullptr));
  if (!data_) throw std::bad_alloc();
}

Pattern::Match Pattern::find(std::string_view text, std::size_t from) const {
  const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                from, PCRE2_NO_UTF_CHECK, data_.get(), nullptr);
  if (found == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
  require(found >= 0, Failure::resource,
          "a text of {} bytes is too long for its pattern (PCRE2: {})", text.size(), found);
  const std::size_t* range = pcre2_get_ovector_pointer(data_.get());
  return {range[0], range[1]};
}

}  // namespace brume::tokenizer
