/// @file Regular expressions over UTF-8.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct re_pattern_buffer;
struct re_registers;

namespace brume::tokenizer {

/// A pattern, read and matched by Oniguruma, as the reference library does; not for several threads
/// at once.
class Pattern {
 public:
  /// @throws Error(input) after `where` for a pattern that Oniguruma refuses
  Pattern(std::string_view pattern, const std::string& where);

  struct Match {
    std::size_t begin, end;
  };
  /// The first match in valid UTF-8 from byte `from` on, which may be the text's end.
  /// @throws Error(resource) when matching needs more steps than Oniguruma allows
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  struct Free {
    void operator()(re_pattern_buffer* code) const;
    void operator()(re_registers* region) const;
  };
  std::unique_ptr<re_pattern_buffer, Free> code_;
  std::unique_ptr<re_registers, Free> region_;
};

}  // namespace brume::tokenizer
