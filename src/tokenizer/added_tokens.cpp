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

AddedTokens::Found AddedTokens::find(std::string_view text) const {
  for (std::size_t at = text.find_first_of(first_bytes_); at != std::string_view::npos;
       at = text.find_first_of(first_bytes_, at + 1))
    for (const Token& token : by_first_byte_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(token.text)) {
        const std::size_t after = at + token.text.size();
        const std::size_t begin =
            token.takes_space_before ? at - trailing_space_bytes(text.substr(0, at)) : at;
        const std::size_t end =
            token.takes_space_after ? after + leading_space_bytes(text.substr(after)) : after;
        return {begin, end - begin, token.id};
      }
  return {text.size(), 0, -1};
}

}  // namespace brume::tokenizer
