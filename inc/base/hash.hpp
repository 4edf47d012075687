/// @file Hashes of texts and of numbers, against accidents.
#pragma once

#include <cstddef>
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

/// The hash of several numbers, from that of all but the last one.
constexpr std::size_t hash_with(std::size_t sum, std::size_t number) {
  sum = (sum ^ number) * 0x9E3779B97F4A7C15u;
  return sum ^ sum >> 32;
}

}  // namespace brume
