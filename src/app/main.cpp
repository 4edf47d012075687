/// @file The command line: reads options, calls a verb, turns its end into an exit code.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>

#include "base/error.hpp"
#include "base/log.hpp"
#include "deck/deck.hpp"
#include "verbs.hpp"

namespace {

using namespace brume;

void add_deck(CLI::App* verb, app::DeckOptions& options) {
  verb->add_option("deck", options.deck, "Input deck (TOML)")->required();
  verb->add_option("--set", options.sets,
                   "Override a key of the deck, for example training.steps=10")
      ->type_name("KEY=VALUE");
}

std::string deck_keys() {
  std::string text = "Keys of a deck:\n";
  for (const std::string& line : deck::schema().help()) text += "  " + line + "\n";
  return text;
}

/// Everything the command line can say, and the verb it asked for.
struct CommandLine {
  CLI::App cli{"Brume plans and runs the training of transformers in one MPI batch job.", "brume"};
  app::RunOptions run;
  app::PlanOptions plan;
  app::DeckOptions check, profile;
  std::string profile_output;
  app::SelftestOptions selftest;
  app::ImportOptions import;
  app::ImportMistOptions mist;
  app::ImportMistProfileOptions mist_profile;
  bool verbose = false;
  std::function<int()> verb;

  CommandLine() {
    cli.require_subcommand(0, 1);  // at least 1 would hide the name of an unknown one
    cli.fallthrough();
    cli.set_version_flag("--version", "brume " BRUME_VERSION);
    cli.add_flag("-v,--verbose", verbose, "Say more in the log");
    add_run();
    add_planning();
    add_tools();
  }

  void add_run() {
    CLI::App* verb_run =
        cli.add_subcommand("run", "Plan (or take --plan), train, resume; under mpirun or srun");
    add_deck(verb_run, run);
    verb_run->add_option("--plan", run.plan, "Train with this plan instead of searching one")
        ->type_name("FILE");
    verb_run->add_option("--steps", run.steps, "Stop after this many iterations in all")
        ->type_name("N");
    verb_run
        ->add_option("--resume", run.resume,
                     "auto: newest good checkpoint of the run; none; or a checkpoint directory")
        ->capture_default_str();
    verb_run->add_flag("--replan", run.replan,
                       "On resume search a new plan instead of the checkpoint's");
    verb_run->add_flag("--new-data", run.new_data,
                       "On resume take other data, order or seed, from their first sample");
    verb_run
        ->add_option("--max-minutes", run.max_minutes,
                     "Checkpoint and leave with 75 so that the process ends within this time")
        ->type_name("M");
    verb_run->add_flag("--dry-run", run.dry_run, "Stop before the first iteration");
    verb_run->footer(deck_keys());
    verb_run->callback([this] { verb = [this] { return app::run(run); }; });
  }

  void add_planning() {
    CLI::App* verb_plan = cli.add_subcommand("plan", "Search a plan only: no MPI launch, no GPU");
    add_deck(verb_plan, plan);
    verb_plan
        ->add_option("-o,--output", plan.output, "Write the plan here (default: standard output)")
        ->type_name("FILE");
    verb_plan->add_option("--top", plan.top, "Show so many of the next best plans")
        ->type_name("K")
        ->check(CLI::Range(1, 1000));
    CLI::Option* sweep =
        verb_plan
            ->add_option("--sweep", plan.sweep,
                         "A plan for each value of a key, for example cluster.nodes=1..4 or "
                         "cluster.memory_gib=16,24,40")
            ->type_name("KEY=VALUES");
    verb_plan->footer(deck_keys());
    verb_plan->callback([this] {
      verb = [this] { return plan.sweep.empty() ? app::plan(plan) : app::sweep(plan); };
    });

    CLI::App* verb_analyze =
        cli.add_subcommand("analyze", "Predict time and memory of a given plan");
    CLI::App* verb_simulate =
        cli.add_subcommand("simulate", "Simulate the Programs of a given plan, event by event");
    for (CLI::App* verb_given : {verb_analyze, verb_simulate}) {
      add_deck(verb_given, plan);
      verb_given->add_option("--plan", plan.plan, "The plan")->required()->type_name("FILE");
    }
    verb_simulate->add_option("--trace", plan.trace, "Write the timeline for Chrome and Perfetto")
        ->type_name("FILE");
    for (CLI::App* any : {verb_plan, verb_analyze, verb_simulate})
      any->add_flag("--json", plan.json, "Print one JSON object");
    for (CLI::App* any : {verb_plan, verb_analyze})
      any->add_flag("--explain", plan.explain, "Print the formulas with numbers");
    for (const char* of_one_plan : {"--output", "--top", "--explain"})
      sweep->excludes(verb_plan->get_option(of_one_plan));
    verb_analyze->callback([this] { verb = [this] { return app::analyze(plan); }; });
    verb_simulate->callback([this] { verb = [this] { return app::simulate(plan); }; });
  }

  void add_mist(CLI::App* verb_import) {
    CLI::App* configuration = verb_import->add_subcommand(
        "mist", "A configuration of Mist: deck.toml, plan.toml and, for other links, profile.toml");
    configuration->add_option("configuration", mist.configuration, "Resolved, YAML or JSON")
        ->required();
    configuration->add_option("-o,--output", mist.directory, "Directory to write to")->required();
    configuration->add_option("--profile", mist.profile, "Where operator times come from")
        ->type_name("NAME|FILE")
        ->capture_default_str();
    configuration->callback([this] { verb = [this] { return app::import_mist(mist); }; });

    CLI::App* times =
        verb_import->add_subcommand("mist-profile", "Operator times of Mist, as a profile");
    times->add_option("file", mist_profile.file, "Operator times (JSON)")->required();
    times->add_option("-o,--output", mist_profile.output, "Profile to write")
        ->required()
        ->type_name("FILE");
    times->add_option("--name", mist_profile.name, "What was measured, for example 'NVIDIA L4'");
    times->add_option("--database", mist_profile.database,
                      "The source to take, when the file has several");
    times->add_option("--hardware", mist_profile.hardware,
                      "The template of links, copies and slowdowns to take (default: none)");
    times->callback([this] { verb = [this] { return app::import_mist_profile(mist_profile); }; });
  }

  void add_tools() {
    CLI::App* verb_profile = cli.add_subcommand(
        "profile", "Measure this cluster for a deck's model; under mpirun or srun");
    add_deck(verb_profile, profile);
    verb_profile->add_option("-o,--output", profile_output, "Profile to write")
        ->required()
        ->type_name("FILE");
    verb_profile->callback(
        [this] { verb = [this] { return app::profile(profile, profile_output); }; });

    CLI::App* verb_selftest = cli.add_subcommand(
        "selftest",
        "Check this cluster: collectives by value, speed, plans against one rank and their "
        "prediction; under mpirun or srun");
    verb_selftest
        ->add_option("--profile", selftest.profile, "Show its speeds beside the measured ones")
        ->type_name("NAME|FILE");
    verb_selftest->callback([this] { verb = [this] { return app::selftest(selftest); }; });

    CLI::App* verb_check =
        cli.add_subcommand("check", "Validate a deck and print it with all defaults");
    add_deck(verb_check, check);
    verb_check->callback([this] { verb = [this] { return app::check(check); }; });

    CLI::App* verb_import = cli.add_subcommand("import", "Bring other people's formats in");
    verb_import->require_subcommand(1);
    CLI::App* tokens = verb_import->add_subcommand(
        "tokens", "Pack text, byte by byte, into train.tok and valid.tok");
    tokens->add_option("files", import.files, "Files or directories")->required();
    tokens->add_option("-o,--output", import.directory, "Directory to write to")
        ->capture_default_str();
    tokens->add_option("--valid", import.valid_ratio, "Share held out for validation")
        ->capture_default_str();
    tokens->callback([this] { verb = [this] { return app::import_tokens(import); }; });
    add_mist(verb_import);
  }
};

}  // namespace

int main(int argc, char** argv) {
  CommandLine line;
  try {
    line.cli.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = line.cli.exit(error) == 0 ? 0 : int(Failure::input);
    if (std::cout.flush()) return code;
    std::fputs("brume: standard output cannot be written\n", stderr);
    return int(Failure::storage);
  }
  if (!line.verb) {
    std::fputs(line.cli.help().c_str(), stderr);
    return int(Failure::input);
  }
  log::start(0, 1, line.verbose);
  // A file size limit then shows as a failed write, which names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = line.verb();
    require(std::fflush(stdout) == 0 && std::ferror(stdout) == 0, Failure::storage,
            "standard output cannot be written");
    return code;
  } catch (const std::exception& error) {
    const Error meant = error_of(error);
    log::error("brume: {}", meant.what());
    return int(meant.failure());
  }
}
