#include "state.hpp"

#include <cmath>

#include "base/error.hpp"
#include "plan/knobs.hpp"

namespace brume::tuner {
namespace {

/// Numbers of a point before its ratios: layout, ZeRO level, replicas, layers, level, and whether
/// other layers are stored.
constexpr std::size_t whole_numbers = 6;
constexpr std::size_t of_point = whole_numbers + plan::num_shares;

int whole(double number, int least, int most) {
  require(number >= least && number <= most && number == std::floor(number), Failure::input,
          "the state of the search has a point with {}, expected a whole number from {} to {}",
          number, least, most);
  return int(number);
}

deck::Schema<SearcherState> searcher_schema() {
  using Waiting = SearcherState::Waiting;
  deck::Schema<Waiting> waiting;
  waiting.key("config", &Waiting::config, {.help = "configuration", .required = true, .min = 0})
      .key("predicted_s", &Waiting::predicted_s, {.unit = "s", .help = "prediction", .min = 0})
      .key("points", &Waiting::points, {.help = "numbers of each stage's point"});
  using Excluded = SearcherState::Excluded;
  deck::Schema<Excluded> excluded;
  excluded.key("config", &Excluded::config, {.help = "configuration", .required = true, .min = 0})
      .key("after", &Excluded::after, {.help = "stages after it", .required = true, .min = 0})
      .key("point", &Excluded::point, {.help = "numbers of the point"});
  deck::Schema<SearcherState> schema;
  schema
      .key("steps", &SearcherState::steps,
           {.help = "0: open; 1: bounded; 2: searched; 3: no plan", .min = 0, .max = 3})
      .key("bounds_s", &SearcherState::bounds_s, {.unit = "s", .help = "proven bounds", .min = 0})
      .key("memory_errors", &SearcherState::memory_errors,
           {.help = "shares by which memory may exceed the formula", .min = 0, .max = 1})
      .tables("waiting", &SearcherState::waiting, waiting, "predicted plans")
      .tables("excluded", &SearcherState::excluded, excluded, "strategies that do not fit");
  return schema;
}

deck::Schema<State::Simulated> simulated_schema() {
  using Simulated = State::Simulated;
  deck::Schema<Simulated> schema;
  schema.key("seconds", &Simulated::seconds, {.unit = "s", .help = "step time", .min = 1e-12})
      .key("predicted_s", &Simulated::predicted_s,
           {.unit = "s", .help = "prediction", .min = 1e-12})
      .key("coarse", &Simulated::coarse, {.help = "whether it was simulated"})
      .key("given", &Simulated::given, {.help = "whether it is of a given plan"})
      .key("other_order", &Simulated::other_order, {.help = "whether it is of another order"})
      .key("config", &Simulated::config, {.help = "configuration; -1: none", .min = -1})
      .key("points", &Simulated::points, {.help = "numbers of each stage's point"})
      .table("plan", &Simulated::plan, plan::plan_schema(), "the plan");
  return schema;
}

}  // namespace

const deck::Schema<State>& state_schema() {
  static const auto schema = [] {
    deck::Schema<State> keys;
    keys.key("placed", &State::placed, {.help = "placed plans of other orders", .min = 0})
        .key("even_plans", &State::even_plans, {.help = "whether even plans were simulated"})
        .table("searcher", &State::searcher, searcher_schema(), "configurations of 1F1B")
        .table("other_orders", &State::other_orders, searcher_schema(), "other configurations")
        .tables("simulated", &State::simulated, simulated_schema(), "plans that fit")
        .tables("refused", &State::refused, plan::plan_schema(), "plans that do not fit")
        .tables("climbed", &State::climbed, plan::plan_schema(), "plans without a faster step");
    return keys;
  }();
  return schema;
}

std::vector<double> numbers_of(const std::vector<Point>& points) {
  std::vector<double> numbers;
  for (const Point& point : points) {
    const Strategy& s = point.strategy;
    for (const int number : {point.layout, s.sharding.zero_level, s.sharding.replicas, s.layers,
                             s.level, int(s.stores_rest)})
      numbers.push_back(number);
    numbers.insert(numbers.end(), s.ratios.begin(), s.ratios.end());
  }
  return numbers;
}

std::vector<Point> points_from(const std::vector<double>& numbers, const PipelineConfig& config,
                               int num_stages) {
  constexpr int most_layers = 1 << 20;
  require(numbers.size() == of_point * std::size_t(num_stages), Failure::input,
          "the state of the search has {} numbers for the points of {} stages, expected {} each",
          numbers.size(), num_stages, of_point);
  std::vector<Point> points;
  for (auto at = numbers.begin(); at != numbers.end(); at += of_point) {
    Point& point = points.emplace_back();
    Strategy& s = point.strategy;
    point.layout = whole(at[0], 0, int(config.layouts.size()) - 1);
    s.sharding = {whole(at[1], 0, 3), whole(at[2], 1, config.layouts[point.layout].devices())};
    s.layers = whole(at[3], 0, most_layers);
    s.level = whole(at[4], -s.layers, s.layers);
    s.stores_rest = whole(at[5], 0, 1) == 1;
    std::copy_n(at + whole_numbers, plan::num_shares, s.ratios.begin());
  }
  return points;
}

}  // namespace brume::tuner
