/// @file Statements of templates, parsed.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "parser.hpp"

namespace brume::chat {
Statement Parser::run() {
  Statement all = block({});
  if (word().kind != Word::Kind::last) fail(fmt::format("unexpected '{}'", words_[at_ + 1].text));
  return all;
}

Statement Parser::block(const std::vector<std::string_view>& ends) {
  const Nested nested(*this);
  std::vector<Statement> made;
  for (;;) {
    if (word().kind == Word::Kind::last) break;
    if (word().kind == Word::Kind::text) {
      made.push_back([text = word().text](Run& run) {
        run.write(text);
        return Flow::on;
      });
      ++at_;
      continue;
    }
    if (word().text == "{{") {
      const int line = words_[at_++].line;
      made.push_back([line, value = tuple_or_expression()](Run& run) {
        run.step(line);
        run.write(value(run).str());
        return Flow::on;
      });
      need_end();
      continue;
    }
    const std::string& tag = words_[at_ + 1].text;
    if (std::ranges::find(ends, tag) != ends.end() || tag.starts_with("end") || tag == "else" ||
        tag == "elif")
      break;
    made.push_back(statement());
  }
  return [made = std::move(made)](Run& run) {
    for (const Statement& one : made)
      if (const Flow flow = one(run); flow != Flow::on) return flow;
    return Flow::on;
  };
}

Statement Parser::body(const char* end) {
  need_end();
  Statement made = block({end});
  if (!take_tag(end)) fail_here(fmt::format("'{}'", end));
  need_end();
  return made;
}

/// Takes the beginning of a tag with that name.
bool Parser::take_tag(std::string_view tag) {
  const bool here = word().kind == Word::Kind::begin && words_[at_ + 1].text == tag;
  at_ += here ? 2 : 0;
  return here;
}

/// The rest of a statement that may have an `else`; none: it has not.
Statement Parser::otherwise_until(const char* end) {
  if (take_tag("else")) return body(end);
  if (!take_tag(end)) fail_here(fmt::format("'{}'", end));
  need_end();
  return {};
}

Statement Parser::statement() {
  const int line = word().line;
  ++at_;
  const std::string tag = word().kind == Word::Kind::name ? word().text : std::string();
  const auto one = [&](auto parse) -> Statement {
    ++at_;
    return [line, made = (this->*parse)()](Run& run) {
      run.step(line);
      return made(run);
    };
  };
  if (tag == "if") return one(&Parser::if_statement);
  if (tag == "for") return one(&Parser::for_statement);
  if (tag == "set") return one(&Parser::set_statement);
  if (tag == "macro") return one(&Parser::macro_statement);
  if (tag == "call") return one(&Parser::call_statement);
  if (tag == "filter") return one(&Parser::filter_statement);
  if (tag == "with") return one(&Parser::with_statement);
  if (tag == "generation") return one(&Parser::generation_statement);
  if (tag == "break" || tag == "continue") {
    if (loops_ == 0) fail(fmt::format("'{}' is in no loop", tag));
    ++at_;
    need_end();
    return [flow = tag == "break" ? Flow::leave : Flow::again](Run&) { return flow; };
  }
  fail(tag.empty() ? "this tag has no name" : fmt::format("the tag '{}' is not supported", tag));
}

Statement Parser::if_statement() {
  std::vector<std::pair<Expression, Statement>> cases;
  do {
    Expression condition = tuple_or_expression();
    need_end();
    Statement then = block({"elif", "else", "endif"});
    cases.emplace_back(std::move(condition), std::move(then));
  } while (take_tag("elif"));
  Statement otherwise = otherwise_until("endif");
  return [cases = std::move(cases), otherwise = std::move(otherwise)](Run& run) {
    for (const auto& [condition, then] : cases)
      if (condition(run).truth()) return then(run);
    return otherwise ? otherwise(run) : Flow::on;
  };
}

Statement Parser::set_statement() {
  std::vector<std::string> variables = targets();
  std::string attribute;
  if (variables.size() == 1 && take_sign(".")) attribute = name();
  Expression value;
  if (take_sign("=")) {
    value = tuple_or_expression();
    need_end();
  } else {
    std::vector<Step> steps;
    filters(steps);
    Statement inside = outside_loops([&] { return body("endset"); });
    value = chain(capture(std::move(inside)), std::move(steps));
  }
  return [variables = std::move(variables), attribute, value = std::move(value)](Run& run) {
    Value made = value(run);
    if (attribute.empty()) {
      assign(run, variables, std::move(made));
      return Flow::on;
    }
    const Value* found = run.scope->find(variables.front());
    const auto* object = found ? found->object() : nullptr;
    require(object && (*object)->is_namespace, Failure::input, "'{}' is no namespace",
            variables.front());
    (*object)->attributes.put(attribute, std::move(made));
    return Flow::on;
  };
}

/// The output of a block as a value.
Expression Parser::capture(Statement inside) {
  return [inside = std::move(inside)](Run& run) -> Value {
    return run.captured([&] { inside(run); });
  };
}

Statement Parser::filter_statement() {
  std::vector<Step> steps{filter()};
  filters(steps);
  Statement inside = outside_loops([&] { return body("endfilter"); });
  return [value = chain(capture(std::move(inside)), std::move(steps))](Run& run) {
    run.write(value(run).str());
    return Flow::on;
  };
}

Statement Parser::with_statement() {
  std::vector<std::pair<std::string, Expression>> variables;
  while (word().kind != Word::Kind::end) {
    if (!variables.empty()) need_sign(",");
    std::string variable = name();
    need_sign("=");
    variables.emplace_back(std::move(variable), expression());
  }
  Statement inside = body("endwith");
  return [variables = std::move(variables), inside = std::move(inside)](Run& run) {
    std::vector<Value> values;
    for (const auto& [variable, value] : variables) values.push_back(value(run));
    Flow flow = Flow::on;
    run.within_scope([&] {
      for (std::size_t i = 0; i < values.size(); ++i) run.scope->set(variables[i].first, values[i]);
      flow = inside(run);
    });
    return flow;
  };
}

Statement Parser::generation_statement() {
  Statement inside = body("endgeneration");
  return [inside = std::move(inside)](Run& run) {
    const std::size_t begin = run.rendered.text.size();
    Flow flow = Flow::on;
    const bool outermost = !std::exchange(run.generates, true);
    run.within_scope([&] { flow = inside(run); });
    if (outermost) run.generates = false;
    if (outermost && !run.captures())
      run.rendered.generated.push_back({begin, run.rendered.text.size()});
    return flow;
  };
}

}  // namespace brume::chat
