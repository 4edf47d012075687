/// @file The text of an answer, as tokens add to it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace brume::generation {

/// Bytes of an answer, up to the first stop string.
class Answer {
 public:
  /// @param stops  texts before which an answer ends, none of them empty; they live as long as the
  ///               answer
  explicit Answer(const std::vector<std::string>& stops) : stops_(&stops) {}

  /// Adds a token's bytes. @return whether a stop string came, over borders of tokens or not
  bool add(std::string_view bytes);

  const std::string& text() const { return text_; }
  /// So many first bytes stay whatever follows: not those that may begin a stop string, or a
  /// character that is not whole.
  std::size_t settled() const;

 private:
  const std::vector<std::string>* stops_;
  std::string text_;
};

}  // namespace brume::generation
