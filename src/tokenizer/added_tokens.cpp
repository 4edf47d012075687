#include "added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "unicode.hpp"

namespace brume::tokenizer {

void AddedTokens::add(Token added) {
  const std::string& text = added.text;
  if (text.empty()) return;
  std::vector<Token>& list = by_first_byte_[static_cast<unsigned char>(text.front())];
  if (list.empty()) first_bytes_ += text.front();
  const auto place = std::ranges::find_if(
      list, [&](const Token& token) { return token.text.size() < text.size(); });
  list.insert(place, std::move(added));
}

AddedTokens::Found AddedTokens::find(std::string_view text, std::size_t from) const {
  const std::size_t first = from;
  for (;;) {
    const std::size_t at = text.find_first_of(first_bytes_, from);
    if (at == std::string_view::npos) return {text.size(), 0, -1};
    const std::vector<Token>& list = by_first_byte_[static_cast<unsigned char>(text[at])];
    const auto token = std::ranges::find_if(
        list, [&](const Token& known) { return text.substr(at).starts_with(known.text); });
    from = at + 1;
    if (token == list.end()) continue;
    const std::string_view before = text.substr(0, at),
                           after = text.substr(at + token->text.size());
    from = text.size() - after.size();
    if (token->between_words && (ends_with_word(before) || begins_with_word(after))) continue;
    const std::size_t begin =
        token->takes_space_before ? at - trailing_space_bytes(before.substr(first)) : at;
    const std::size_t end = from + (token->takes_space_after ? leading_space_bytes(after) : 0);
    return {begin, end - begin, token->id};
  }
}

}  // namespace brume::tokenizer
