#include "lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "base/error.hpp"
#include "characters.hpp"

namespace brume::chat {
namespace {

bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_figure(char c) { return c >= '0' && c <= '9'; }
bool continues_name(char c) { return begins_name(c) || is_figure(c); }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

constexpr std::array<std::string_view, 28> signs{
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]",
    "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!", "@"};

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& name) : name_(name) {
    // Valid UTF-8, in which lines end with "\n"; the last one's end does not count.
    const std::string valid = utf8(code_points(text));
    for (std::size_t i = 0; i < valid.size(); ++i) {
      if (valid[i] == '\r' && i + 1 < valid.size() && valid[i + 1] == '\n') continue;
      text_ += valid[i] == '\r' ? '\n' : valid[i];
    }
    if (text_.ends_with('\n')) text_.pop_back();
  }

  std::vector<Word> run() {
    while (at_ < text_.size()) {
      const std::size_t tag = next_tag();
      add_text(tag);
      if (at_ < text_.size()) read_tag();
    }
    words_.push_back({Word::Kind::last, "the end of the template", line_});
    return std::move(words_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(Failure::input, "{}:{}: {}", name_, line_, message);
  }

  std::string_view rest() const { return std::string_view(text_).substr(at_); }

  std::size_t next_tag() const {
    for (std::size_t i = at_; i + 1 < text_.size(); ++i)
      if (text_[i] == '{' && (text_[i + 1] == '%' || text_[i + 1] == '{' || text_[i + 1] == '#'))
        return i;
    return text_.size();
  }

  /// Moves on over characters, counting lines.
  void skip(std::size_t count) {
    line_ += int(std::count(text_.begin() + std::ptrdiff_t(at_),
                            text_.begin() + std::ptrdiff_t(at_ + count), '\n'));
    at_ += count;
  }

  /// Adds the text before a tag, less the white space that the tag removes.
  void add_text(std::size_t tag) {
    const std::size_t begin = at_;
    std::string_view found = std::string_view(text_).substr(begin, tag - begin);
    if (tag < text_.size()) {
      const char mark = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
      if (mark == '-') {
        found.remove_suffix(trailing_space_bytes(found));
      } else if (mark != '+' && text_[tag + 1] != '{') {
        const std::size_t line = found.rfind('\n') + 1;  // npos + 1 is 0
        const bool line_begins = line > 0 || begin == 0 || text_[begin - 1] == '\n';
        if (line_begins && leading_space_bytes(found.substr(line)) == found.size() - line)
          found = found.substr(0, line);
      }
    }
    if (!found.empty()) words_.push_back({Word::Kind::text, std::string(found), line_});
    skip(tag - begin);
  }

  /// Removes white space behind a tag: with '-' all of it, else one end of a line, but not
  /// behind a variable or with '+'.
  void after_tag(char mark, bool variable) {
    if (mark == '-')
      skip(leading_space_bytes(rest()));
    else if (mark != '+' && !variable && rest().starts_with('\n'))
      skip(1);
  }

  void read_tag() {
    if (text_[at_ + 1] == '#') return read_comment();
    const bool variable = text_[at_ + 1] == '{';
    const int line = line_;
    const std::size_t begin = at_;
    skip(2);
    if (rest().starts_with('-') || rest().starts_with('+')) skip(1);
    if (!variable && read_raw(begin)) return;
    words_.push_back({Word::Kind::begin, variable ? "{{" : "{%", line_});
    const std::string_view end = variable ? "}}" : "%}";
    std::string open;  // brackets within the tag
    for (;;) {
      while (at_ < text_.size() && is_blank(text_[at_])) skip(1);
      if (at_ == text_.size()) {
        line_ = line;
        fail(fmt::format("this tag has no end '{}'", end));
      }
      const bool marked = rest().starts_with('-') || rest().starts_with('+');
      if (open.empty() && rest().substr(marked && rest().size() > 1 ? 1 : 0).starts_with(end)) {
        const char mark = marked ? text_[at_] : ' ';
        words_.push_back({Word::Kind::end, std::string(end), line_});
        skip(marked ? 3 : 2);
        return after_tag(mark, variable);
      }
      read_word(open);
    }
  }

  void read_comment() {
    const std::size_t end = text_.find("#}", at_ + 2);
    if (end == text_.npos) fail("this comment has no end '#}'");
    const char mark = end > at_ + 3 ? text_[end - 1] : ' ';
    skip(end + 2 - at_);
    after_tag(mark, false);
  }

  /// Reads a raw block, if this is one.
  bool read_raw(std::size_t begin) {
    const auto tag_end = [&](std::size_t at, std::string_view word) -> std::optional<std::size_t> {
      while (at < text_.size() && is_blank(text_[at])) ++at;
      if (!std::string_view(text_).substr(at).starts_with(word)) return std::nullopt;
      at += word.size();
      while (at < text_.size() && is_blank(text_[at])) ++at;
      if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) ++at;
      if (!std::string_view(text_).substr(at).starts_with("%}")) return std::nullopt;
      return at + 2;
    };
    const std::optional<std::size_t> inside = tag_end(at_, "raw");
    if (!inside) return false;
    for (std::size_t tag = text_.find("{%", *inside); tag != text_.npos;
         tag = text_.find("{%", tag + 2)) {
      std::size_t word = tag + 2;
      if (word < text_.size() && (text_[word] == '-' || text_[word] == '+')) ++word;
      const std::optional<std::size_t> end = tag_end(word, "endraw");
      if (!end) continue;
      skip(*inside - at_);
      after_tag(text_[at_ - 3], true);
      if (at_ <= tag) add_text(tag);
      skip(*end - at_);
      after_tag(text_[at_ - 3], false);
      return true;
    }
    at_ = begin;
    fail("this block has no end 'endraw'");
  }

  void read_word(std::string& open) {
    const std::size_t begin = at_;
    const char first = text_[at_];
    const auto word = [&](Word::Kind kind, std::size_t end) {
      words_.push_back({kind, text_.substr(begin, end - begin), line_});
      skip(end - begin);
    };
    if (first == '"' || first == '\'') return read_string(first);
    if (begins_name(first)) {
      std::size_t end = begin;
      while (end < text_.size() && continues_name(text_[end])) ++end;
      return word(Word::Kind::name, end);
    }
    if (is_figure(first)) return read_number();
    const auto sign =
        std::ranges::find_if(signs, [&](std::string_view one) { return rest().starts_with(one); });
    if (sign == signs.end())
      fail(fmt::format("unexpected character '{}'",
                       utf8(code_points(rest().substr(0, 4)).substr(0, 1))));
    if (*sign == "(" || *sign == "[" || *sign == "{") open += first;
    if (*sign == ")" || *sign == "]" || *sign == "}") {
      const char partner = first == ')' ? '(' : first == ']' ? '[' : '{';
      if (open.empty() || open.back() != partner) fail(fmt::format("unexpected '{}'", first));
      open.pop_back();
    }
    word(Word::Kind::sign, begin + sign->size());
  }

  void read_number() {
    const std::size_t begin = at_;
    std::size_t end = begin;
    const auto figures = [&] {
      while (end < text_.size() && (is_figure(text_[end]) || text_[end] == '_')) ++end;
    };
    figures();
    bool whole = true;
    if (end + 1 < text_.size() && text_[end] == '.' && is_figure(text_[end + 1])) {
      whole = false;
      ++end;
      figures();
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (exponent < text_.size() && is_figure(text_[exponent])) {
        whole = false;
        end = exponent;
        figures();
      }
    }
    std::string text = text_.substr(begin, end - begin);
    std::erase(text, '_');
    words_.push_back({whole ? Word::Kind::whole : Word::Kind::number, std::move(text), line_});
    skip(end - begin);
  }

  /// A string, with the escapes of Python.
  void read_string(char mark) {
    const int line = line_;
    std::string made;
    for (std::size_t i = at_ + 1; i < text_.size(); ++i) {
      if (text_[i] == mark) {
        words_.push_back({Word::Kind::string, std::move(made), line});
        return skip(i + 1 - at_);
      }
      if (text_[i] != '\\' || i + 1 == text_.size()) {
        made += text_[i];
        continue;
      }
      const char escaped = text_[++i];
      constexpr std::string_view letters = "\\'\"abfnrtv", meanings = "\\'\"\a\b\f\n\r\t\v";
      if (const std::size_t known = letters.find(escaped); known != letters.npos)
        made += meanings[known];
      else if (escaped == 'x' || escaped == 'u' || escaped == 'U')
        made += by_number(i, escaped == 'x' ? 2 : escaped == 'u' ? 4 : 8);
      else if (escaped >= '0' && escaped <= '7')
        made += by_octal(i);
      else if (escaped != '\n')
        made.append({'\\', escaped});
    }
    line_ = line;
    fail("this string has no end");
  }

  /// The character whose number follows in figures of base 16.
  std::string by_number(std::size_t& at, std::size_t count) const {
    char32_t point = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const char figure = at + 1 < text_.size() ? text_[at + 1] : ' ';
      if (std::isxdigit(static_cast<unsigned char>(figure)) == 0)
        fail("a character's number has too few figures");
      point = point * 16 + char32_t(is_figure(figure) ? figure - '0' : (figure | 0x20) - 'a' + 10);
      ++at;
    }
    if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
      fail("a character's number is too large, or half of a pair");
    return utf8({&point, 1});
  }

  std::string by_octal(std::size_t& at) const {
    char32_t point = char32_t(text_[at] - '0');
    for (int i = 0; i < 2 && at + 1 < text_.size(); ++i) {
      const char figure = text_[at + 1];
      if (figure < '0' || figure > '7') break;
      point = point * 8 + char32_t(figure - '0');
      ++at;
    }
    return utf8({&point, 1});
  }

  const std::string& name_;
  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Word> words_;
};

}  // namespace

std::vector<Word> words_of(std::string_view text, const std::string& name) {
  return Lexer(text, name).run();
}

}  // namespace brume::chat
