#include "plan/knobs.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/error.hpp"

namespace brume::plan {
namespace {

/// Becomes any member of an aggregate.
struct Any {
  template <class T>
  operator T() const;
};

/// The number of members of an aggregate: the most that it can be made of.
template <class T, class... Members>
constexpr std::size_t arity() {
  if constexpr (requires { T{Members{}..., Any{}}; })
    return arity<T, Members..., Any>();
  else
    return sizeof...(Members);
}

/// The members of T that have a row, by their place in it.
template <class T>
std::map<std::ptrdiff_t, int> rows_of_members() {
  static const T object{};
  std::map<std::ptrdiff_t, int> rows;
  for_members<T>(knobs, [&](const Knob&, auto member) {
    ++rows[reinterpret_cast<const char*>(&(object.*member)) -
           reinterpret_cast<const char*>(&object)];
  });
  return rows;
}

TEST(Knobs, EveryMemberHasOneRow) {
  EXPECT_EQ(rows_of_members<Stage>().size(), arity<Stage>());
  EXPECT_EQ(rows_of_members<Order>().size(), arity<Order>());
  // But for its order of passes, its stages, and the order of its nodes, which is no number.
  EXPECT_EQ(rows_of_members<Plan>().size() + 3, arity<Plan>());
  for (const auto& rows :
       {rows_of_members<Stage>(), rows_of_members<Order>(), rows_of_members<Plan>()})
    for (const auto& [place, count] : rows) EXPECT_EQ(count, 1) << "at byte " << place;
}

TEST(Knobs, TellWhichOrdersAreNot1F1B) {
  for_members<Order>(knobs, [](const Knob& knob, auto member) {
    if (!knob.order) return;
    Plan plan{.stages = std::vector<Stage>(2)};
    EXPECT_TRUE(plan.order.is_1f1b() && order_text(plan).empty());
    plan.order.*member = 2;
    EXPECT_FALSE(plan.order.is_1f1b()) << knob.name;
    EXPECT_EQ(order_text(plan), std::string(knob.name) + " = 2");
  });
}

TEST(Knobs, NamesSymbolsAndTurnsAreTheirOwn) {
  std::set<std::string> names, symbols;
  std::set<int> turns;
  for (const Knob& knob : knobs) {
    EXPECT_TRUE(names.insert(knob.name).second) << knob.name;
    EXPECT_TRUE(!*knob.symbol || symbols.insert(knob.symbol).second) << knob.symbol;
    EXPECT_TRUE(knob.turn == 0 || turns.insert(knob.turn).second) << knob.name;
    EXPECT_TRUE(!*knob.without || knob.turn > 0) << knob.name;
    EXPECT_TRUE(knob.turn == 0 || knob.search.index() > 0) << knob.name;
  }
}

TEST(Knobs, SharesOnDiskArePartsOfTheirOwn) {
  EXPECT_EQ(symbols(false), "w/g/o/a");
  EXPECT_EQ(symbols(true), "o/a");
  const Stage stage{.optim_offload_ratio = 1, .act_offload_ratio = 0.5, .act_disk_ratio = 0.25};
  EXPECT_EQ(ratios(stage, false), "0/0/1/0.5");
  EXPECT_EQ(ratios(stage, true), "0/0.25");
}

/// The cells of a line of a table, each split at its commas; ticks and spaces are left out.
std::vector<std::vector<std::string>> cells(const std::string& line) {
  std::vector<std::vector<std::string>> found;
  for (char c : line)
    if (c == '|')
      found.push_back({""});
    else if (c == ',' && !found.empty())
      found.back().emplace_back();
    else if (c != ' ' && c != '`' && !found.empty())
      found.back().back() += c;
  return found;
}

// In src/README.md's table of symbols each symbol stands at the place of its name.
TEST(Knobs, TheReadmeNamesEverySymbol) {
  std::ifstream readme(BRUME_REGRESSION_DIR "/../src/README.md");
  std::map<std::string, std::string> named;
  for (std::string line; std::getline(readme, line);) {
    const auto found = cells(line);
    if (found.size() < 2 || found[0].size() != found[1].size()) continue;
    for (std::size_t i = 0; i < found[0].size(); ++i) named[found[0][i]] = found[1][i];
  }
  for (const Knob& knob : knobs)
    EXPECT_TRUE(!*knob.symbol || named[knob.symbol] == knob.name) << knob.symbol;
}

/// The rows with another name, symbol and meaning for the share of weights: as good as a new one.
std::vector<Knob> rows_with_a_new_share() {
  std::vector<Knob> rows(std::begin(knobs), std::end(knobs));
  for (Knob& knob : rows)
    if (knob.name == std::string("weight_offload_ratio")) {
      knob.name = "cold_ratio";
      knob.without = "cold weights";
    }
  return rows;
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    return error.what();
  }
  return "";
}

TEST(Knobs, ARowIsEnoughForTextAndChecks) {
  const std::vector<Knob> rows = rows_with_a_new_share();
  const auto schema = plan_schema(rows);
  Plan plan{.global_batch = 1, .stages = {{.layers = 1, .weight_offload_ratio = 0.1 + 0.2}}};
  const std::string text = schema.write(plan);
  EXPECT_NE(text.find("\ncold_ratio "), std::string::npos) << text;
  EXPECT_EQ(text.find("weight_offload_ratio"), std::string::npos) << text;
  EXPECT_TRUE(schema.read(deck::Document::parse(text, "plan.toml")) == plan);
  EXPECT_EQ(refusal([&] { check_ranges(plan, rows); }), "");

  plan.stages[0].weight_offload_ratio = 1.5;
  EXPECT_EQ(refusal([&] { check_ranges(plan, rows); }),
            "plan: stage 0: cold_ratio must be from 0 to 1, found 1.5");
  const std::string wrong = schema.write(plan);
  const std::string says = refusal([&] { schema.read(deck::Document::parse(wrong, "plan.toml")); });
  EXPECT_NE(says.find("plan.toml:"), std::string::npos) << says;
  EXPECT_NE(says.find("cold_ratio' must be a number in 0..1, found 1.5"), std::string::npos)
      << says;
}

TEST(Knobs, ARowIsEnoughForTheSearch) {
  const Plan with{.stages = {{.weight_offload_ratio = 0.5}}}, without{.stages = {{}}};
  for (const Knob& knob : rows_with_a_new_share()) {
    if (knob.name != std::string("cold_ratio")) continue;
    EXPECT_TRUE(used(knob, with));
    EXPECT_FALSE(used(knob, without));
    deck::SearchKeys keys;
    forbid(knob, keys);
    EXPECT_EQ(keys.weight_offload, std::vector{0.0});
    EXPECT_EQ(allow(knob, keys), "weight_offload = [0, 0.5, 1]");
    EXPECT_EQ(keys.weight_offload, (std::vector{0.0, 0.5, 1.0}));
    EXPECT_EQ(allow(knob, keys), "");
  }
}

// What is advised where nothing fits is text of a deck, and allows all of that knob.
TEST(Knobs, AllowNamesTheKeyThatItChanges) {
  std::set<std::string> said;
  for (const Knob& knob : knobs) {
    deck::SearchKeys keys;
    forbid(knob, keys);
    auto deck = deck::Document::parse(deck::search_schema().write(keys), "deck.toml");
    const std::string says = allow(knob, keys);
    EXPECT_EQ(says.empty(), knob.search.index() == 0) << knob.name;
    if (says.empty()) continue;
    EXPECT_TRUE(said.insert(says).second) << says;
    deck.set(says);
    deck::SearchKeys followed = deck::search_schema().read(deck);
    EXPECT_EQ(allow(knob, followed), "") << says;
  }
  EXPECT_TRUE(said.contains("zero_levels = [0, 1, 2, 3]"));
  EXPECT_TRUE(said.contains("tp = []"));
}

}  // namespace
}  // namespace brume::plan
