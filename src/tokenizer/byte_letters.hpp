/// @file The letters that stand for bytes in vocabularies of byte-level encodings.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace brume::tokenizer {

/// The letter of each byte, in UTF-8: itself where it is visible in Latin-1, else U+0100 and on in
/// order.
/// @source  GPT-2, encoder.py
const std::array<std::string, 256>& byte_letters();

/// The bytes that a word of letters stands for; none when another character is among them.
std::optional<std::string> bytes_of(std::string_view letters);

}  // namespace brume::tokenizer
