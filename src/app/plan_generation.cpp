/// @file The verb `plan --for generation`: copies of a model, and sequences at once on each.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "generation_search.hpp"
#include "given.hpp"
#include "planning.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

using generation::Forecast;

/// "tp 4", "pp 4", "pp 2 tp 2"
std::string shape_text(const plan::Plan& plan) {
  const int stages = plan.num_stages(), tp = plan.stages.front().tp;
  if (stages == 1) return fmt::format("tp {}", tp);
  return tp == 1 ? fmt::format("pp {}", stages) : fmt::format("pp {} tp {}", stages, tp);
}

std::vector<std::string> row(const GenerationCandidate& one) {
  const Forecast& f = one.forecast;
  const std::string answers = shape_text(one.plan.plan);
  return {
      fmt::format("{}", one.plan.copies()),
      one.plan.prompts ? fmt::format("{}, {}", shape_text(*one.plan.prompts), answers) : answers,
      fmt::format("{}", one.batch),
      fmt::format("{:.1f}", one.tokens_per_s()),
      format_seconds(f.first_token_s),
      format_seconds(f.token_s),
      fmt::format("{:.0f} %", 100.0 * f.prompt_share),
      format_bytes(one.plan.cache_bytes()),
      format_bytes(one.other_bytes()),
      fmt::format("{:.3g}", one.device_hours())};
}

nlohmann::ordered_json described(const GenerationCandidate& one) {
  const Forecast& f = one.forecast;
  nlohmann::ordered_json object{{"copies", one.plan.copies()},
                                {"tp", one.plan.plan.stages.front().tp},
                                {"stages", one.plan.plan.num_stages()},
                                {"batch", one.batch},
                                {"tokens_per_s", one.tokens_per_s()},
                                {"seconds", f.seconds},
                                {"first_token_s", f.first_token_s},
                                {"token_s", f.token_s},
                                {"prompt_share", f.prompt_share},
                                {"key_bytes", one.plan.cache_bytes()},
                                {"other_bytes", one.other_bytes()},
                                {"device_hours_per_million_tokens", one.device_hours()}};
  if (one.plan.prompts)
    object["phases"] = {{"prompt_tp", one.plan.prompts->stages.front().tp},
                        {"prompt_stages", one.plan.prompts->num_stages()},
                        {"prompts_s", f.prompts_s},
                        {"changes", f.changes},
                        {"changes_s", f.changes_s},
                        {"moved_key_bytes", f.moved_bytes}};
  return object;
}

/// Where the time of the best pair of plans goes, and that of the best single plan; empty if no
/// pair was found.
std::string phases_text(const std::vector<GenerationCandidate>& found) {
  const auto fastest = [&](bool pair) {
    return std::ranges::find_if(found, [&](const GenerationCandidate& one) {
      return one.plan.prompts.has_value() == pair;
    });
  };
  const auto pair = fastest(true), single = fastest(false);
  if (pair == found.end()) return {};
  const Forecast& f = pair->forecast;
  std::string text = fmt::format(
      "two plans: prompts by {} in {}, answers by {} in {}, {} in {}, moving {} of keys on a "
      "rank",
      shape_text(*pair->plan.prompts), format_seconds(f.prompts_s), shape_text(pair->plan.plan),
      format_seconds(f.seconds - f.prompts_s - f.changes_s),
      counted(std::int64_t(std::ceil(f.changes)), "change"), format_seconds(f.changes_s),
      format_bytes(f.moved_bytes));
  if (single != found.end())
    text += fmt::format("; {} in all, {} by the best single plan", format_seconds(f.seconds),
                        format_seconds(single->forecast.seconds));
  return text + "\n";
}

}  // namespace

int plan_generation(const PlanOptions& options) {
  for (const auto& [option, value] : {std::pair("--html", &options.html),
                                      {"--svg", &options.svg},
                                      {"--against", &options.against},
                                      {"--sweep", &options.sweep},
                                      {"--start", &options.start},
                                      {"--search-state", &options.state}})
    require(value->empty(), Failure::input, "{} shows plans for training: leave it out", option);
  require(!options.explain, Failure::input, "--explain shows plans for training: leave it out");
  if (!options.output.empty()) check_writable(options.output);
  const Given given(options);
  refuse_mist(given.deck, "plan --for generation");
  const std::vector<GenerationCandidate> found = GenerationSearch(given).run();
  const GenerationCandidate& best = found.front();
  Table table({"copies", "plan", "batch", "tokens/s", "first token", "next token", "prompts",
               "keys", "other", "hours / 1M"});
  for (std::size_t i = 0; i < std::min(found.size(), std::size_t(options.top) + 1); ++i)
    table.add(row(found[i]));
  const std::size_t columns = terminal::columns(STDERR_FILENO);
  log::info("{}",
            wrapped(fmt::format("{}, {} at once on each: {:.1f} tokens/s predicted, all answers in "
                                "{}\n{}{}",
                                best.plan.text(), counted(best.batch, "sequence"),
                                best.tokens_per_s(), format_seconds(best.forecast.seconds),
                                table.text(columns), phases_text(found)),
                    columns));
  const std::string text = plan::text(best.plan.plans());
  if (!options.output.empty()) {
    write_file(options.output, text);
    log::info("run: brume generate RUN --prompts FILE --plan {} --batch {} --max-tokens {}",
              options.output, best.batch, GenerationLengths(given.deck).longest_answer());
  }
  if (options.json) {
    nlohmann::ordered_json object = described(best);
    object["others"] = nlohmann::ordered_json::array();
    for (const GenerationCandidate& one : found)
      if (&one != &best) object["others"].push_back(described(one));
    print(object.dump(2) + "\n");
  } else if (options.output.empty()) {
    print(text);
  }
  return 0;
}

}  // namespace brume::app
