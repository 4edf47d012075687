#include "normalizer.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "json_text.hpp"
#include "unicode.hpp"

namespace brume::tokenizer {

Normalizer::Normalizer(const nlohmann::json& normalizer, const std::string& where) {
  if (!normalizer.is_null()) add(normalizer, where);
}

void Normalizer::add(const nlohmann::json& step, const std::string& where) {
  const std::string type = text_at(step, "type");
  if (type == "Sequence") {
    const auto parts = step.find("normalizers");
    require(parts != step.end() && parts->is_array(), Failure::input,
            "{}: Sequence has no list 'normalizers'", where);
    for (const nlohmann::json& part : *parts) add(part, where);
  } else if (type == "NFC") {
    steps_.push_back({Kind::compose, ""});
  } else if (type == "Prepend") {
    steps_.push_back({Kind::prepend, text_at(step, "prepend")});
  } else if (type == "Replace") {
    const auto pattern = step.find("pattern");
    const std::string from = pattern != step.end() ? text_at(*pattern, "String") : "";
    require(!from.empty(), Failure::input,
            "{}: the normalizer Replace is supported for a String only", where);
    steps_.push_back({Kind::replace, from, text_at(step, "content")});
  } else {
    throw Error(Failure::input, "{}: the normalizer \"{:.200}\" is not supported", where, type);
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string made(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::compose: made = composed(made); break;
      case Kind::prepend:
        if (!made.empty()) made.insert(0, step.text);
        break;
      case Kind::replace: made = replaced(made, step.text, step.by); break;
    }
  }
  return made;
}

}  // namespace brume::tokenizer
