/// @file The verbs that take plans from and to other trainers.
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "hardware/cluster.hpp"
#include "interop/megatron.hpp"
#include "interop/torchtitan.hpp"
#include "interop/trainer_space.hpp"
#include "plan/padding.hpp"
#include "planning.hpp"
#include "verbs.hpp"

namespace brume::app {

int import_plan(const ImportPlanOptions& options) {
  const interop::MegatronJob job = interop::read_megatron(options.arguments, options.sets);
  for (const std::string& note : job.notes) log::warn("{}: {}", options.arguments, note);
  make_directory(options.directory);
  const std::filesystem::path directory = options.directory;
  const std::string deck = (directory / "deck.toml").string(),
                    plan = (directory / "plan.toml").string();
  write_file(deck, deck::schema().write(job.deck, true));
  write_file(plan, plan::text(job.plan));
  log::info(
      "{}\n{}plan {} of {}: `brume analyze {} --plan {}` predicts its time and memory; `brume plan "
      "{} "
      "--against {}` looks for a faster plan",
      interop::megatron_version, plan::table(job.plan, terminal::columns(STDERR_FILENO)), plan,
      options.arguments, deck, plan, deck, plan);
  return 0;
}

namespace {

/// The plan as another trainer's settings.
/// @throws Error(input) what that has nothing like; where other plans would do, how to find them
std::string settings_for(const deck::Deck& deck, const model::Config& model, const plan::Plan& plan,
                         const ExportPlanOptions& options) {
  const auto settings = [&](const plan::Plan& any) {
    return options.trainer == "torchtitan" ? interop::torchtitan_module(deck, model, any)
                                           : interop::megatron_script(deck, model, any);
  };
  try {
    return settings(plan);
  } catch (const Error& error) {
    // Where it is the model or its training that the trainer has nothing like, no plan helps.
    settings(plan::equal_stages(model, plan.global_batch, 1, {}));
    throw Error(
        Failure::input,
        fmt::format("{}; `brume plan {} --set search.trainer={}` searches the best plan that "
                    "can go there",
                    error.what(), options.deck, options.trainer));
  }
}

}  // namespace

int export_plan(const ExportPlanOptions& options) {
  if (!options.output.empty()) check_writable(options.output);
  const deck::Deck deck = load_deck(options.deck, options.sets);
  const plan::Plan plan = plan::load(options.plan);
  const model::Config model =
      plan::padded(model::config(deck.model, deck.training.precision), plan);
  check_given(plan, deck, model, hardware::cluster(deck.cluster));
  const bool titan = options.trainer == "torchtitan";
  const std::string settings = settings_for(deck, model, plan, options);
  const std::string untold =
      interop::untold(plan, titan ? interop::torchtitan_version : interop::megatron_version);
  if (!untold.empty()) log::warn("{}: {}", options.plan, untold);
  if (titan)
    log::info("{}: run its training with MODULE=(this file's) CONFIG=plan on {} devices",
              interop::torchtitan_version, plan.devices());
  else
    log::info(
        "{}: run this script in its folder, with arguments for your data, tokenizer and "
        "checkpoints",
        interop::megatron_version);
  if (options.output.empty())
    print(settings);
  else
    write_file(options.output, settings);
  return 0;
}

}  // namespace brume::app
