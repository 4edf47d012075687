#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "budget.hpp"
#include "library.hpp"
#include "parser.hpp"

namespace brume::chat {
namespace {
constexpr int deepest_rule = 64;
}

Parser::Parser(std::vector<Word> words, const std::string& name)
    : words_(std::move(words)), name_(name) {}

Parser::Nested::Nested(Parser& of) : parser(of) {
  if (++parser.depth_ <= deepest_rule) return;
  --parser.depth_;
  parser.fail(fmt::format("is nested more than {} deep", deepest_rule));
}

bool Parser::is_sign(std::string_view text) const {
  return word().kind == Word::Kind::sign && word().text == text;
}

bool Parser::is_name(std::string_view text) const {
  return word().kind == Word::Kind::name && word().text == text;
}

bool Parser::take_sign(std::string_view text) {
  const bool here = is_sign(text);
  at_ += here ? 1 : 0;
  return here;
}

bool Parser::take_name(std::string_view text) {
  const bool here = is_name(text);
  at_ += here ? 1 : 0;
  return here;
}

void Parser::need_sign(std::string_view text) {
  if (!take_sign(text)) fail_here(fmt::format("'{}'", text));
}

void Parser::need_name(std::string_view text) {
  if (!take_name(text)) fail_here(fmt::format("'{}'", text));
}

void Parser::need_end() {
  if (word().kind != Word::Kind::end) fail_here("the end of the tag");
  ++at_;
}

std::string Parser::name() {
  if (word().kind != Word::Kind::name) fail_here("a name");
  return words_[at_++].text;
}

void Parser::fail(const std::string& message) const {
  throw Error(Failure::input, "{}:{}: {}", name_, word().line, message);
}

void Parser::fail_here(std::string_view expected) const {
  const bool tag = word().kind == Word::Kind::begin;
  fail(fmt::format("expected {}, found '{:.40}'", expected, words_[at_ + (tag ? 1 : 0)].text));
}

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

/// Parses a block in which a loop around it cannot be left.
Statement Parser::outside_loops(const std::function<Statement()>& parse) {
  const int loops = std::exchange(loops_, 0);
  Statement made = parse();
  loops_ = loops;
  return made;
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

std::vector<std::string> Parser::targets() {
  std::vector<std::string> found;
  const bool bracketed = take_sign("(");
  do {
    if (!found.empty() && word().kind != Word::Kind::name) break;
    found.push_back(name());
  } while (take_sign(","));
  if (bracketed) need_sign(")");
  return found;
}

namespace {

/// Gives variables the value, or its items where they are several.
void assign(Run& run, const std::vector<std::string>& targets, Value value) {
  if (targets.size() == 1) return run.scope->set(targets.front(), std::move(value));
  std::vector<Value> items = value.items();
  require(items.size() == targets.size(), Failure::input, "{} values for {} variables",
          items.size(), targets.size());
  for (std::size_t i = 0; i < items.size(); ++i) run.scope->set(targets[i], std::move(items[i]));
}

/// The variable `loop` at an item.
/// @param last  the arguments of loop.changed() before
Value loop_at(const std::vector<Value>& items, std::size_t i, const std::shared_ptr<Value>& last) {
  const auto count = std::ssize(items), index = std::int64_t(i);
  auto loop = std::make_shared<Object>();
  Dict& named = loop->attributes;
  named.put("index", index + 1);
  named.put("index0", index);
  named.put("revindex", count - index);
  named.put("revindex0", count - index - 1);
  named.put("first", i == 0);
  named.put("last", index == count - 1);
  named.put("length", count);
  named.put("depth", 1);
  named.put("depth0", 0);
  if (i > 0) named.put("previtem", items[i - 1]);
  if (index + 1 < count) named.put("nextitem", items[i + 1]);
  named.put("cycle", Function{"cycle", [i](Run&, const Arguments& given) -> Value {
                                require(!given.positional.empty(), Failure::input,
                                        "loop.cycle needs a value");
                                return given.positional[i % given.positional.size()];
                              }});
  // Were the arguments held here, they could hold this function.
  named.put(
      "changed",
      Function{"changed", [before = std::weak_ptr(last)](Run&, const Arguments& given) -> Value {
                 const auto held = before.lock();
                 if (!held) return true;
                 const Value now = Value::list(given.positional);
                 return now != std::exchange(*held, now);
               }});
  return loop;
}

}  // namespace

Statement Parser::for_statement() {
  std::vector<std::string> variables = targets();
  need_name("in");
  Expression values = or_expression();
  Expression condition = take_name("if") ? expression() : Expression();
  if (is_name("recursive")) fail("recursive loops are not supported");
  need_end();
  ++loops_;
  Statement turn = block({"else", "endfor"});
  --loops_;
  Statement otherwise = otherwise_until("endfor");
  return [variables = std::move(variables), values = std::move(values),
          condition = std::move(condition), turn = std::move(turn),
          otherwise = std::move(otherwise), line = word().line](Run& run) {
    std::vector<Value> items = values(run).items();
    if (condition)
      std::erase_if(items, [&](const Value& item) {
        bool stays = false;
        run.step(line);
        run.within_scope([&] {
          assign(run, variables, item);
          stays = condition(run).truth();
        });
        return !stays;
      });
    const auto last = std::make_shared<Value>();
    bool any_ended = false;  // as Jinja has it, else is for loops without a whole turn
    for (std::size_t i = 0; i < items.size(); ++i) {
      Flow flow = Flow::on;
      run.step(line);
      run.within_scope([&] {
        assign(run, variables, items[i]);
        run.scope->set("loop", loop_at(items, i, last));
        flow = turn(run);
      });
      if (flow == Flow::leave) break;
      any_ended = any_ended || flow == Flow::on;
    }
    return !any_ended && otherwise ? otherwise(run) : Flow::on;
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
