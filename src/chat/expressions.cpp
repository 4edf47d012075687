/// @file Operators of templates, from the loosest to signs, parsed.
#include <algorithm>
#include <utility>

#include "budget.hpp"
#include "library.hpp"
#include "parser.hpp"
namespace brume::chat {
Expression Parser::chain(Expression first, std::vector<Step> steps) const {
  if (steps.empty()) return first;
  return [first = std::move(first), steps = std::move(steps)](Run& run) {
    Value value = first(run);
    for (const Step& step : steps) value = step(run, value);
    return value;
  };
}

/// Operators of one precedence.
Expression Parser::left_to_right(Expression (Parser::*next)(),
                                 std::vector<std::string_view> signs) {
  Expression first = (this->*next)();
  std::vector<Step> steps;
  for (;;) {
    const auto sign =
        std::ranges::find_if(signs, [&](std::string_view one) { return is_sign(one); });
    if (sign == signs.end()) return chain(std::move(first), std::move(steps));
    ++at_;
    steps.push_back([sign = *sign, other = (this->*next)()](Run& run, const Value& value) {
      return arithmetic(sign, value, other(run));
    });
  }
}

Expression Parser::list_of(std::vector<Expression> all, bool tuple) {
  return [all = std::move(all), tuple](Run& run) {
    std::vector<Value> items;
    for (const Expression& one : all) items.push_back(one(run));
    return Value::list(std::move(items), tuple);
  };
}

Expression Parser::tuple_or_expression() {
  Expression first = expression();
  if (!is_sign(",")) return first;
  std::vector<Expression> all{std::move(first)};
  while (take_sign(","))
    if (word().kind != Word::Kind::end) all.push_back(expression());
  return list_of(std::move(all), true);
}

Expression Parser::expression() {
  const Nested nested(*this);
  Expression made = or_expression();
  if (!take_name("if")) return made;
  Expression condition = or_expression();
  Expression otherwise = take_name("else") ? expression() : Expression();
  return [then = std::move(made), condition = std::move(condition),
          otherwise = std::move(otherwise)](Run& run) -> Value {
    if (condition(run).truth()) return then(run);
    return otherwise ? otherwise(run) : Value(Undefined{"the condition has no 'else'"});
  };
}

/// The first value, or else the last, whose truth is `decides`.
Expression Parser::deciding(Expression (Parser::*next)(), std::string_view word, bool decides) {
  std::vector<Expression> all{(this->*next)()};
  while (take_name(word)) all.push_back((this->*next)());
  if (all.size() == 1) return std::move(all.front());
  return [all = std::move(all), decides](Run& run) {
    Value value;
    for (const Expression& one : all)
      if ((value = one(run)).truth() == decides) break;
    return value;
  };
}

Expression Parser::or_expression() { return deciding(&Parser::and_expression, "or", true); }
Expression Parser::and_expression() { return deciding(&Parser::not_expression, "and", false); }

Expression Parser::not_expression() {
  if (!take_name("not")) return compared();
  const Nested nested(*this);
  return [value = not_expression()](Run& run) -> Value { return !value(run).truth(); };
}

Expression Parser::compared() {
  Expression first = summed();
  std::vector<std::pair<std::string, Expression>> others;
  for (;;) {
    std::string sign;
    for (const std::string_view one : {"==", "!=", "<", "<=", ">", ">="})
      if (is_sign(one)) sign = one;
    if (is_name("in")) sign = "in";
    const Word& next = words_[std::min(at_ + 1, words_.size() - 1)];
    if (is_name("not") && next.kind == Word::Kind::name && next.text == "in") sign = "not in";
    if (sign.empty()) break;
    at_ += sign == "not in" ? 2 : 1;
    others.emplace_back(std::move(sign), summed());
  }
  if (others.empty()) return first;
  return [first = std::move(first), others = std::move(others)](Run& run) -> Value {
    Value left = first(run);
    for (const auto& [sign, other] : others) {
      Value right = other(run);
      if (!comparison(sign, left, right)) return false;
      left = std::move(right);
    }
    return true;
  };
}

Expression Parser::summed() { return left_to_right(&Parser::concatenated, {"+", "-"}); }

Expression Parser::concatenated() {
  std::vector<Expression> all{multiplied()};
  while (take_sign("~")) all.push_back(multiplied());
  if (all.size() == 1) return std::move(all.front());
  return [all = std::move(all)](Run& run) -> Value {
    std::string made;
    for (const Expression& one : all) {
      made += one(run).str();
      require_size(made.size());
    }
    return made;
  };
}

Expression Parser::multiplied() { return left_to_right(&Parser::raised, {"*", "/", "//", "%"}); }

Expression Parser::raised() {
  Expression first = signed_value();
  std::vector<Step> steps;
  while (take_sign("**"))
    steps.push_back([other = signed_value()](Run& run, const Value& value) {
      return arithmetic("**", value, other(run));
    });
  return chain(std::move(first), std::move(steps));
}

Expression Parser::signed_value(bool with_filters) {
  const Nested nested(*this);
  Expression first;
  if (take_sign("-"))
    first = [value = signed_value(false)](Run& run) { return negated(value(run)); };
  else if (take_sign("+"))
    first = [value = signed_value(false)](Run& run) { return arithmetic("+", 0, value(run)); };
  else
    first = primary();
  std::vector<Step> steps;
  postfix(steps);
  if (with_filters) filters(steps);
  return chain(std::move(first), std::move(steps));
}

}  // namespace brume::chat
