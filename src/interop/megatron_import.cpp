/// @file The arguments of a training by Megatron-LM, read.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "given_arguments.hpp"
#include "hardware/cluster.hpp"
#include "interop/megatron.hpp"
#include "megatron_import_deck.hpp"
#include "megatron_import_plan.hpp"
#include "megatron_rules.hpp"

namespace brume::interop {
namespace {

/// Arguments that change the model or the plan into something that nothing here is like, with the
/// value that changes nothing; none: each does.
constexpr std::pair<const char*, const char*> unlike[] = {
    {"moe-expert-capacity-factor", ""},
    {"moe-latent-size", ""},
    {"moe-router-force-load-balancing", ""},
    {"moe-input-jitter-eps", "0"},
    {"moe-apply-probs-on-input", ""},
    {"hierarchical-context-parallel-sizes", ""},
    {"mtp-num-layers", "0"},
    {"hybrid-layer-pattern", ""},
    {"heterogeneous-layers-config-path", ""},
    {"window-size", ""},
    {"no-rope-freq", ""},
    {"no-position-embedding", ""},
    {"rotary-percent", "1.0"},
    {"rotary-seq-len-interpolation-factor", "1"},
    {"squared-relu", ""},
    {"quick-geglu", ""},
    {"fp32-residual-connection", ""},
    {"cpu-offloading-num-layers", "0"},
    {"fine-grained-activation-offloading", ""},
    {"freeze-all-layers", ""},
};

void refuse_unlike(GivenArguments& given) {
  for (const auto& [name, off] : unlike) {
    if (!given.has(name)) continue;
    const std::string value = given.text(name).value_or("");
    const bool same = *off != '\0' && parsed<double>(value) == parsed<double>(off);
    if (!same)
      given.refuse("--{}{}: Brume has no such feature", name, value.empty() ? "" : " " + value);
  }
}

}  // namespace

MegatronJob read_megatron(const std::string& path, const std::vector<std::string>& sets) {
  GivenArguments given(path);
  refuse_unlike(given);
  MegatronJob job;
  const DeckText text(given, job.notes);
  const auto sets_key = [&](const char* key) {
    return std::ranges::any_of(sets, [&](const std::string& set) { return set.starts_with(key); });
  };
  if (!given.has("vocab-size") && !given.has("padded-vocab-size") && !sets_key("model.vocab_size"))
    given.refuse("--vocab-size is missing: say it by --set model.vocab_size=N");
  if (!sets_key("cluster.machine") && !sets_key("cluster.memory_gib"))
    given.refuse("say which machine it runs on, for example by --set cluster.machine=dgx-h100");
  job.deck = deck::parse(text.text(), "the deck made of " + path, sets);
  const model::Config model = model::config(job.deck.model, job.deck.training.precision);
  if (!chooses_groups_alike(model))
    given.refuse(
        "--moe-router-group-topk {} with --moe-router-topk {}: Megatron-LM adds up {} "
        "scores of a group, Brume {}",
        model.groups_per_token, model.experts_per_token,
        model.experts_per_token / model.groups_per_token, added_scores(model));
  const hardware::Cluster cluster = hardware::cluster(job.deck.cluster);
  job.plan = read_plan(given, job.deck, model, cluster, job.notes);
  plan::check(job.plan, model, cluster);
  std::ranges::sort(job.notes);
  const auto same = std::ranges::unique(job.notes);
  job.notes.erase(same.begin(), same.end());
  if (const std::vector<std::string> others = given.others(); !others.empty())
    job.notes.push_back(
        fmt::format("unknown here, so not read: {}. Check that none changes the model or the plan",
                    fmt::join(others, " ")));
  if (const std::vector<std::string> perhaps = given.in_branches(); !perhaps.empty())
    job.notes.push_back(
        fmt::format("read as given, though branches (if, case, a loop or a test) decide: {}",
                    fmt::join(perhaps, " ")));
  return job;
}

}  // namespace brume::interop
