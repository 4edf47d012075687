#include "deck/node.hpp"

// toml++ is compiled here and nowhere else. Its assertions abort on some broken inputs, so they
// throw instead, which only a header-only build can do: a distribution's shared library has them
// built in.
#undef NDEBUG
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#define TOML_MAX_NESTED_VALUES 64
#define TOML_ASSERT(holds) ((holds) ? void() : ::brume::deck::give_up(#holds))

#include <stdexcept>

namespace brume::deck {
namespace {
struct ParserAssertion : std::logic_error {
  using std::logic_error::logic_error;
};
[[noreturn]] void give_up(const char* broken) { throw ParserAssertion(broken); }
}  // namespace
}  // namespace brume::deck

#include <toml++/toml.h>

#include <algorithm>
#include <vector>

#include "base/error.hpp"

namespace brume::deck {
namespace {

constexpr int max_depth = 64;
// toml++ looks through all its implicit tables for each header and dotted key.
constexpr int max_tables = 1 << 16;
constexpr int max_values = 1 << 20;  // keeps the tree of any text below about half a GiB

/// Walks over TOML without understanding it and refuses what toml++ is not safe with: it nests a
/// table per part of a dotted key, without limit, and frees them by recursion; it takes quadratic
/// time in tables; and its test for spaces is undefined for most characters outside ASCII.
class Guard {
 public:
  Guard(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  void check() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark
    while (at_ < text_.size()) step(text_[at_]);
  }

 private:
  void step(char c) {
    if (c == '"' || c == '\'') {
      if (!begins_) fail(at_, "a quote within a word");  // where toml++ sees no string
      return skip_string(c);
    }
    if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
      return;
    }
    check_ascii(at_);
    if (c == '.' && ++dots_ >= max_depth) fail(at_, "a key of more than 64 parts");
    if ((c == '=' && dots_ > 0) || (c == '[' && line_is_blank_)) ++tables_;
    if (c == '=' || c == ',') ++values_;
    if (values_ > max_values) fail(at_, "more than 1048576 values");
    if (tables_ > max_tables) fail(at_, "more than 65536 tables and dotted keys");
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) dots_ = 0;
    if (c != ' ' && c != '\t' && c != '\r')
      begins_ = std::string_view("=,[{.\n").find(c) != std::string_view::npos;
    line_is_blank_ = c == '\n' || (line_is_blank_ && (c == ' ' || c == '\t'));
    ++at_;
  }

  void skip_string(char quote) {
    line_is_blank_ = begins_ = false;
    const std::string block(3, quote);
    const bool is_block = text_.substr(at_, 3) == block;
    const std::string_view closing = std::string_view(block).substr(0, is_block ? 3 : 1);
    at_ += closing.size();
    while (at_ < text_.size() && !text_.substr(at_).starts_with(closing)) {
      if (text_[at_] == '\n' && !is_block) return;
      at_ = text_[at_] == '\\' && quote == '"' ? after_backslash() : at_ + 1;
    }
    at_ = std::min(at_ + closing.size(), text_.size());
    // A block may end in up to two quotes of its own.
    for (int i = 0; is_block && i < 2 && at_ < text_.size() && text_[at_] == quote; ++i) ++at_;
  }

  /// A backslash at the end of a line takes the spaces that follow with it.
  std::size_t after_backslash() const {
    const std::size_t next = std::min(text_.find_first_not_of(" \t\r\n", at_ + 1), text_.size());
    if (next < text_.size()) check_ascii(next);
    return next == at_ + 1 ? at_ + 2 : next;
  }

  void check_ascii(std::size_t at) const {
    if (static_cast<unsigned char>(text_[at]) >= 0x80)
      fail(at, "a character that TOML takes inside quotes only");
  }

  [[noreturn]] void fail(std::size_t at, const char* what) const {
    const std::string_view before = text_.substr(0, at);
    const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    throw Error(Failure::input, "{}:{}:{}: {}", origin_, std::ranges::count(before, '\n') + 1,
                at - line_start + 1, what);
  }

  std::string_view text_;
  const std::string& origin_;
  std::size_t at_ = 0;
  int dots_ = 0;
  int tables_ = 0;
  int values_ = 0;
  bool line_is_blank_ = true;
  bool begins_ = true;  ///< a word or a string, here
};

Place place_of(const toml::source_region& source) {
  return {source.begin.line, source.begin.column};
}

struct Converter {
  const std::string& origin;

  Document::Node convert(const toml::node& from, int depth) const {
    using Node = Document::Node;
    const Place place = place_of(from.source());
    require(depth <= max_depth, Failure::input, "{}:{}:{}: nested more than {} deep", origin,
            place.line, place.column, max_depth);
    Node to{.key = "", .value = Node::Time{}, .place = place};
    if (const auto* table = from.as_table()) to.value = Node::Table{items(*table, depth)};
    if (const auto* list = from.as_array()) to.value = Node::List{items(*list, depth)};
    if (const auto* text = from.as_string()) to.value = text->get();
    if (const auto* whole = from.as_integer()) to.value = whole->get();
    if (const auto* real = from.as_floating_point()) to.value = real->get();
    if (const auto* truth = from.as_boolean()) to.value = truth->get();
    return to;
  }

  std::vector<Document::Node> items(const toml::array& list, int depth) const {
    std::vector<Document::Node> out;
    for (const toml::node& item : list) out.push_back(convert(item, depth + 1));
    return out;
  }

  std::vector<Document::Node> items(const toml::table& table, int depth) const {
    std::vector<Document::Node> out;
    for (const auto& [key, item] : table) {
      out.push_back(convert(item, depth + 1));
      out.back().key = std::string(key.str());
      out.back().key_place = place_of(key.source());
    }
    const auto stands = [](const Document::Node& node) {
      return std::pair(node.key_place.line, node.key_place.column);
    };
    std::ranges::sort(out, {}, stands);
    return out;
  }
};

std::string reworded(std::string_view description) {
  if (description.starts_with("Error while parsing "))
    description.remove_prefix(std::min(description.find(": ") + 2, description.size()));
  std::string text(description);
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  if (text.starts_with("cannot redefine existing")) text = "doubled key: " + text;
  return text;
}

bool breaks_parser(std::string_view text) {
  try {
    (void)toml::parse(text);
  } catch (const toml::parse_error&) {
  } catch (const ParserAssertion&) {
    return true;
  }
  return false;
}

/// The first line with which the text makes toml++ give up: it reads on from there no further.
std::ptrdiff_t broken_line(std::string_view text) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n') ends.push_back(i + 1);
  const auto holds = [&](std::size_t end) { return !breaks_parser(text.substr(0, end)); };
  return std::ranges::partition_point(ends, holds) - ends.begin() + 1;
}

}  // namespace

Document::Node parse_toml(std::string_view text, const std::string& origin) {
  require(text.size() <= max_bytes, Failure::input, "{}: is larger than 16 MiB", origin);
  Guard(text, origin).check();
  try {
    return Converter{origin}.convert(toml::parse(text), 0);
  } catch (const toml::parse_error& error) {
    const Place at = place_of(error.source());
    throw Error(Failure::input, "{}:{}:{}: {}", origin, at.line, at.column,
                reworded(error.description()));
  } catch (const ParserAssertion&) {
    throw Error(Failure::input, "{}:{}: is not TOML", origin, broken_line(text));
  }
}

}  // namespace brume::deck
