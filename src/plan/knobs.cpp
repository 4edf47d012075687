#include "plan/knobs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/error.hpp"

namespace brume::plan {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // Clang before 17 does not find it by itself

/// The deck's key that a knob is searched by; null where it has none.
const deck::detail::Fields::Field* search_field(const Knob& knob) {
  return std::visit(
      Overloaded{[](std::monostate) -> const deck::detail::Fields::Field* { return nullptr; },
                 [](auto member) { return deck::search_schema().field(member); }},
      knob.search);
}

struct Bounds {
  double min, max;
};

Bounds bounds(const Knob& knob) {
  const auto* field = search_field(knob);
  if (field && std::isfinite(field->key.min)) return {field->key.min, field->key.max};
  return {knob.min, knob.max};
}

deck::Key key(const Knob& knob) {
  const Bounds range = bounds(knob);
  return {
      .unit = knob.unit,
      .help = knob.help,
      .required = knob.required,
      .min = range.min,
      .max = range.max,
      .if_given = std::holds_alternative<std::string Stage::*>(knob.member),
      .if_not_least = knob.if_not_least,
      .aliases = *knob.former ? std::vector<std::string>{knob.former} : std::vector<std::string>{}};
}

template <class T>
deck::Schema<T> schema(Knobs rows) {
  deck::Schema<T> keys;
  for_members<T>(rows,
                 [&](const Knob& knob, auto member) { keys.key(knob.name, member, key(knob)); });
  return keys;
}

/// "must be from 0 to 3, found 4"; empty where nothing is wrong.
std::string refusal(double value, const Bounds& range) {
  if (value >= range.min && value <= range.max) return {};
  return std::isfinite(range.max)
             ? fmt::format("must be from {} to {}, found {}", range.min, range.max, value)
             : fmt::format("must be at least {}, found {}", range.min, value);
}

std::string stage_refusal(const Knob& knob, const Stage& stage, double value, Knobs rows) {
  if (!knob.part_of || (value >= 0.0 && value <= stage.*knob.part_of))
    return refusal(value, bounds(knob));
  const auto whole = std::ranges::find_if(rows, [&](const Knob& other) {
    return other.member == decltype(other.member)(knob.part_of);
  });
  return fmt::format("must be from 0 to {} = {}, of which it is a part, found {}", whole->name,
                     stage.*knob.part_of, value);
}

/// Names the share whose parts are more than it is, as a sum of rounded numbers may not be; empty
/// where there is none.
std::string parts_refusal(const Stage& stage) {
  constexpr double rounding = 1e-9;
  for (const Share& whole : shares) {
    double parts = 0.0;
    std::string names;
    for (const Share& share : shares)
      if (share.whole && shares[*share.whole].ratio == whole.ratio) {
        parts += stage.*share.ratio;
        names += fmt::format("{}{}", names.empty() ? "" : " + ", share.knob->name);
      }
    if (parts > stage.*whole.ratio + rounding)
      return fmt::format("{} must be at most {} = {}, of which they are parts, found {}", names,
                         whole.knob->name, stage.*whole.ratio, parts);
  }
  return {};
}

/// Whether a share stands with others in one column of the table: those that leave the device, or
/// their parts on disk.
bool stand_together(const Share& share, bool on_disk) {
  return !*share.knob->column && share.on_disk() == on_disk;
}

}  // namespace

int stage_in_flight(const Plan& plan, int stage) {
  const int size = plan.pipeline_size();
  return RankPasses(plan.order, plan.shape(), stage % size).in_flight_of_chunk(stage / size);
}

int num_stages(const Plan& plan, int) { return plan.pipeline_size(); }

int differs_from_first(const Plan& plan, int stage) {
  const Stage &first = plan.stages[0], &s = plan.stages[stage];
  return s.group.empty() && (s.dp != first.dp || s.cp != first.cp || s.tp != first.tp ||
                             s.microbatch != first.microbatch);
}

std::string ratios(const Stage& stage, bool on_disk) {
  std::vector<double> found;
  for (const Share& share : shares)
    if (stand_together(share, on_disk)) found.push_back(stage.*share.ratio);
  return fmt::format("{:g}", fmt::join(found, "/"));
}

std::string symbols(bool on_disk) {
  std::vector<const char*> found;
  for (const Share& share : shares)
    if (stand_together(share, on_disk))
      found.push_back((on_disk ? shares[*share.whole].knob : share.knob)->symbol);
  return fmt::format("{}", fmt::join(found, "/"));
}

double number(const Knob& knob, const Plan& plan, int stage) {
  return std::visit(Overloaded{[](std::string Stage::*) { return 0.0; },
                               [&](int Plan::*member) { return double(plan.*member); },
                               [&](int Order::*member) { return double(plan.order.*member); },
                               [&](Derived of) { return double(of(plan, stage)); },
                               [&](auto member) { return double(plan.stages[stage].*member); }},
                    knob.member);
}

deck::Schema<Stage> stage_schema(Knobs rows) { return schema<Stage>(rows); }

deck::Schema<Plan> plan_schema(Knobs rows) {
  deck::Schema<Plan> keys = schema<Plan>(rows);
  for_members<Order>(rows, [&](const Knob& knob, auto member) {
    keys.key(knob.name, &Plan::order, member, key(knob));
  });
  // No number, and so no row.
  keys.key("node_order", &Plan::node_order,
           {.help = "cluster nodes of the plan's nodes, in order; none: the cluster's own order",
            .min = 0,
            .if_given = true});
  return keys.tables("stages", &Plan::stages, stage_schema(rows),
                     "pipeline stages, first stage first");
}

void check_ranges(const Plan& plan, Knobs rows) {
  const auto check = [](const auto& part) {
    return [&part](const Knob& knob, auto member) {
      const std::string fault = refusal(part.*member, bounds(knob));
      require(fault.empty(), Failure::input, "plan: {} {}", knob.name, fault);
    };
  };
  for_members<Plan>(rows, check(plan));
  for_members<Order>(rows, check(plan.order));
  for (int i = 0; i < plan.num_stages(); ++i) {
    const Stage& stage = plan.stages[i];
    for_members<Stage>(rows, [&](const Knob& knob, auto member) {
      if constexpr (requires { double(stage.*member); }) {
        const std::string what = stage_refusal(knob, stage, stage.*member, rows);
        require(what.empty(), Failure::input, "plan: stage {}: {} {}", i, knob.name, what);
      }
    });
    const std::string what = parts_refusal(stage);
    require(what.empty(), Failure::input, "plan: stage {}: {}", i, what);
  }
}

std::vector<const Knob*> in_turn() {
  std::vector<const Knob*> found;
  for (const Knob& knob : knobs)
    if (knob.turn > 0) found.push_back(&knob);
  std::ranges::sort(found, {}, &Knob::turn);
  return found;
}

bool used(const Knob& knob, const Plan& plan) {
  for (int i = 0; i < plan.num_stages(); ++i)
    if (number(knob, plan, i) > bounds(knob).min) return true;
  return false;
}

bool forbid(const Knob& knob, SearchKeys& keys) {
  const double least = bounds(knob).min;
  const auto leave = [&](auto& list, auto value) {
    const bool was_there = list.empty() || std::ranges::find(list, value) != list.end();
    list = {value};
    return was_there;
  };
  return std::visit(
      Overloaded{[](std::monostate) { return true; },
                 [&](bool SearchKeys::*key) {
                   keys.*key = false;
                   return true;
                 },
                 [&](std::vector<int> SearchKeys::*list) { return leave(keys.*list, int(least)); },
                 [&](std::vector<double> SearchKeys::*list) { return leave(keys.*list, least); }},
      knob.search);
}

std::string allow(const Knob& knob, SearchKeys& keys) {
  const double least = bounds(knob).min, most = bounds(knob).max;
  const auto set = [&](auto member, const auto& all, const std::string& text) -> std::string {
    if (keys.*member == all) return {};
    keys.*member = all;
    return fmt::format("{} = {}", search_field(knob)->name, text);
  };
  const auto set_list = [&](auto member, const auto& all) {
    return set(member, all, fmt::format("[{}]", fmt::join(all, ", ")));
  };
  return std::visit(
      Overloaded{[](std::monostate) { return std::string(); },
                 [&](bool SearchKeys::*key) { return set(key, true, "true"); },
                 [&](std::vector<int> SearchKeys::*list) {
                   std::vector<int> all;
                   for (double value = least; std::isfinite(most) && value <= most; ++value)
                     all.push_back(int(value));
                   return set_list(list, all);
                 },
                 [&](std::vector<double> SearchKeys::*list) {
                   return set_list(list, std::vector{least, (least + most) / 2.0, most});
                 }},
      knob.search);
}

}  // namespace brume::plan
