/// @file Turns a template's words into a program.
#pragma once

#include <string>
#include <vector>

#include "lexer.hpp"
#include "run.hpp"

namespace brume::chat {

/// Parses a template by recursive descent. Precedence, from the loosest: `if else`, `or`, `and`,
/// `not`, comparisons, `+ -`, `~`, `* / // %`, `**`, signs, filters and tests, calls and items.
class Parser {
 public:
  Parser(std::vector<Word> words, const std::string& name);

  /// The whole template. @throws Error(input) naming the line
  Statement run();

 private:
  // --- words (parser.cpp) ---
  const Word& word() const { return words_[at_]; }
  bool is_sign(std::string_view text) const;
  bool is_name(std::string_view text) const;
  bool take_sign(std::string_view text);
  bool take_name(std::string_view text);
  bool take_tag(std::string_view tag);
  void need_sign(std::string_view text);
  void need_name(std::string_view text);
  void need_end();
  std::string name();
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_here(std::string_view expected) const;

  // --- statements (statements.cpp) ---
  /// Statements up to a tag that begins with one of these names, which is not taken.
  Statement block(const std::vector<std::string_view>& ends);
  Statement otherwise_until(const char* end);
  Statement body(const char* end);  ///< block up to a tag that only has this name, which is taken
  Statement statement();
  Statement if_statement();
  Statement set_statement();
  Statement filter_statement();
  Statement with_statement();
  Statement generation_statement();
  Expression capture(Statement inside);

  // --- loops (loops.cpp) ---
  Statement for_statement();
  Statement outside_loops(const std::function<Statement()>& parse);
  std::vector<std::string> targets();
  /// Gives variables the value, or its items where they are several.
  static void assign(Run& run, const std::vector<std::string>& targets, Value value);

  // --- macros (macros.cpp) ---
  Statement macro_statement();
  Statement call_statement();
  struct Parameter {
    std::string name;
    Expression otherwise = {};
  };
  std::vector<Parameter> parameters();
  Expression macro(const std::string& name, std::vector<Parameter> parameters, Statement body);

  // --- expressions (expressions.cpp) ---
  using Step = std::function<Value(Run&, const Value&)>;
  Expression expression();           ///< with `if else`
  Expression tuple_or_expression();  ///< "a, b" is a tuple
  Expression deciding(Expression (Parser::*next)(), std::string_view word, bool decides);
  Expression or_expression();
  Expression and_expression();
  Expression not_expression();
  Expression compared();
  Expression summed();
  Expression concatenated();
  Expression multiplied();
  Expression raised();
  Expression signed_value(bool with_filters = true);
  static Expression list_of(std::vector<Expression> all, bool tuple);
  Expression chain(Expression first, std::vector<Step> steps) const;
  Expression left_to_right(Expression (Parser::*next)(), std::vector<std::string_view> signs);

  // --- operands (operands.cpp) ---
  Expression primary();
  void postfix(std::vector<Step>& steps);
  void filters(std::vector<Step>& steps);
  Step filter();
  Step test();
  Step subscript();
  using Call = std::function<Arguments(Run&)>;
  Call arguments();  ///< behind '('
  Expression list_until(std::string_view end, bool tuple, std::vector<Expression> first = {});
  Expression dictionary();

  /// Counts nested rules, so that no template exhausts the stack.
  struct Nested {
    explicit Nested(Parser& parser);
    ~Nested() { --parser.depth_; }
    Parser& parser;
  };

  std::vector<Word> words_;
  const std::string& name_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace brume::chat
