/// @file The deck that arguments of Megatron-LM describe.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "given_arguments.hpp"

namespace brume::interop {

/// The deck that arguments describe, as text.
class DeckText {
 public:
  DeckText(GivenArguments& given, std::vector<std::string>& notes) : given_(given), notes_(notes) {
    add_model();
    add_training();
    add_cluster();
    text_ += "data.train = \"data/train.tok\"\n";
  }
  const std::string& text() const { return text_; }

 private:
  /// A line "key = value", with quotes round a text.
  template <class T>
  void line(const char* key, const T& value) {
    if constexpr (std::is_convertible_v<T, std::string>)
      text_ += fmt::format("{} = \"{}\"\n", key, value);
    else
      text_ += fmt::format("{} = {}\n", key, value);
  }

  /// The line where the argument is there. @param usual  where it is not; none: the deck's
  template <class T>
  void line(const char* key, const char* name, T least, std::optional<T> usual = std::nullopt) {
    const std::optional<T> value = given_.number<T>(name, least);
    if (value || usual) line(key, value ? *value : *usual);
  }

  void add_family();
  void add_model();
  /// Its norms of latent features are --qk-layernorm.
  void add_latent();
  void add_router(int experts_per_token);
  void add_experts();
  /// 1, or a list with a number for each layer, 0 for one without experts.
  void add_dense_layers();
  void add_training();
  /// The learning rate over the steps.
  void add_rate(int steps, const auto& iterations);
  void add_cluster();
  GivenArguments& given_;
  std::vector<std::string>& notes_;
  std::string text_;
};

}  // namespace brume::interop
