/// @file Regular expressions over UTF-8.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace brume::tokenizer {

/// A pattern in the syntax of Oniguruma, which the reference library uses, as far as it has the
/// same meaning here; not for several threads at once.
class Pattern {
 public:
  /// @throws Error(input) that names what is not supported, after `where`
  Pattern(std::string_view onig, const std::string& where);

  struct Match {
    std::size_t begin, end;
  };
  /// The first match in valid UTF-8 from byte `from` on; begin is the text's size when there is
  /// none. @throws Error(resource) when the text needs more memory than matching may take
  Match find(std::string_view text, std::size_t from) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
    void operator()(pcre2_real_match_data_8* data) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
};

}  // namespace brume::tokenizer
