/// @file Options of commands around a training: init, run, report.
#include "command_line.hpp"

namespace brume::app {

void CommandLine::add_init() {
  CLI::App* verb_init =
      cli.add_subcommand("init", "Write a deck for this machine and your text, ready to train");
  verb_init->add_option("text", init.files, "Files or directories of text to train on");
  verb_init->add_option("-o,--output", init.directory, "Directory to write to")
      ->type_name("DIR")
      ->capture_default_str();
  verb_init
      ->add_option("--tokenizer", init.tokenizer,
                   "tokenizer.json, a model of SentencePiece, or a directory with one (default: "
                   "a token is a byte)")
      ->type_name("FILE|DIR");
  verb_init->callback([this] { verb = [this] { return app::init(init); }; });
}

void CommandLine::add_run() {
  CLI::App* verb_run =
      cli.add_subcommand("run", "Plan (or use --plan), train and resume; under mpirun or srun");
  add_deck(verb_run, run);
  verb_run->add_option("--plan", run.plan, "Train with this plan instead of searching one")
      ->type_name("FILE");
  verb_run->add_option("--steps", run.steps, "Number of steps in all after which to stop")
      ->type_name("N")
      ->check(above_0);
  verb_run
      ->add_option("--resume", run.resume,
                   "auto: newest complete checkpoint; none: start again; or a run directory, or a "
                   "checkpoint")
      ->type_name("auto|none|DIR")
      ->capture_default_str();
  verb_run->add_option("--search-state", run.search_state, about_search_state)->type_name("FILE");
  verb_run->add_flag("--replan", run.replan,
                     "On resume search a new plan instead of the checkpoint's");
  verb_run->add_flag("--elastic", run.elastic,
                     "Train on the nodes and ranks that are there, whatever the deck says, and "
                     "search a new plan where the checkpoint's is for others");
  verb_run->add_flag("--new-data", run.new_data,
                     "On resume take other data, order or seed, from their first sample");
  verb_run
      ->add_option("--max-minutes", run.max_minutes,
                   "Checkpoint and leave with 75 so that the process ends within this time")
      ->type_name("M")
      ->check(above_0);
  verb_run->add_flag("--dry-run", run.dry_run, "Stop before the first step");
  verb_run
      ->add_option("--log", run.log,
                   "Steps on standard output as a table, or as the lines of metrics.jsonl")
      ->type_name("plain|json")
      ->check(CLI::IsMember({"plain", "json"}))
      ->capture_default_str();
  verb_run->footer(about_keys);
  verb_run->callback([this] { verb = [this] { return app::run(run); }; });
}

void CommandLine::add_report() {
  CLI::App* verb_report =
      cli.add_subcommand("report", "Write one HTML page about runs: curves, step times, hints");
  verb_report->add_option("runs", report.runs, "Run directories; several are compared")->required();
  verb_report
      ->add_option("-o,--output", report.output,
                   "Page to write (default: report.html in the first run directory)")
      ->type_name("FILE");
  verb_report->add_flag("--text", report.text, "Print numbers and hints instead");
  verb_report->callback([this] { verb = [this] { return app::report(report); }; });
}

}  // namespace brume::app
