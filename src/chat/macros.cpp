/// @file Macros, and calls of them with a block.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "parser.hpp"

namespace brume::chat {

std::vector<Parser::Parameter> Parser::parameters() {
  std::vector<Parameter> found;
  need_sign("(");
  while (!take_sign(")")) {
    if (!found.empty()) need_sign(",");
    if (!found.empty() && take_sign(")")) break;
    Parameter& one = found.emplace_back(Parameter{name()});
    if (take_sign("=")) one.otherwise = expression();
  }
  return found;
}

Expression Parser::macro(const std::string& name, std::vector<Parameter> parameters,
                         Statement body) {
  struct Macro {
    std::string name;
    std::vector<Parameter> parameters;
    Statement body;

    Value call(Run& run, const Arguments& given, std::shared_ptr<Scope> around) const {
      const std::size_t count = parameters.size();
      for (const auto& argument : given.named)
        require(
            argument.first == "caller" ||
                std::ranges::find(parameters, argument.first, &Parameter::name) != parameters.end(),
            Failure::input, "the macro '{}' has no parameter '{}'", name, argument.first);
      require(given.positional.size() <= count, Failure::input,
              "the macro '{}' has {} parameters, found {} arguments", name, count,
              given.positional.size());
      const auto value_of = [&](std::size_t i) -> Value {
        const Parameter& one = parameters[i];
        if (const Value* found = given.find(i, one.name)) return *found;
        if (one.otherwise) return one.otherwise(run);
        return Undefined{fmt::format("parameter '{}' is missing", one.name)};
      };
      return run.captured(
          [&] {
            for (std::size_t i = 0; i < count; ++i) run.scope->set(parameters[i].name, value_of(i));
            if (const Value* caller = given.find(count, "caller"))
              run.scope->set("caller", *caller);
            body(run);
          },
          std::move(around));
    }
  };
  return [made = std::make_shared<const Macro>(
              Macro{name, std::move(parameters), std::move(body)})](Run& defining) -> Value {
    // Were the scope held here, it could hold this macro.
    return Function{made->name, [made, around = std::weak_ptr(defining.scope)](
                                    Run& run, const Arguments& given) {
                      return made->call(run, given, around.lock());
                    }};
  };
}

Statement Parser::macro_statement() {
  std::string named = name();
  std::vector<Parameter> list = parameters();
  Statement inside = outside_loops([&] { return body("endmacro"); });
  return [named, make = macro(named, std::move(list), std::move(inside))](Run& run) {
    run.scope->set(named, make(run));
    return Flow::on;
  };
}

Statement Parser::call_statement() {
  std::vector<Parameter> list = is_sign("(") ? parameters() : std::vector<Parameter>();
  Expression callee = primary();
  std::vector<Step> steps;
  while (is_sign(".") || is_sign("[")) postfix(steps);
  need_sign("(");
  Call given = arguments();
  Statement inside = outside_loops([&] { return body("endcall"); });
  return [callee = chain(std::move(callee), std::move(steps)), given = std::move(given),
          caller = macro("caller", std::move(list), std::move(inside))](Run& run) {
    Arguments with_caller = given(run);
    with_caller.named.emplace_back("caller", caller(run));
    run.write(run.call(callee(run), with_caller).str());
    return Flow::on;
  };
}

}  // namespace brume::chat
