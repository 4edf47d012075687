#include "added_tokens.hpp"

#include <algorithm>
#include <utility>

namespace brume::tokenizer {

void AddedTokens::add(std::string text, std::int32_t id) {
  if (text.empty()) return;
  std::vector<Token>& list = by_first_byte_[static_cast<unsigned char>(text.front())];
  if (list.empty()) first_bytes_ += text.front();
  const auto place = std::ranges::find_if(
      list, [&](const Token& token) { return token.text.size() < text.size(); });
  list.insert(place, {std::move(text), id});
}

AddedTokens::Found AddedTokens::find(std::string_view text) const {
  for (std::size_t at = text.find_first_of(first_bytes_); at != std::string_view::npos;
       at = text.find_first_of(first_bytes_, at + 1))
    for (const Token& token : by_first_byte_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(token.text)) return {at, token.text, token.id};
  return {text.size(), {}, -1};
}

}  // namespace brume::tokenizer
