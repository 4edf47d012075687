/// @file A hash of texts, against accidents.
#pragma once

#include <cstdint>
#include <string_view>

namespace brume {

/// 64-bit FNV-1a over fields of text.
class Fnv1a {
 public:
  void add(std::string_view text) {
    for (unsigned char c : text) hash_ = (hash_ ^ c) * 0x100000001B3u;
    hash_ = (hash_ ^ 0xFFu) * 0x100000001B3u;  // ends a field: no text holds this byte
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325u;
};

}  // namespace brume
