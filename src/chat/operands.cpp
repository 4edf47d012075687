/// @file Operands of templates: constants, lists, items, calls, filters and tests, parsed.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "library.hpp"
#include "parser.hpp"

namespace brume::chat {

Expression Parser::primary() {
  const Word& here = words_[at_++];
  const auto constant = [](Value value) -> Expression {
    return [value = std::move(value)](Run&) { return value; };
  };
  switch (here.kind) {
    case Word::Kind::string: {
      std::string text = here.text;
      while (word().kind == Word::Kind::string) text += words_[at_++].text;
      return constant(std::move(text));
    }
    case Word::Kind::whole: {
      std::int64_t number = 0;
      const char* end = here.text.data() + here.text.size();
      if (std::from_chars(here.text.data(), end, number).ec != std::errc())
        fail(fmt::format("the number {} has more than 64 bits", here.text));
      return constant(number);
    }
    case Word::Kind::number: {
      const double number = std::strtod(here.text.c_str(), nullptr);
      return constant(number);
    }
    case Word::Kind::name: {
      if (here.text == "true" || here.text == "True") return constant(true);
      if (here.text == "false" || here.text == "False") return constant(false);
      if (here.text == "none" || here.text == "None") return constant(None{});
      return [name = here.text](Run& run) {
        const Value* found = run.scope->find(name);
        return found ? *found : Value(Undefined{fmt::format("'{}' is undefined", name)});
      };
    }
    case Word::Kind::sign: {
      if (here.text == "[") return list_until("]", false);
      if (here.text == "{") return dictionary();
      if (here.text != "(") break;
      if (take_sign(")")) return constant(Value::list({}, true));
      Expression first = expression();
      if (take_sign(")")) return first;
      need_sign(",");
      return list_until(")", true, {std::move(first)});
    }
    default: break;
  }
  --at_;
  fail_here("a value");
}

/// Items up to the closing bracket, behind some first ones.
Expression Parser::list_until(std::string_view end, bool tuple, std::vector<Expression> first) {
  std::vector<Expression> all = std::move(first);
  while (!take_sign(end)) {
    all.push_back(expression());
    if (!is_sign(end)) need_sign(",");
  }
  return list_of(std::move(all), tuple);
}

Expression Parser::dictionary() {
  std::vector<std::pair<Expression, Expression>> all;
  while (!take_sign("}")) {
    Expression key = expression();
    need_sign(":");
    all.emplace_back(std::move(key), expression());
    if (!is_sign("}")) need_sign(",");
  }
  return [all = std::move(all)](Run& run) -> Value {
    Dict made;
    for (const auto& [key, value] : all) {
      Value at = key(run);
      made.put(std::move(at), value(run));
    }
    return made;
  };
}

void Parser::postfix(std::vector<Step>& steps) {
  for (;;) {
    if (take_sign(".")) {
      if (word().kind == Word::Kind::whole) {
        const std::int64_t index = std::strtoll(words_[at_++].text.c_str(), nullptr, 10);
        steps.push_back([index](Run&, const Value& value) { return item(value, index); });
      } else {
        steps.push_back([key = name()](Run&, const Value& value) { return attribute(value, key); });
      }
    } else if (take_sign("[")) {
      steps.push_back(subscript());
    } else if (take_sign("(")) {
      steps.push_back([given = arguments(), line = word().line](Run& run, const Value& value) {
        run.step(line);
        return run.call(value, given(run));
      });
    } else {
      return;
    }
  }
}

Parser::Step Parser::subscript() {
  std::vector<Expression> parts;  // of a slice; an empty one is left out
  for (;;) {
    parts.push_back(is_sign(":") || is_sign("]") ? Expression() : expression());
    if (take_sign("]")) break;
    need_sign(":");
    if (parts.size() == 3) fail("a slice has three parts");
  }
  if (parts.size() == 1) {
    if (!parts.front()) fail("expected a key");
    return [key = std::move(parts.front())](Run& run, const Value& value) {
      return item(value, key(run));
    };
  }
  parts.resize(3);
  return [parts = std::move(parts)](Run& run, const Value& value) {
    const auto part = [&](std::size_t i) { return parts[i] ? parts[i](run) : Value(None{}); };
    return slice(value, part(0), part(1), part(2));
  };
}

Parser::Call Parser::arguments() {
  std::vector<std::pair<std::string, Expression>> all;
  while (!take_sign(")")) {
    if (is_sign("*") || is_sign("**")) fail("arguments with '*' are not supported");
    std::string key;
    const Word& next = words_[std::min(at_ + 1, words_.size() - 1)];
    if (word().kind == Word::Kind::name && next.kind == Word::Kind::sign && next.text == "=") {
      key = name();
      ++at_;
    }
    all.emplace_back(std::move(key), expression());
    if (!is_sign(")")) need_sign(",");
  }
  return [all = std::move(all)](Run& run) {
    Arguments made;
    for (const auto& [key, value] : all)
      if (key.empty())
        made.positional.push_back(value(run));
      else
        made.named.emplace_back(key, value(run));
    return made;
  };
}

void Parser::filters(std::vector<Step>& steps) {
  for (;;) {
    if (take_sign("|"))
      steps.push_back(filter());
    else if (take_name("is"))
      steps.push_back(test());
    else if (is_sign("("))
      postfix(steps);
    else
      return;
  }
}

Parser::Step Parser::filter() {
  const std::string called = name();
  const Filter found = find_filter(called);
  if (found == nullptr) fail(fmt::format("the filter '{}' is not supported", called));
  Call given = take_sign("(") ? arguments() : Call();
  return [found, given = std::move(given), line = word().line](Run& run, const Value& value) {
    run.step(line);
    return found(run, value, given ? given(run) : Arguments());
  };
}

Parser::Step Parser::test() {
  const bool negated = take_name("not");
  const std::string called = name();
  const Test found = find_test(called);
  if (found == nullptr) fail(fmt::format("the test '{}' is not supported", called));
  Call given;
  const auto begins_value = [&] {
    switch (word().kind) {
      case Word::Kind::name:
        return std::ranges::none_of(
            std::initializer_list<std::string_view>{"else", "or", "and", "if", "in", "not", "is"},
            [&](std::string_view one) { return is_name(one); });
      case Word::Kind::string:
      case Word::Kind::whole:
      case Word::Kind::number: return true;
      default: return is_sign("[") || is_sign("{");
    }
  };
  if (take_sign("(")) {
    given = arguments();
  } else if (begins_value()) {
    Expression first = primary();
    std::vector<Step> steps;
    postfix(steps);
    given = [value = chain(std::move(first), std::move(steps))](Run& run) {
      return Arguments{.positional = {value(run)}, .named = {}};
    };
  }
  return [found, negated, given = std::move(given)](Run& run, const Value& value) -> Value {
    return found(value, given ? given(run) : Arguments()) != negated;
  };
}

}  // namespace brume::chat
