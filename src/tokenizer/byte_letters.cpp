#include "byte_letters.hpp"

#include <unordered_map>

namespace brume::tokenizer {
namespace {

std::string utf8(unsigned code) {
  if (code < 0x80) return {char(code)};
  return {char(0xc0 | code >> 6), char(0x80 | (code & 0x3f))};  // below U+0800
}

std::array<std::string, 256> make_letters() {
  std::array<std::string, 256> letters;
  unsigned hidden = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    letters[byte] = utf8(visible ? byte : hidden++);
  }
  return letters;
}

}  // namespace

const std::array<std::string, 256>& byte_letters() {
  static const std::array<std::string, 256> letters = make_letters();
  return letters;
}

std::optional<std::string> bytes_of(std::string_view letters) {
  static const std::unordered_map<std::string_view, char> bytes = [] {
    std::unordered_map<std::string_view, char> made;
    for (unsigned byte = 0; byte < 256; ++byte) made.emplace(byte_letters()[byte], char(byte));
    return made;
  }();
  std::string found;
  while (!letters.empty()) {
    const std::size_t size = static_cast<unsigned char>(letters.front()) < 0x80 ? 1 : 2;
    const auto byte = bytes.find(letters.substr(0, size));
    if (byte == bytes.end()) return std::nullopt;
    found += byte->second;
    letters.remove_prefix(size);
  }
  return found;
}

}  // namespace brume::tokenizer
