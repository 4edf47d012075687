/// @file What a text becomes before it is cut.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace brume::tokenizer {

/// The normalizer of a tokenizer.json: steps, one after the other.
class Normalizer {
 public:
  /// @throws Error(input) for a kind of step that is not supported
  Normalizer(const nlohmann::json& normalizer, const std::string& where);

  /// @param text  valid UTF-8; nothing stays nothing
  std::string apply(std::string_view text) const;
  bool changes_nothing() const { return steps_.empty(); }

 private:
  enum class Kind { compose, prepend, replace };
  struct Step {
    Kind kind;
    std::string text;     ///< what is put before the text, or replaced in it
    std::string by = {};  ///< what takes its place
  };

  void add(const nlohmann::json& step, const std::string& where);

  std::vector<Step> steps_;
};

}  // namespace brume::tokenizer
