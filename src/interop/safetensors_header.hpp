/// @file The header of a safetensors file, from text that anybody may have made.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "interop/safetensors.hpp"

namespace brume::interop {

/// Bits of a value, for all number formats that safetensors files may hold; 0 for another word.
int dtype_bits(std::string_view dtype);

/// Reads a header and checks that its tensors fill `data_bytes` bytes that begin at byte
/// `first_byte` of the file. Memory stays within that of the tensors' names and shapes.
///
/// @throws Error(input)  with what is wrong, without the file's name
std::map<std::string, TensorEntry> parse_header(std::string_view text, std::int64_t first_byte,
                                                std::int64_t data_bytes);

}  // namespace brume::interop
