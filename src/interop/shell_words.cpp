#include "shell_words.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <span>

namespace brume::interop {
namespace {

bool is_name_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Words that begin or end what a shell may leave out, or do several times.
constexpr std::string_view opening[] = {"if", "case", "for", "while", "until"};
constexpr std::string_view closing[] = {"fi", "esac", "done"};
/// Words after which a command begins, and those that a test begins with.
constexpr std::string_view leading[] = {"if",    "then", "elif", "else", "while",
                                        "until", "do",   "{",    "!"};
constexpr std::string_view testing[] = {"[", "[[", "test"};

class Reader {
 public:
  explicit Reader(std::string_view script) : rest_(script) {}

  ShellScript read() && {
    while (!rest_.empty()) next();
    end_word();
    return std::move(script_);
  }

 private:
  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  void next() {
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
    } else if (is_space(c)) {
      if (quote_ != '\0' && name_length() > 0)
        word_ += c;
      else
        end_word();
      if (quote_ == '\0' && c == '\n') end_command();
    } else if (quote_ == '\0' && std::string_view("();|&<>").find(c) != std::string_view::npos) {
      end_word();
      if (c == '<' || c == '>') return;
      const bool doubled = (c == '&' || c == '|') && rest_.starts_with(c);
      const bool tested = doubled && (test_ || after_test_);
      if (c != '(') end_command();
      after_test_ = after_test_ || tested;
      if (doubled) take();
    } else {
      word_ += c;
    }
  }

  static bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

  /// Of the name that the word assigns to; 0: it does not.
  std::size_t name_length() const {
    const auto end = std::ranges::find_if_not(word_, is_name_character);
    return end != word_.end() && *end == '=' ? std::size_t(end - word_.begin()) : 0;
  }

  /// Parts words where a shell does.
  void put(std::string_view value) {
    constexpr std::size_t longest = std::size_t{1} << 20;  // values that double each other
    for (const char c : value) {
      if (is_space(c) && name_length() == 0)
        end_word();
      else if (word_.size() < longest)
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
      if (variables_.contains(name))
        put_value(name);
      else if (dash != std::string_view::npos)
        put(inner.substr(dash + 2));
      else
        word_ += "${" + name + "}";
      return;
    }
    const auto end = std::ranges::find_if_not(rest_, is_name_character);
    const std::string name(rest_.begin(), end);
    rest_.remove_prefix(name.size());
    if (variables_.contains(name))
      put_value(name);
    else
      word_ += "$" + name;
  }

  void put_value(const std::string& name) {
    const std::set<std::string>& values = variables_.at(name);
    if (values.size() == 1) return put(*values.begin());
    script_.ambiguous[name] = values;
    word_ += "$" + name;
  }

  bool in_branch() const { return depth_ > 0 || after_test_; }
  static bool is_in(std::span<const std::string_view> words, std::string_view word) {
    return std::ranges::count(words, word) > 0;
  }

  void end_word() {
    if (word_.empty()) return;
    const std::size_t length = name_length();
    if (length > 0) {
      std::set<std::string>& values = variables_[word_.substr(0, length)];
      if (!in_branch()) values.clear();
      values.insert(word_.substr(length + 1));
    } else {
      if (first_ && is_in(opening, word_)) ++depth_;
      if (first_ && is_in(closing, word_)) depth_ = std::max(0, depth_ - 1);
      if (first_) test_ = is_in(testing, word_);
      script_.words.push_back({word_, in_branch()});
    }
    first_ = first_ && is_in(leading, word_);
    word_.clear();
  }

  void end_command() {
    first_ = true;
    test_ = after_test_ = false;
  }

  std::string_view rest_;
  char quote_ = '\0';                       ///< within which the next character is
  std::string word_;                        ///< that has begun
  bool first_ = true;                       ///< it is the first one of its command
  int depth_ = 0;                           ///< branches and loops around it
  bool test_ = false, after_test_ = false;  ///< its command is one; follows one by && or ||
  std::map<std::string, std::set<std::string>> variables_;
  ShellScript script_;
};

}  // namespace

ShellScript shell_script(std::string_view script) { return Reader(script).read(); }

}  // namespace brume::interop
