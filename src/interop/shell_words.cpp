#include "shell_words.hpp"

#include <algorithm>
#include <cctype>
#include <map>

namespace brume::interop {
namespace {

bool is_name_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

class Reader {
 public:
  explicit Reader(std::string_view script) : rest_(script) {}

  std::vector<std::string> words() && {
    while (!rest_.empty()) read();
    end_word();
    return std::move(words_);
  }

 private:
  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  void read() {
    const char c = take();
    if (c == '\\') {
      if (!rest_.empty() && take() != '\n') word_ += *(rest_.data() - 1);
    } else if (quote_ != '\0' && c == quote_) {
      quote_ = '\0';
    } else if (quote_ == '\0' && (c == '"' || c == '\'')) {
      quote_ = c;
    } else if (c == '$' && quote_ != '\'') {
      put_variable();
    } else if (quote_ == '\0' && c == '#' && word_.empty()) {
      rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
    } else if (std::isspace(static_cast<unsigned char>(c)) ||
               (quote_ == '\0' && std::string_view("();|&<>").find(c) != std::string_view::npos)) {
      end_word();
    } else {
      word_ += c;
    }
  }

  /// Puts in the value of the variable whose name follows, or its name.
  void put_variable() {
    if (rest_.starts_with('{')) {
      const std::size_t end = std::min(rest_.find('}'), rest_.size());
      const std::string_view inner = rest_.substr(1, end - std::min<std::size_t>(end, 1));
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      const std::size_t dash = inner.find(":-");
      const std::string name(inner.substr(0, dash));
      if (const auto known = variables_.find(name); known != variables_.end())
        word_ += known->second;
      else if (dash != std::string_view::npos)
        word_ += inner.substr(dash + 2);
      else
        word_ += "${" + name + "}";
      return;
    }
    const auto end = std::ranges::find_if_not(rest_, is_name_character);
    const std::string name(rest_.begin(), end);
    rest_.remove_prefix(name.size());
    const auto known = variables_.find(name);
    word_ += known == variables_.end() ? "$" + name : known->second;
  }

  void end_word() {
    const auto end = std::ranges::find_if_not(word_, is_name_character);
    const bool assigns = end != word_.begin() && end != word_.end() && *end == '=';
    if (assigns)
      variables_[std::string(word_.begin(), end)] = std::string(end + 1, word_.end());
    else if (!word_.empty())
      words_.push_back(word_);
    word_.clear();
  }

  std::string_view rest_;
  char quote_ = '\0';  ///< within which the next character is
  std::string word_;   ///< that has begun
  std::map<std::string, std::string> variables_;
  std::vector<std::string> words_;
};

}  // namespace

std::vector<std::string> shell_words(std::string_view script) { return Reader(script).words(); }

}  // namespace brume::interop
