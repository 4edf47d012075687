/// @file Options of commands about plans and machines: plan, analyze, simulate, profile, selftest.
#include <string>

#include "command_line.hpp"

namespace brume::app {
namespace {

void add_purpose(CLI::App* verb, std::string& purpose, const char* help) {
  verb->add_option("--for", purpose, help)
      ->type_name("WORK")
      ->check(CLI::IsMember({"training", "generation"}))
      ->capture_default_str();
}

}  // namespace

void CommandLine::add_planning() {
  CLI::App* verb_plan =
      cli.add_subcommand("plan", "Search the fastest plan; needs no MPI launch and no GPU");
  add_deck(verb_plan, plan);
  verb_plan
      ->add_option("-o,--output", plan.output, "Write the plan here (default: standard output)")
      ->type_name("FILE");
  add_purpose(verb_plan, plan.purpose, "Work that the plan is for");
  verb_plan->add_option("--top", plan.top, "Number of next best plans to show")
      ->type_name("K")
      ->check(CLI::Range(1, 1000));
  verb_plan
      ->add_option("--html", plan.html, "Write a page with pictures: stages, time, memory, others")
      ->type_name("FILE");
  verb_plan->add_option("--svg", plan.svg, "Write one picture: stages, memory, timeline")
      ->type_name("FILE");
  verb_plan->add_option("--against", plan.against, "Compare the best plan with this one")
      ->type_name("FILE");
  verb_plan
      ->add_option("--start", plan.start,
                   "Begin with this plan, adapted to the deck's devices, batch and sequences")
      ->type_name("FILE");
  verb_plan->add_option("--search-state", plan.state, about_search_state)->type_name("FILE");
  CLI::Option* sweep =
      verb_plan
          ->add_option("--sweep", plan.sweep,
                       "A plan for each value of a key, for example cluster.nodes=1..4 or "
                       "cluster.memory_gib=16,24,40")
          ->type_name("KEY=VALUES");
  verb_plan->footer(about_keys);
  verb_plan->callback([this] {
    verb = [this] {
      if (plan.purpose == "generation") return app::plan_generation(plan);
      return plan.sweep.empty() ? app::plan(plan) : app::sweep(plan);
    };
  });

  CLI::App* verb_analyze = cli.add_subcommand("analyze", "Predict time and memory of a given plan");
  CLI::App* verb_simulate = cli.add_subcommand("simulate", "Simulate a given plan task by task");
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
  for (const char* of_one_plan : {"--output", "--top", "--explain", "--against", "--html", "--svg",
                                  "--start", "--search-state"})
    sweep->excludes(verb_plan->get_option(of_one_plan));
  verb_analyze->callback([this] { verb = [this] { return app::analyze(plan); }; });
  verb_simulate->callback([this] { verb = [this] { return app::simulate(plan); }; });
}

void CommandLine::add_measuring() {
  CLI::App* verb_profile = cli.add_subcommand(
      "profile", "Measure this cluster for a deck's model; under mpirun or srun");
  add_deck(verb_profile, profile);
  add_purpose(verb_profile, profile.purpose, "Work whose times are measured");
  verb_profile->add_option("-o,--output", profile.output, "Profile to write")
      ->required()
      ->type_name("FILE");
  verb_profile->callback([this] { verb = [this] { return app::profile(profile); }; });

  CLI::App* verb_selftest = cli.add_subcommand(
      "selftest",
      "Check this cluster: correctness of collectives, speed, training under several plans "
      "against one rank, accuracy of predictions; under mpirun or srun");
  verb_selftest
      ->add_option("--profile", selftest.profile,
                   "Profile whose speeds to compare with the measured ones")
      ->type_name("NAME|FILE");
  verb_selftest->callback([this] { verb = [this] { return app::selftest(selftest); }; });
}

}  // namespace brume::app
