/// @file Tokens that files beside a tokenizer's own add to it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace brume::tokenizer {

/// A token that Transformers adds to a tokenizer, if it does not have it.
struct CompanionToken {
  std::string where;  ///< the file that names it
  std::string content;
  nlohmann::json token;            ///< with its flags, as in a tokenizer.json
  std::optional<std::int32_t> id;  ///< if the file says it
  bool decides = false;            ///< its flags count, not those in the tokenizer's file
};

/// Tokens of tokenizer_config.json, and of added_tokens.json and special_tokens_map.json if the
/// first one has no added_tokens_decoder, in the order in which they are added.
/// @source  transformers 5.24, tokenization_utils_base.py, _from_pretrained()
/// @throws Error(input) for a file that is there and cannot be read
std::vector<CompanionToken> companion_tokens(const std::filesystem::path& folder);

}  // namespace brume::tokenizer
