#include "chat/template.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "budget.hpp"
#include "characters.hpp"
#include "library.hpp"
#include "parser.hpp"

namespace brume::chat {
namespace {

/// A message on one line; a template may put anything into it.
std::string one_line(std::string_view message) {
  constexpr std::size_t longest = 400;
  std::u32string points = code_points(message.substr(0, longest));
  for (char32_t& point : points)
    if (!is_printable(point)) point = U' ';
  return utf8(points) + (message.size() > longest ? "..." : "");
}

}  // namespace

struct Template::Program {
  std::string name;
  Statement body;
};

Template::Template(std::string_view text, std::string name)
    : program_(std::make_unique<Program>(Program{std::move(name), {}})) {
  begin_budget();
  require(text.size() <= largest_template_bytes, Failure::input, "{}: has more than {} bytes",
          program_->name, largest_template_bytes);
  program_->body = Parser(words_of(text, program_->name), program_->name).run();
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Rendered Template::render(const nlohmann::ordered_json& values) const {
  begin_budget();
  Run run(functions());
  try {
    for (const auto& [key, value] : values.items()) run.scope->set(key, Value::of(value));
    end_input();
    run.within_scope([&] { program_->body(run); });
  } catch (const Error& error) {
    if (error.failure() != Failure::input) throw;
    begin_budget();
    throw Error(error.failure(), "{}:{}: {}", program_->name, run.line(), one_line(error.what()));
  }
  return std::move(run.rendered);
}

}  // namespace brume::chat
