/// @file Templates of chats, in the language of Jinja.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace brume::chat {

inline constexpr std::size_t largest_template_bytes = std::size_t{1} << 20;

/// Bytes [begin, end) of a text.
struct Span {
  std::size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

/// The text that a template makes.
struct Rendered {
  std::string text;
  std::vector<Span> generated;  ///< text of `generation` blocks, which a model answers with
};

/// A template as Transformers renders it: Jinja with trim_blocks, lstrip_blocks, loop controls,
/// `generation` blocks and a tojson that writes what Python's json.dumps writes, without a way to
/// files or other templates. Missing are recursive loops, arguments with stars, format
/// specifications, whole numbers beyond 64 bits, and filters and methods that chats do not need.
///
/// A template may come from anybody: its time, its memory and the depth of its calls are limited.
class Template {
 public:
  /// @param name  for messages
  /// @throws Error(input) naming the line for a text that is no template
  Template(std::string_view text, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  /// @param values  an object: the template's variables
  /// @throws Error(input) naming the line, also where the template itself raises an exception
  Rendered render(const nlohmann::ordered_json& values) const;

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace brume::chat
