/// @file The parser's words: looking at them, taking them, and messages about them.
#include "parser.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"

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

}  // namespace brume::chat
