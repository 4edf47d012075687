#include "scheme.hpp"

#include "base/error.hpp"

namespace brume::tokenizer {

const std::string& Scheme::text(std::int32_t token) const {
  require(has(token), Failure::input, "token {} is none of the tokenizer's", token);
  return *texts_[token];
}

bool Scheme::has(std::int32_t id) const {
  return id >= 0 && std::size_t(id) < texts_.size() && texts_[id];
}

void Scheme::add_unknown(const CompanionToken& token, const std::string& whole) {
  unknown_.add({.text = token.content, .id = std::int32_t(refusals_.size())});
  refusals_.push_back(fmt::format(
      "a text has '{:.200}', a token that {} adds to {}. Save the tokenizer by save_pretrained() "
      "of Transformers 5 and name the new tokenizer.json.",
      token.content, token.where, whole));
}

void Scheme::require_known(std::string_view text) const {
  const AddedTokens::Found found = unknown_.find(text, 0);
  require(found.bytes == 0, Failure::input, "{}", found.bytes == 0 ? "" : refusals_[found.id]);
}

void Scheme::put(std::int32_t id, const std::string& bytes) {
  if (texts_.size() <= std::size_t(id)) texts_.resize(std::size_t(id) + 1);
  texts_[id] = bytes;
}

}  // namespace brume::tokenizer
