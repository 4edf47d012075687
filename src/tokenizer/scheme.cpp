#include "scheme.hpp"

#include "base/error.hpp"

namespace brume::tokenizer {

const std::string& Scheme::text(std::int32_t token) const {
  const bool known = token >= 0 && std::size_t(token) < texts_.size();
  require(known && texts_[std::size_t(token)], Failure::input,
          "token {} is none of the tokenizer's", token);
  return *texts_[std::size_t(token)];
}

void Scheme::put(std::int32_t id, const std::string& bytes) {
  if (texts_.size() <= std::size_t(id)) texts_.resize(std::size_t(id) + 1);
  texts_[std::size_t(id)] = bytes;
}

}  // namespace brume::tokenizer
