#include "generation_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/numbers.hpp"
#include "base/text.hpp"
#include "engine/generator.hpp"
#include "inference.hpp"
#include "plan/shapes.hpp"

namespace brume::app {
namespace {

/// Blocks of keys per block of the prompts' own cache, whose keys leave it after each phase.
constexpr int blocks_per_prompt_block = 4;

/// The most blocks in so many bytes of keys. Prompts have at least `least` of theirs.
/// @param answers, prompts  bytes of a block; 0: prompts have no cache of their own
double blocks_in(double bytes, double least, double answers, double prompts) {
  const double few = std::floor((bytes - least * prompts) / answers);
  constexpr double ratio = blocks_per_prompt_block;
  if (few <= ratio * least) return few;
  return std::max(ratio * least, std::floor((bytes - prompts) / (answers + prompts / ratio)));
}

/// Bytes of all layers' key caches on a rank of a stage.
double key_bytes(const plan::Stage& stage, const model::Config& model) {
  return stage.layers * model::cache_bytes(model).evaluate(stage.split().values());
}

/// Tries plans one after the other.
class Choice {
 public:
  Choice(const model::Config& model, const GenerationNeeds& needs, int nodes, int ranks)
      : model_(model), needs_(needs), nodes_(nodes), ranks_(ranks) {
    // Learned positions keep their number.
    const std::int64_t tokens = round_up(needs.tokens, 64);
    tokens_ = model.rotary() ? int(std::min<std::int64_t>(tokens, model.seq_len)) : model.seq_len;
  }

  GenerationPlan run() {
    if (needs_.given || !needs_.plan.empty()) {
      const plan::PhasePlans given = needs_.given ? *needs_.given : plan::load_phases(needs_.plan);
      for (const plan::Plan& one : each(given))
        require(one.devices() == ranks_, Failure::input, "{} is for {} ranks, the job has {}",
                needs_.plan, one.devices(), ranks_);
      require(
          !given.prompts || needs_.copies == Copies::fewest_ranks, Failure::input,
          "{} has a plan of its own for prompts, which a conversation does not use. Name a file "
          "with one plan.",
          needs_.plan);
      use(given, cluster_of(nodes_, ranks_));
      return made_;
    }
    std::optional<Error> refused;
    std::optional<plan::Plan> widest;  // that the model allows
    double least_short = std::numeric_limits<double>::infinity();
    const auto fits = [&](const plan::Plan& plan, const hardware::Cluster& cluster) {
      try {
        use({plan}, cluster);
      } catch (const Error& error) {
        if (error.failure() != Failure::input) throw;
        refused = error;
        return false;
      }
      least_short = std::min(least_short, made_.needed_bytes);
      return made_.needed_bytes == 0.0;
    };
    std::vector<int> widths;
    for (int tp = 1; tp <= ranks_; ++tp)
      if (ranks_ % tp == 0 && (needs_.tp == 0 || needs_.tp == tp)) widths.push_back(tp);
    if (needs_.copies == Copies::widest) std::ranges::reverse(widths);
    int most = 0;
    for (const int tp : widths) {
      const plan::Plan plan = plan_of(tp);
      refused.reset();
      if (fits(plan, cluster_of(nodes_, ranks_))) return made_;
      if (refused || tp < most) continue;
      most = tp;
      widest = plan;
    }
    if (needs_.training && fits(*needs_.training, *needs_.cluster)) return made_;
    if (widest) {  // memory seems short: this takes the least of each rank
      use({*widest}, cluster_of(nodes_, ranks_));
      made_.needed_bytes = least_short;
      return made_;
    }
    if (refused) throw Error(*refused);
    throw Error(Failure::input, "--tp {} does not divide the job's {} ranks", needs_.tp, ranks_);
  }

 private:
  model::Config sized(int tp, int blocks) const {
    model::Config model = model_;
    model.seq_len = tokens_;
    const std::int64_t longest = std::min<std::int64_t>(
        longest_pass(needs_.on_device),
        std::int64_t{needs_.batch} * tokens_);  // all tokens of all sequences
    model::Generation sizes{
        .tokens = int(round_up(std::max<std::int64_t>(longest, needs_.batch), tp)),
        .sequences = needs_.batch};
    model = model::generating(model, sizes);
    model.generation.blocks = blocks > 0 ? blocks : model.blocks_per_sequence() * needs_.batch;
    return model;
  }

  plan::Plan plan_of(int tp) const {
    const int copies = ranks_ / tp;
    return plan::equal_stages(model_, copies, 1,
                              {.nodes = nodes_,
                               .microbatch = 1,
                               .dp = copies,
                               .tp = tp,
                               .ep = model_.adapter.is_of_experts() ? tp : 1});
  }

  /// Takes plans, with as many blocks of the key cache as fit beside the model, or all of them
  /// where not even one sequence has room. Both plans have weights and keys of their own.
  /// @throws Error(input)
  void use(const plan::PhasePlans& plans, const hardware::Cluster& cluster) {
    made_ = {.plan = engine::generating(plans.answers)};
    if (plans.prompts) made_.prompts = engine::generating(*plans.prompts);
    const std::vector<plan::Plan> both = each(made_.plans());
    require(both.front().stages[0].dp == both.back().stages[0].dp, Failure::input,
            "plans for prompts and answers must have as many copies of the model, found {} and {}",
            both.back().stages[0].dp, both.front().stages[0].dp);
    int tp = 1;
    for (const plan::Plan& one : both)
      for (const plan::Stage& stage : one.stages) tp = std::lcm(tp, stage.tp);
    made_.model = sized(tp, 0);
    for (const plan::Plan& one : both) plan::check(one, made_.model, cluster);
    const model::Config all = made_.model, least = sized(tp, all.blocks_per_sequence());
    double bytes = needs_.memory_bytes;
    std::vector<double> block_bytes;
    for (const plan::Plan& one : both) {
      double most_needed = 0.0, most_of_block = 0.0;
      for (int stage = 0; stage < one.num_stages(); ++stage) {
        const schedule::Arenas needed =
            engine::generator_bytes(one, least, plan::first_rank(one, stage));
        most_needed = std::max(most_needed, double(needed[std::size_t(schedule::Tier::device)]));
        most_of_block =
            std::max(most_of_block, key_bytes(one.stages[stage], all) / all.generation.blocks);
      }
      bytes -= most_needed;
      block_bytes.push_back(most_of_block);
    }
    if (bytes < 0.0) {
      made_.needed_bytes = -bytes;
      return;
    }
    const double least_blocks = least.generation.blocks,
                 of_prompts = plans.prompts ? block_bytes[1] : 0.0;
    double key_bytes = bytes + least_blocks * (block_bytes[0] + of_prompts);
    if (needs_.cache_gib > 0.0) key_bytes = std::min(key_bytes, needs_.cache_gib * 0x1p30);
    double blocks = blocks_in(key_bytes, least_blocks, block_bytes[0], of_prompts);
    blocks = std::min(blocks, double(all.generation.blocks));
    made_.model = sized(tp, std::max(int(blocks), least.generation.blocks));
  }

  const model::Config& model_;
  const GenerationNeeds& needs_;
  int nodes_, ranks_;
  int tokens_;
  GenerationPlan made_;
};

}  // namespace

int longest_pass(bool on_device) { return on_device ? 2048 : 1024; }

std::vector<int> copy_widths(const hardware::NodeGroup& nodes, const deck::SearchKeys& search) {
  std::vector<int> widths = divisors(nodes.devices());
  std::erase_if(widths, [&](int tp) {
    const bool parts_node = tp > nodes.devices_per_node && tp % nodes.devices_per_node != 0;
    return parts_node || !plan::allows(search.tp, tp);
  });
  return widths;
}

double GenerationPlan::cache_bytes() const {
  return key_bytes(plan.stages.front(), model) +
         (prompts ? key_bytes(prompts->stages.front(), prompt_model()) : 0.0);
}

model::Config GenerationPlan::prompt_model() const {
  model::Config own = model;
  own.generation.blocks = std::max(
      model.blocks_per_sequence(),
      int(ceil_div(std::int64_t{model.generation.blocks}, std::int64_t{blocks_per_prompt_block})));
  return own;
}

std::string GenerationPlan::text() const {
  const auto of = [](const plan::Plan& one) {
    return fmt::format("tp {}{}", one.stages.front().tp,
                       one.num_stages() > 1 ? fmt::format(", {} stages", one.num_stages()) : "");
  };
  return fmt::format(
      "{} of the model, {}", copies() == 1 ? "1 copy" : fmt::format("{} copies", copies()),
      prompts ? fmt::format("prompts by {}, answers by {}", of(*prompts), of(plan)) : of(plan));
}

GenerationPlan choose_generation_plan(const model::Config& model, const GenerationNeeds& needs,
                                      int nodes, int ranks) {
  return Choice(model, needs, nodes, ranks).run();
}

}  // namespace brume::app
