/// @file The hash of a manifest, which is within its text.
#include "manifest_hash.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "deck/json.hpp"
#include "files.hpp"

namespace brume::io {

OwnHash find_own_hash(std::string_view text) {
  const auto token = [&](std::size_t from) {
    return std::min(text.find_first_not_of(deck::json_spaces, from), text.size());
  };
  const std::string key = nlohmann::json(hash_key).dump();
  const std::size_t begin = text.find(key);
  require(begin != text.npos, Failure::storage, "is damaged: it has no hash of its own");
  const std::size_t digits = token(token(begin + key.size()) + 1) + 1;
  const std::size_t end = token(digits + hash_digits + 1) + 1;
  require(end <= text.size(), Failure::storage, "is damaged: it ends in its own hash");
  return {begin, digits, end};
}

std::string hash_of(std::string_view text, const OwnHash& own) {
  Hasher hasher;
  std::size_t begin = 0;  // of what is to be hashed
  const auto leave_out = [&](std::size_t from, std::size_t end) {
    hasher.add(as_bytes(text.substr(begin, from - begin)));
    begin = end;
  };
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i == own.begin) {
      leave_out(i, own.end);
      i = own.end - 1;
    } else if (quoted) {
      if (text[i] == '\\')
        ++i;
      else
        quoted = text[i] != '"';
    } else if (text[i] == '"') {
      quoted = true;
    } else if (deck::json_spaces.find(text[i]) != text.npos) {
      leave_out(i, i + 1);
    }
  }
  leave_out(text.size(), text.size());
  return hasher.digest().hash;
}

}  // namespace brume::io
