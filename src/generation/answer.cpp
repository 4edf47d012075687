#include "generation/answer.hpp"

#include <algorithm>

namespace brume::generation {

bool Answer::add(std::string_view bytes) {
  const std::size_t before = text_.size();
  text_ += bytes;
  std::size_t first = std::string::npos;
  for (const std::string& stop : *stops_) {
    const std::size_t from = before < stop.size() ? 0 : before - stop.size() + 1;
    first = std::min(first, text_.find(stop, from));
  }
  if (first == std::string::npos) return false;
  text_.resize(first);
  return true;
}

std::size_t Answer::settled() const {
  std::size_t held = 0;
  for (const std::string& stop : *stops_)
    for (std::size_t n = std::min(stop.size() - 1, text_.size()); n > held; --n)
      if (std::string_view(text_).ends_with(std::string_view(stop).substr(0, n))) held = n;
  std::size_t end = text_.size() - held;
  // Up to three bytes may begin a character of UTF-8 that goes on.
  for (std::size_t n = 1; n <= std::min<std::size_t>(3, end); ++n) {
    const auto byte = static_cast<unsigned char>(text_[end - n]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > n ? end - n : end;
  }
  return end;
}

}  // namespace brume::generation
