/// @file The hash of a manifest, which is within its text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace brume::io {

inline constexpr const char* hash_key = "manifest_xxh3_128";
inline constexpr std::size_t hash_digits = 32;

/// Where the text of a manifest has its own hash.
struct OwnHash {
  std::size_t begin;   ///< of the key
  std::size_t digits;  ///< first of the value's
  std::size_t end;     ///< behind the comma that follows
};

/// @throws Error(storage) where there is none
OwnHash find_own_hash(std::string_view text);

/// Hash of a manifest: of its text without spaces between tokens, its own hash left out.
std::string hash_of(std::string_view text, const OwnHash& own);

}  // namespace brume::io
