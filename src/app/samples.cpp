#include "samples.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "answers.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "engine/generator.hpp"
#include "inference.hpp"
#include "io/shared_weights.hpp"

namespace brume::app {
namespace {

constexpr std::ptrdiff_t most_at_once = 16;  ///< sequences on a copy of the model

}  // namespace

Samples::Samples(const Prepared& run, const comm::Session& session, comm::Communicator& crew)
    : run_(run), session_(session), crew_(crew) {}

/// The least that the deck's memory leaves a device between steps, as rank 0 knows it.
double Samples::room_bytes(const std::vector<schedule::Program>& programs) {
  std::array<double, 1> room{0.0};
  if (!programs.empty()) room[0] = std::numeric_limits<double>::max();
  for (const schedule::Program& program : programs) {
    const plan::Stage& stage = run_.plan.stages[plan::stage_index(run_.plan, program.rank)];
    const hardware::NodeGroup& group = run_.cluster.groups[run_.cluster.index(stage.group)];
    const schedule::Arenas kept = engine::kept_bytes(program);
    room[0] =
        std::min(room[0], double(group.memory_bytes - kept[std::size_t(schedule::Tier::device)]));
  }
  crew_.all_reduce(room, comm::Reduction::sum);
  return room[0];
}

void Samples::choose_plan(std::vector<schedule::Program>& programs) {
  const SamplePrompts& asked = *run_.sample_prompts;
  const model::Config model = model::config(run_.deck.model, run_.deck.training.precision);
  const double room = room_bytes(programs);
  const int nodes = session_.num_nodes(), ranks = crew_.size();
  comm::together(crew_, [&] {
    plan_ = choose_generation_plan(model,
                                   {.tokens = asked.longest(),
                                    .batch = int(std::min(std::ssize(asked.prompts), most_at_once)),
                                    .memory_bytes = room,
                                    .training = &run_.plan,
                                    .cluster = &run_.cluster},
                                   ranks % nodes == 0 ? nodes : 1, ranks);
    require(plan_.needed_bytes == 0.0, Failure::infeasible,
            "training.samples: the model and its keys need {} per device more than steps and "
            "cluster.memory_gib leave: raise it, shorten the prompts or max_tokens, or leave "
            "training.samples.prompts out",
            format_bytes(plan_.needed_bytes));
    bytes_ = engine::generator_bytes(plan_.plan, plan_.model, crew_.rank());
  });
  // All ranks tell rank 0 what they take.
  std::vector<double> all(std::size_t(ranks) * bytes_.size(), 0.0);
  std::copy(bytes_.begin(), bytes_.end(),
            all.begin() + std::ptrdiff_t(bytes_.size()) * crew_.rank());
  crew_.all_reduce(all, comm::Reduction::sum);
  for (schedule::Program& program : programs) {
    schedule::Arenas bytes{};
    for (std::size_t tier = 0; tier < bytes.size(); ++tier)
      bytes[tier] = std::int64_t(all[std::size_t(program.rank) * bytes.size() + tier]);
    program.arena_bytes = engine::with_lent(program, bytes);
  }
  if (crew_.rank() != 0) return;
  log::info("samples: {} on {}, in {} per device between steps",
            counted(std::ssize(asked.prompts), "prompt"), plan_.text(),
            format_bytes(double(bytes_[std::size_t(schedule::Tier::device)])));
}

std::vector<io::SampleRow> Samples::answer(engine::Engine& engine, int threads,
                                           const std::function<void()>& on_progress,
                                           const std::function<bool()>& stops) {
  const SamplePrompts& asked = *run_.sample_prompts;
  engine::Settings settings = inference_settings(session_, run_.deck, threads);
  settings.on_task_done = on_progress;
  const engine::LentMemory lent = engine.lend();
  engine::Generator generator(plan_.plan, plan_.model, settings, crew_, &lent);
  io::share_weights(crew_, engine.slabs(), generator.slabs(), on_progress);

  std::vector<Asked> all;
  for (std::int64_t i = 0; i < std::ssize(asked.prompts); ++i) all.push_back({i, 0});
  std::vector<io::SampleRow> rows;
  const auto text_of = [](const OpenAnswer& open, const char* finish) {
    return dump(nlohmann::ordered_json{{"index", open.asked.prompt},
                                       {"text", open.answer.text()},
                                       {"finish", finish},
                                       {"tokens", open.tokens}}) +
           "\n";
  };
  const auto take = [&](const std::string& lines) {
    std::istringstream in(lines);
    for (std::string line; crew_.rank() == 0 && std::getline(in, line);) {
      const auto object = nlohmann::json::parse(line);
      const auto index = object.at("index").get<std::int64_t>();
      rows.push_back({.step = engine.steps_done(),
                      .index = index,
                      .prompt = asked.prompts[index].text,
                      .text = object.at("text"),
                      .finish = object.at("finish"),
                      .tokens = object.at("tokens")});
    }
  };
  app::answer({generator}, plan_, {asked.prompts, asked.tokens, asked.translator, true}, all,
              {.text_of = text_of, .take = take, .stops = stops}, crew_);
  std::ranges::sort(rows, {}, &io::SampleRow::index);
  return rows;
}

}  // namespace brume::app
