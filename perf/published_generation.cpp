#include "published_generation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "deck/machine.hpp"
#include "generation/forecast.hpp"
#include "hardware/machine.hpp"
#include "published_cases.hpp"

namespace brume::perf {
namespace {

using nlohmann::json;

constexpr int most_open = 64, longest_pass = 2048;

/// Load of a copy.
struct Load {
  double requests_per_s, prompt_tokens, answer_tokens;
};

struct Times {
  double token_s = 0.0, first_token_s = 0.0, open = 0.0;
};

/// A layout on a machine, with the times of its passes.
struct Known {
  Known(const deck::GroupKeys& group, const plan::Plan& plan, const model::Config& model)
      : machine(hardware::machine_profile(group)), times(plan, model, machine) {}

  const hardware::Machine machine;
  const generation::PassTimes times;
};

/// A prompt in passes of at most longest_pass tokens.
double prompt_s(const generation::PassTimes& times, int tokens) {
  double sum_s = 0.0;
  for (int first = 0; first < tokens; first += longest_pass) {
    engine::GeneratorPass pass{.wanted = 1};
    for (int i = first; i < std::min(tokens, first + longest_pass); ++i)
      pass.tokens.push_back({0, 0, i});
    sum_s += times.seconds(pass);
  }
  return sum_s;
}

double next_s(const generation::PassTimes& times, int open, int place) {
  engine::GeneratorPass pass{.wanted = open};
  for (int i = 0; i < open; ++i) pass.tokens.push_back({0, i, place});
  return times.seconds(pass);
}

Times predicted(const generation::PassTimes& times, const Load& load) {
  const double begin_s = prompt_s(times, int(load.prompt_tokens));
  const double left = 1.0 - load.requests_per_s * begin_s;
  const int place = int(load.prompt_tokens + load.answer_tokens / 2);
  Times found;
  double pass_s = 0.0;
  for (int round = 0; round < 20; ++round) {
    const int open = std::clamp(int(std::lround(found.open)), 1, most_open);
    pass_s = next_s(times, open, place);
    found.token_s = pass_s / left;
    found.open = load.requests_per_s * load.answer_tokens * found.token_s;
  }
  found.first_token_s = begin_s + std::min(found.open, 1.0) * pass_s / 2.0;
  return found;
}

}  // namespace

void compare_generation(const json& published) {
  Table table({"predicted / published generation", "open", "ms per token", "published", "ratio",
               "ms to the first", "published", "ratio"});
  std::map<std::string, std::vector<double>> ratios;
  struct Pair {
    double published_s, predicted_s;
  };
  std::map<std::string, std::vector<Pair>> jobs;
  std::map<std::string, Known> known;
  for (const json& entry : published.at("generation")) {
    const std::string id = entry["id"], gpu = entry["gpu"];
    const int tp = entry["tp"], copies = entry["copies"];
    const model::Config model =
        model::generating(model_of(entry["model"], entry["model"]["seq"], entry["precision"]),
                          {.tokens = longest_pass, .sequences = most_open});
    deck::GroupKeys group;
    group.machine = machine_for(gpu);
    group.devices_per_node = deck::load_machine(group.machine).devices_per_node;
    const plan::Plan plan = engine::generating(plan::equal_stages(
        model, 1, 1, {.devices_per_node = tp, .microbatch = 1, .dp = 1, .tp = tp}));
    const generation::PassTimes& times =
        known.try_emplace(fmt::format("{} {}", gpu, tp), group, plan, model).first->second.times;
    const double token_s = entry["token_s"], first_token_s = entry["first_token_s"];
    const Times found = predicted(times, {double(entry["requests_per_s"]) / copies,
                                          entry["prompt_tokens"], entry["answer_tokens"]});
    table.add({id, fmt::format("{:.2f}", found.open), fmt::format("{:.2f}", 1e3 * found.token_s),
               fmt::format("{:.2f}", 1e3 * token_s), fmt::format("{:.3f}", found.token_s / token_s),
               fmt::format("{:.1f}", 1e3 * found.first_token_s),
               fmt::format("{:.1f}", 1e3 * first_token_s),
               fmt::format("{:.3f}", found.first_token_s / first_token_s)});
    ratios["a token"].push_back(found.token_s / token_s);
    ratios["the first token"].push_back(found.first_token_s / first_token_s);
    jobs[id.substr(0, id.rfind("-", id.rfind("-tp") - 1))].push_back({token_s, found.token_s});
  }
  std::cout << table.text() << '\n';
  for (const auto& [what, some] : ratios)
    fmt::print("time of {}: median ratio {:.3f}, {:.2f} to {:.2f} ({} cases)\n", what, median(some),
               std::ranges::min(some), std::ranges::max(some), some.size());
  int right = 0, pairs = 0;
  for (const auto& [job, layouts] : jobs)
    for (std::size_t i = 0; i < layouts.size(); ++i)
      for (std::size_t k = 0; k < i; ++k, ++pairs)
        right += (layouts[i].published_s < layouts[k].published_s) ==
                 (layouts[i].predicted_s < layouts[k].predicted_s);
  fmt::print("order of layouts: {} of {} pairs as published\n\n", right, pairs);
}

}  // namespace brume::perf
