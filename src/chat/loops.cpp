/// @file Loops of templates, and variables that take values.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "parser.hpp"

namespace brume::chat {
namespace {

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

void Parser::assign(Run& run, const std::vector<std::string>& targets, Value value) {
  if (targets.size() == 1) return run.scope->set(targets.front(), std::move(value));
  std::vector<Value> items = value.items();
  require(items.size() == targets.size(), Failure::input, "{} values for {} variables",
          items.size(), targets.size());
  for (std::size_t i = 0; i < items.size(); ++i) run.scope->set(targets[i], std::move(items[i]));
}

/// Parses a block in which a loop around it cannot be left.
Statement Parser::outside_loops(const std::function<Statement()>& parse) {
  const int loops = std::exchange(loops_, 0);
  Statement made = parse();
  loops_ = loops;
  return made;
}

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

}  // namespace brume::chat
