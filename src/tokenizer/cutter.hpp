/// @file Cuts text into the pieces that are encoded one by one.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "pattern.hpp"

namespace brume::tokenizer {

/// The pre-tokenizer of a tokenizer.json: steps, each of which cuts the pieces of the one before.
class Cutter {
 public:
  /// @throws Error(input) for a kind of step, or an option of one, that is not supported
  Cutter(const nlohmann::json& pre_tokenizer, const std::string& where);

  using Use = std::function<void(std::string_view piece)>;
  /// Calls `use` with each piece of a text in valid UTF-8, in order.
  void cut(std::string_view text, const Use& use) const { cut(text, 0, use); }

 private:
  /// Matches and what lies between them are pieces of their own.
  struct Step {
    Pattern pattern;
    bool sees_letters;  ///< it stands after the step that turns bytes into letters
  };

  void add(const nlohmann::json& step, const std::string& where);
  void add_pattern(std::string_view pattern, const std::string& where);
  void cut(std::string_view text, std::size_t step, const Use& use) const;

  std::vector<Step> steps_;
  bool to_letters_ = false;
};

}  // namespace brume::tokenizer
