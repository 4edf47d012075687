#include "cutter.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "byte_letters.hpp"
#include "json_text.hpp"
#include "unicode.hpp"

namespace brume::tokenizer {
namespace {

using nlohmann::json;

/// @source  GPT-2, encoder.py
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view digit = R"(\p{N})";
/// Unicode 8's, as the reference library has it: all but what lies in ranges where later versions
/// added some and version 8 had none, with two that are none any more. In one class with ASCII's.
/// @source  the Unicode Character Database, DerivedAge.txt and DerivedGeneralCategory.txt
constexpr std::string_view punctuation =
    R"([\p{P}\x{166d}\x{111c9}$+<=>\^`|~&&[^\x{61d}\x{9fd}-\x{a76}\x{c77}-\x{c84})"
    R"(\x{1b4e}-\x{1b4f}\x{1b7d}-\x{1b7f}\x{2e43}-\x{2e5d}\x{10d6e}-\x{10f89}\x{113d4}-\x{1145d})"
    R"(\x{11660}-\x{116b9}\x{1183b}-\x{11fff}\x{12ff1}-\x{12ff2}\x{16d6d}-\x{16fe2})"
    R"(\x{1e5ff}-\x{1e95f}]])";

/// A string as a pattern that matches it.
std::string quoted(const std::string& plain) {
  std::string pattern;
  for (const char c : plain) {
    if (std::string_view("\\^$.[]|()?*+{}").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::string pattern_of(const json& step, const std::string& where) {
  const auto found = step.find("pattern");
  const bool object = found != step.end() && found->is_object();
  const std::string regex = object ? text_at(*found, "Regex") : "";
  const std::string plain = object ? text_at(*found, "String") : "";
  require(!regex.empty() || !plain.empty(), Failure::input, "{}: Split has no pattern", where);
  return regex.empty() ? quoted(plain) : regex;
}

}  // namespace

Cutter::Cutter(const json& pre_tokenizer, const std::string& where) {
  if (!pre_tokenizer.is_null()) add(pre_tokenizer, where);
  require(!metaspace_ || (steps_.empty() && !to_letters_), Failure::input,
          "{}: the pre_tokenizer Metaspace is supported alone only", where);
}

void Cutter::add_pattern(std::string_view pattern, const std::string& where, Behavior behavior) {
  steps_.push_back({Pattern(pattern, where), behavior, to_letters_});
}

/// @source  tokenizers, pre_tokenizers/metaspace.rs
void Cutter::add_metaspace(const json& step, const std::string& where) {
  const std::string letter = text_at(step, "replacement"), scheme = text_at(step, "prepend_scheme");
  const bool always =
      scheme.empty() && (!step.contains("add_prefix_space") || is_on(step, "add_prefix_space"));
  require(!letter.empty() && letter.size() == character_bytes(letter), Failure::input,
          "{}: Metaspace has no letter as 'replacement'", where);
  require(!metaspace_, Failure::input, "{}: has Metaspace twice, which is not supported", where);
  using Prepend = Metaspace::Prepend;
  metaspace_ = {.letter = letter,
                .prepend = scheme == "first"              ? Prepend::first
                           : scheme == "always" || always ? Prepend::always
                                                          : Prepend::never,
                .cuts = !step.contains("split") || is_on(step, "split")};
}

void Cutter::add(const json& step, const std::string& where) {
  require(step.is_object(), Failure::input, "{}: a pre_tokenizer must be an object", where);
  const std::string type = text_at(step, "type");
  const std::string behavior = text_at(step, "behavior");
  if (type == "Sequence") {
    const auto parts = step.find("pretokenizers");
    require(parts != step.end() && parts->is_array(), Failure::input,
            "{}: Sequence has no list 'pretokenizers'", where);
    for (const json& part : *parts) add(part, where);
  } else if (type == "ByteLevel") {
    require(!is_on(step, "add_prefix_space"), Failure::input,
            "{}: ByteLevel with add_prefix_space is not supported", where);
    require(!to_letters_, Failure::input, "{}: has ByteLevel twice, which is not supported", where);
    const bool plain = step.contains("use_regex") && !is_on(step, "use_regex");
    if (!plain) add_pattern(gpt2_pattern, where);
    to_letters_ = true;
  } else if (type == "Digits") {
    add_pattern(std::string(digit) + (is_on(step, "individual_digits") ? "" : "+"), where);
  } else if (type == "Punctuation") {
    require(behavior == "Isolated" || behavior == "Contiguous", Failure::input,
            "{}: Punctuation with the behavior '{:.200}' is not supported", where, behavior);
    add_pattern(std::string(punctuation) + (behavior == "Isolated" ? "" : "+"), where);
  } else if (type == "Split") {
    // Inverted, the same pieces change their roles, and both are kept.
    const bool previous = behavior == "MergedWithPrevious", next = behavior == "MergedWithNext";
    require(behavior == "Isolated" || ((previous || next) && !is_on(step, "invert")),
            Failure::input, "{}: Split with the behavior '{:.200}' is not supported", where,
            behavior);
    add_pattern(pattern_of(step, where), where,
                previous ? Behavior::merged_with_previous
                : next   ? Behavior::merged_with_next
                         : Behavior::isolated);
  } else if (type == "Metaspace") {
    add_metaspace(step, where);
  } else {
    throw Error(Failure::input, "{}: the pre_tokenizer '{:.200}' is not supported", where, type);
  }
}

void Cutter::cut(std::string_view text, bool begins, const Use& use) const {
  if (!metaspace_) return cut(text, std::size_t{0}, use);
  const auto& [letter, prepend, cuts] = *metaspace_;
  std::string all = replaced(text, " ", letter);
  const bool wanted =
      prepend == Metaspace::Prepend::always || (prepend == Metaspace::Prepend::first && begins);
  if (wanted && !all.starts_with(letter)) all.insert(0, letter);
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t end = cuts ? rest.find(letter, letter.size()) : std::string_view::npos;
    use(rest.substr(0, end));
    rest.remove_prefix(std::min(end, rest.size()));
  }
}

void Cutter::cut(std::string_view text, std::size_t number, const Use& use) const {
  if (text.empty()) return;
  if (number == steps_.size()) return use(text);
  const Step& step = steps_[number];
  std::string letters;
  if (step.sees_letters)
    for (const char c : text) letters += byte_letters()[static_cast<unsigned char>(c)];
  const std::string_view seen = step.sees_letters ? std::string_view(letters) : text;

  // A letter is a byte, so where a piece of letters ends follows from their number.
  const auto next = [&](std::size_t begin, std::size_t end) {
    const std::string_view part = seen.substr(begin, end - begin);
    const std::size_t bytes =
        step.sees_letters
            ? std::size_t(std::ranges::count_if(part, [](char c) { return (c & 0xc0) != 0x80; }))
            : part.size();
    cut(text.substr(0, bytes), number + 1, use);
    text.remove_prefix(bytes);
  };
  std::size_t begin = 0;  // of the next piece
  std::optional<std::size_t> last;
  for (std::size_t at = 0; at <= seen.size();) {
    const std::optional<Pattern::Match> match = step.pattern.find(seen, at);
    if (!match) break;
    if (match->begin == match->end && match->end == last) {  // nothing, where a match ended
      at += at < seen.size() ? character_bytes(seen.substr(at)) : 1;
      continue;
    }
    if (step.behavior != Behavior::merged_with_previous)
      next(begin, match->begin), begin = match->begin;
    if (step.behavior != Behavior::merged_with_next) next(begin, match->end), begin = match->end;
    at = match->end;
    last = at;
  }
  next(begin, seen.size());
}

}  // namespace brume::tokenizer
