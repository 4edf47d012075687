/// @file Cuts text into the pieces that are encoded one by one.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pattern.hpp"

namespace brume::tokenizer {

/// The pre-tokenizer of a tokenizer.json: steps, each of which cuts the pieces of the one before;
/// or none; or Metaspace alone, which writes spaces as a letter.
class Cutter {
 public:
  /// @throws Error(input) for a kind of step, or an option of one, that is not supported
  Cutter(const nlohmann::json& pre_tokenizer, const std::string& where);

  using Use = std::function<void(std::string_view piece)>;
  /// Calls `use` with each piece of a text in valid UTF-8, in order.
  /// @param begins  whether nothing came before the text
  void cut(std::string_view text, bool begins, const Use& use) const;

  bool byte_level() const { return to_letters_; }

 private:
  /// Where a match belongs: it is a piece of its own, or the end or the beginning of one.
  enum class Behavior { isolated, merged_with_previous, merged_with_next };
  struct Step {
    Pattern pattern;
    Behavior behavior;
    bool sees_letters;  ///< it stands after the step that turns bytes into letters
  };

  void add(const nlohmann::json& step, const std::string& where);
  void add_pattern(std::string_view pattern, const std::string& where,
                   Behavior behavior = Behavior::isolated);
  void add_metaspace(const nlohmann::json& step, const std::string& where);
  void cut(std::string_view text, std::size_t step, const Use& use) const;

  /// Spaces become `letter`, which may also be put before a text, or before the first only; then
  /// each may begin a piece.
  struct Metaspace {
    std::string letter;
    enum class Prepend { never, first, always } prepend;
    bool cuts;
  };

  std::vector<Step> steps_;
  std::optional<Metaspace> metaspace_;
  bool to_letters_ = false;
};

}  // namespace brume::tokenizer
