/// @file The verb plan --sweep: how the best plan changes with one key of the deck.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "hardware/cluster.hpp"
#include "planning.hpp"
#include "profiles.hpp"
#include "tuner/tuner.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

using nlohmann::json;

constexpr std::uint64_t most_values = 1000;
constexpr std::size_t most_starts = 4;  ///< points whose plans a search begins with

/// "cluster.nodes=1..3" -> {"cluster.nodes", {"1", "2", "3"}}; each value once.
struct Sweep {
  std::string key;
  std::vector<std::string> values;
};

std::int64_t whole(const std::string& text, const std::string& sweep) {
  std::int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(failed == std::errc() && end == text.data() + text.size(), Failure::input,
          "--sweep {}: '{}' must be a whole number", sweep, text);
  return number;
}

Sweep parse(const std::string& sweep) {
  const auto equals = sweep.find('=');
  require(equals != std::string::npos && equals > 0 && equals + 1 < sweep.size(), Failure::input,
          "--sweep must be key=a,b,c or key=a..b, found '{}'", sweep);
  Sweep found{sweep.substr(0, equals), {}};
  const std::string values = sweep.substr(equals + 1);
  if (const auto dots = values.find(".."); dots != std::string::npos) {
    const std::int64_t first = whole(values.substr(0, dots), sweep);
    const std::int64_t last = whole(values.substr(dots + 2), sweep);
    // Unsigned, the difference of any two numbers fits.
    const std::uint64_t others = std::uint64_t(last) - std::uint64_t(first);
    require(first <= last && others < most_values, Failure::input,
            "--sweep {}: the first value must be at most the last, and at most {} in all", sweep,
            most_values);
    for (std::uint64_t i = 0; i <= others; ++i)
      found.values.push_back(std::to_string(first + std::int64_t(i)));
    return found;
  }
  for (std::size_t begin = 0; begin <= values.size();) {
    const auto comma = std::min(values.find(',', begin), values.size());
    const std::string value = values.substr(begin, comma - begin);
    require(!value.empty(), Failure::input, "--sweep {}: a value is empty", sweep);
    if (std::ranges::find(found.values, value) == found.values.end()) found.values.push_back(value);
    begin = comma + 1;
  }
  return found;
}

/// Results that points leave to later ones.
struct Known {
  tuner::Cache cache;
  std::vector<plan::Plan> plans;  ///< best plans, the last one first
};

/// One value's best plan, or in a word why there is none.
json planned(const PlanOptions& options, const std::string& assignment, Known& known) {
  std::vector<std::string> sets = options.sets;
  sets.push_back(assignment);
  const deck::Deck deck = load_deck(options.deck, sets);
  const model::Config model = model::config(deck.model, deck.training.precision);
  const hardware::Cluster cluster = hardware::cluster(deck.cluster);
  json row{{"devices", cluster.devices()}};
  try {
    const hardware::Machine machine = obtain_machine_alone(deck, model);
    const tuner::Result result =
        search(deck, deck.search, model, hardware::usable(cluster, machine), machine,
               {.reasons = false, .starts = known.plans, .cache = &known.cache});
    const tuner::RankedPlan& best = result.best[0];
    row["iteration_s"] = best.seconds();
    row["simulated"] = best.simulated_s.has_value();
    row["tokens_per_s"] =
        double(deck.training.global_batch) * double(model.seq_len) / best.seconds();
    row["gap"] = result.search.gap;
    row["cut_short"] = result.search.cut_short;
    row["plan"] = tuner::summary(best.plan);
    known.plans.insert(known.plans.begin(), best.plan);
    if (known.plans.size() > most_starts) known.plans.pop_back();
  } catch (const tuner::Infeasible& error) {
    row["infeasible"] = error.word();
  }
  return row;
}

std::string plan_cell(const json& row) {
  const std::string plan = row["plan"];
  return row["cut_short"].get<bool>() ? fmt::format("{} (cut short by search.time_limit_s, gap {})",
                                                    plan, format_percent(row["gap"].get<double>()))
                                      : plan;
}

}  // namespace

int sweep(const PlanOptions& options) {
  const Sweep sweep = parse(options.sweep);
  Known known;
  json rows = json::array();
  Table table({sweep.key, "devices", "step time", "tokens/s", "plan"});
  for (const std::string& value : sweep.values) {
    json row = planned(options, sweep.key + "=" + value, known);
    row["value"] = value;
    const std::string devices = row["devices"].dump();
    if (row.contains("infeasible"))
      table.add({value, devices, "-", "-", "infeasible: " + row["infeasible"].get<std::string>()});
    else
      table.add({value, devices, format_seconds(row["iteration_s"]),
                 format_count(row["tokens_per_s"]), plan_cell(row)});
    rows.push_back(std::move(row));
  }
  if (options.json)
    print(json{{"key", sweep.key}, {"points", rows}}.dump(2) + "\n");
  else
    print(table.text(terminal::columns(STDOUT_FILENO)));
  return 0;
}

}  // namespace brume::app
