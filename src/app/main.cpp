/// @file The command line: reads options, calls a verb, turns its end into an exit code.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "comm/session.hpp"
#include "completion.hpp"
#include "exchange.hpp"
#include "manual.hpp"
#include "signals.hpp"
#include "verbs.hpp"
#include "version.hpp"

namespace {

using namespace brume;

constexpr const char* about_keys = "Keys of a deck, with units and defaults: brume keys [PREFIX]";

/// Help as wide as the terminal.
class Help : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return hanging(CLI::Formatter::make_help(app, std::move(name), mode),
                   terminal::columns(STDOUT_FILENO));
  }
};

/// Takes numbers above 0 only.
const CLI::Validator above_0(
    [](const std::string& text) {
      double value = 0.0;
      const bool holds = CLI::detail::lexical_cast(text, value) && value > 0.0;
      return holds ? std::string() : fmt::format("must be above 0, found {}", text);
    },
    "");

/// Everything the command line can say, and the verb it asked for.
struct CommandLine {
  CLI::App cli{"Brume plans and runs the training of transformers in one MPI batch job.", "brume"};
  app::RunOptions run;
  app::EvalOptions eval;
  app::GenerateOptions generate;
  app::ChatOptions chat;
  app::ReportOptions report;
  app::PlanOptions plan;
  app::DeckOptions check;
  app::ProfileOptions profile;
  app::SelftestOptions selftest;
  app::InitOptions init;
  app::KeysOptions keys;
  app::ExchangeVerbs exchange;
  bool verbose = false;
  std::function<int()> verb;

  CommandLine() {
    cli.formatter(std::make_shared<Help>());  // of all verbs, which take it over
    cli.require_subcommand(0, 1);             // at least 1 would hide the name of an unknown one
    cli.fallthrough();
    cli.set_version_flag("--version",
                         fmt::format("brume {} of sources {}", BRUME_VERSION, app::sources_id));
    cli.add_flag("-v,--verbose", verbose, "Print decisions and their reasons");
    add_init();
    add_run();
    add_eval();
    add_generate();
    add_chat();
    add_report();
    add_planning();
    add_tools();
    app::add_examples(cli);
  }

  /// What is wrong with words that nobody asked for.
  std::string unexpected() const {
    const std::vector<CLI::App*> verbs = cli.get_subcommands();
    const CLI::App& app = verbs.empty() ? cli : *verbs.front();
    const std::vector<std::string> words = cli.remaining(true);
    const std::string& word = words.front();
    std::vector<std::string> known;
    if (word.starts_with('-'))
      for (const CLI::Option* option : app.get_options())
        known.push_back("--" + (option->get_lnames().empty() ? "" : option->get_lnames()[0]));
    else if (verbs.empty())
      for (const CLI::App* verb : app.get_subcommands({})) known.push_back(verb->get_name());
    const std::string meant = nearest(word, known);
    return fmt::format("{} '{}' is not known; {}`brume {}--help` says what there is",
                       word.starts_with('-') ? "option"
                       : verbs.empty()       ? "verb"
                                             : "argument",
                       word, meant.empty() ? "" : fmt::format("did you mean '{}'? ", meant),
                       verbs.empty() ? "" : app.get_name() + " ");
  }

  /// Refuses paths that a shell would have to expand, as it does after a space, but not after "=".
  static void require_whole_paths(const CLI::App& app) {
    for (const CLI::Option* option : app.get_options()) {
      const std::string kind = option->get_type_name();
      if (kind.find("FILE") == kind.npos && kind.find("DIR") == kind.npos) continue;
      const std::string name = option->get_name();
      for (const std::string& path : option->results())
        require(!has_shell_word(path), Failure::input,
                "{}={}: only a shell expands ~ and $NAME, and only after a space. Write {} {}",
                name, path, name, path);
    }
    for (const CLI::App* verb : app.get_subcommands()) require_whole_paths(*verb);
  }

  void add_init() {
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

  void add_run() {
    CLI::App* verb_run =
        cli.add_subcommand("run", "Plan (or use --plan), train and resume; under mpirun or srun");
    app::add_deck(verb_run, run);
    verb_run->add_option("--plan", run.plan, "Train with this plan instead of searching one")
        ->type_name("FILE");
    verb_run->add_option("--steps", run.steps, "Number of steps in all after which to stop")
        ->type_name("N")
        ->check(above_0);
    verb_run
        ->add_option(
            "--resume", run.resume,
            "auto: newest complete checkpoint; none: start again; or a run directory, or a "
            "checkpoint")
        ->type_name("auto|none|DIR")
        ->capture_default_str();
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

  /// Options of verbs that compute with trained weights.
  static void add_weights(CLI::App* of_verb, std::string& weights, std::string& adapter) {
    of_verb
        ->add_option("weights", weights,
                     "Run directory, one of its checkpoints, or a Hugging Face model")
        ->required();
    of_verb
        ->add_option("--adapter", adapter,
                     "Directory of an adapter of PEFT for these weights (default: the run's own)")
        ->type_name("DIR");
  }
  static void add_tokenizer(CLI::App* of_verb, std::string& tokenizer) {
    of_verb
        ->add_option("--tokenizer", tokenizer,
                     "tokenizer.json, a model of SentencePiece, or a directory with one (default: "
                     "the weights' own)")
        ->type_name("FILE|DIR");
  }

  void add_eval() {
    CLI::App* verb_eval = cli.add_subcommand("eval",
                                             "Compute loss and perplexity of trained weights on a "
                                             "token file, or log-likelihoods of completions; "
                                             "one rank, mpirun or srun");
    add_weights(verb_eval, eval.weights, eval.adapter);
    verb_eval->add_option("--data", eval.data, "Token file (default: the run's data.valid)")
        ->type_name("FILE");
    verb_eval
        ->add_option(
            "--completions", eval.completions,
            "Instead of --data: lines of JSON with \"prompt\" and \"completion\"; prints the "
            "log-likelihood of each")
        ->type_name("FILE");
    add_tokenizer(verb_eval, eval.tokenizer);
    verb_eval
        ->add_option("--begin", eval.begin,
                     "Token before each prompt, for example '<s>' (default: none)")
        ->type_name("TOKEN");
    verb_eval->add_option("--sequences", eval.sequences, "Largest number of sequences to read")
        ->type_name("N")
        ->check(above_0);
    verb_eval
        ->add_option("--plan", eval.plan,
                     "Evaluate with this plan (default: the run's, or ZeRO 3 over all ranks)")
        ->type_name("FILE");
    verb_eval
        ->add_option("--set", eval.sets,
                     "Override a key of the run's deck, for example model.seq_len=1024")
        ->type_name("KEY=VALUE");
    verb_eval->add_flag("--json", eval.json, "Print one JSON object");
    verb_eval->callback([this] { verb = [this] { return app::eval(eval); }; });
  }

  inline static const std::map<std::string_view, const char*> sampling_help{
      {"temperature", "Divides logits before a token is drawn; 0: the most likely token"},
      {"top_p", "Draw from the fewest tokens whose probabilities add up to X"},
      {"min_p", "Draw from tokens with this share of the largest probability"},
      {"repetition_penalty", "Divides positive logits of tokens that occurred, multiplies others"},
      {"presence_penalty", "Subtracted from logits of tokens that the answer has"},
      {"frequency_penalty", "... for each time that the answer has the token"}};

  /// Options of verbs by which a model answers.
  static void add_answering(CLI::App* of_verb, app::AnswerOptions& o) {
    add_weights(of_verb, o.weights, o.adapter);
    of_verb->add_option("--system", o.system, "System message before each conversation")
        ->type_name("TEXT");
    of_verb
        ->add_option("--chat-template", o.chat_template,
                     "Jinja template that makes a text of a conversation (default: the "
                     "tokenizer's own)")
        ->type_name("FILE");
    of_verb->add_option("--max-tokens", o.max_tokens, "Longest answer in tokens")
        ->type_name("N")
        ->check(above_0)
        ->capture_default_str();
    for (const generation::SamplingKey& key : generation::sampling_keys()) {
      std::string option = std::string("--") + key.name;
      std::ranges::replace(option, '_', '-');
      of_verb->add_option(option, o.sampling.*key.value, sampling_help.at(key.name))
          ->type_name("X")
          ->check(CLI::Range(key.least, key.most))
          ->capture_default_str();
    }
    of_verb->add_option("--top-k", o.sampling.top_k, "Draw from the K most likely tokens; 0: all")
        ->type_name("K")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    of_verb->add_option("--seed", o.sampling.seed, "Seed of drawn tokens")
        ->type_name("N")
        ->capture_default_str();
    of_verb->add_option("--stop", o.stops, "Text before which an answer ends; may be repeated")
        ->type_name("TEXT")
        ->take_all();
    of_verb
        ->add_option("--end", o.ends,
                     "Token that ends an answer; may be repeated (default: eos_token_id of "
                     "generation_config.json or config.json; of conversations also eos_token of "
                     "tokenizer_config.json)")
        ->type_name("TOKEN")
        ->take_all();
    add_tokenizer(of_verb, o.tokenizer);
    of_verb
        ->add_option("--cache-gib", o.cache_gib,
                     "Most memory of a rank for keys and values (default: what all sequences need, "
                     "if it is there)")
        ->type_name("GIB")
        ->check(CLI::PositiveNumber);
    of_verb
        ->add_option("--plan", o.plan,
                     "Stages and tensor parallelism of a plan (default: one stage)")
        ->type_name("FILE");
    of_verb
        ->add_option("--set", o.sets,
                     "Override a key of the run's deck, for example model.seq_len=4096")
        ->type_name("KEY=VALUE");
  }

  static void check_answering(const app::AnswerOptions& o) {
    for (const generation::SamplingKey& key : generation::sampling_keys())
      require(std::isfinite(o.sampling.*key.value), Failure::input, "--{} must be a number",
              key.name);
    require(std::isfinite(o.cache_gib), Failure::input, "--cache-gib must be a number");
    require(o.tp == 0 || o.plan.empty(), Failure::input,
            "--plan has its own tensor parallelism: leave --tp out");
    require(std::ranges::find(o.stops, "") == o.stops.end(), Failure::input, "--stop needs a text");
  }

  void add_generate() {
    CLI::App* verb_generate = cli.add_subcommand(
        "generate",
        "Answer prompts with trained weights; one rank, mpirun or srun. The same command again "
        "makes the answers that a killed job left open");
    app::GenerateOptions& o = generate;
    CLI::Option* file =
        verb_generate
            ->add_option("--prompts", o.prompts_file,
                         "Prompts: a line of text each, or lines of JSON with \"prompt\" or "
                         "\"messages\"")
            ->type_name("FILE");
    verb_generate->add_option("--prompt", o.prompts, "A prompt; may be repeated")
        ->type_name("TEXT")
        ->take_all()
        ->excludes(file);
    verb_generate->add_flag("--chat", o.chat,
                            "Prompts are messages of a user, for models that learned to chat");
    verb_generate
        ->add_option("-o,--output", o.output,
                     "Answers, a line of JSON each, in the order in which they end (default: "
                     "standard output; the answer to a single --prompt as text)")
        ->type_name("FILE");
    add_answering(verb_generate, o);
    verb_generate->add_option("--samples", o.samples, "Answers to each prompt")
        ->type_name("N")
        ->check(above_0)
        ->capture_default_str();
    verb_generate
        ->add_option("--begin", o.begin,
                     "Token before each prompt, '' for none (default: the tokenizer's own)")
        ->type_name("TOKEN");
    verb_generate
        ->add_option("--batch", o.batch, "Sequences that a copy of the model computes at once")
        ->type_name("N")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    verb_generate
        ->add_option("--tp", o.tp,
                     "Ranks that share each copy of the model (default: as few as it fits on)")
        ->type_name("N")
        ->check(above_0);
    verb_generate->add_flag("--log-probabilities", o.sampling.log_probabilities,
                            "Add the log-probability of each answer in the model");
    verb_generate->add_flag("--json", o.json, "Print a line of JSON for a single --prompt too");
    verb_generate->callback([this] {
      verb = [this] {
        require(!generate.prompts_file.empty() || !generate.prompts.empty(), Failure::input,
                "generate needs --prompts FILE or --prompt TEXT");
        check_answering(generate);
        return app::generate(generate);
      };
    });
  }

  void add_chat() {
    CLI::App* verb_chat = cli.add_subcommand(
        "chat",
        "Talk with trained weights in a terminal; one rank, mpirun or srun. /help lists commands");
    add_answering(verb_chat, chat);
    verb_chat
        ->add_option("--context", chat.context_tokens,
                     "Longest conversation in tokens, if the model allows it")
        ->type_name("N")
        ->check(above_0)
        ->capture_default_str();
    verb_chat
        ->add_option("--tp", chat.tp,
                     "Ranks that share the model (default: as many as it can be cut over)")
        ->type_name("N")
        ->check(above_0);
    verb_chat->callback([this] {
      verb = [this] {
        check_answering(chat);
        return app::chat(chat);
      };
    });
  }

  void add_report() {
    CLI::App* verb_report =
        cli.add_subcommand("report", "Write one HTML page about runs: curves, step times, hints");
    verb_report->add_option("runs", report.runs, "Run directories; several are compared")
        ->required();
    verb_report
        ->add_option("-o,--output", report.output,
                     "Page to write (default: report.html in the first run directory)")
        ->type_name("FILE");
    verb_report->add_flag("--text", report.text, "Print numbers and hints instead");
    verb_report->callback([this] { verb = [this] { return app::report(report); }; });
  }

  static void add_purpose(CLI::App* verb, std::string& purpose, const char* help) {
    verb->add_option("--for", purpose, help)
        ->type_name("WORK")
        ->check(CLI::IsMember({"training", "generation"}))
        ->capture_default_str();
  }

  void add_planning() {
    CLI::App* verb_plan =
        cli.add_subcommand("plan", "Search the fastest plan; needs no MPI launch and no GPU");
    app::add_deck(verb_plan, plan);
    verb_plan
        ->add_option("-o,--output", plan.output, "Write the plan here (default: standard output)")
        ->type_name("FILE");
    add_purpose(verb_plan, plan.purpose, "Work that the plan is for");
    verb_plan->add_option("--top", plan.top, "Number of next best plans to show")
        ->type_name("K")
        ->check(CLI::Range(1, 1000));
    verb_plan
        ->add_option("--html", plan.html,
                     "Write a page with pictures: stages, time, memory, others")
        ->type_name("FILE");
    verb_plan->add_option("--svg", plan.svg, "Write one picture: stages, memory, timeline")
        ->type_name("FILE");
    verb_plan->add_option("--against", plan.against, "Compare the best plan with this one")
        ->type_name("FILE");
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

    CLI::App* verb_analyze =
        cli.add_subcommand("analyze", "Predict time and memory of a given plan");
    CLI::App* verb_simulate = cli.add_subcommand("simulate", "Simulate a given plan task by task");
    for (CLI::App* verb_given : {verb_analyze, verb_simulate}) {
      app::add_deck(verb_given, plan);
      verb_given->add_option("--plan", plan.plan, "The plan")->required()->type_name("FILE");
    }
    verb_simulate->add_option("--trace", plan.trace, "Write the timeline for Chrome and Perfetto")
        ->type_name("FILE");
    for (CLI::App* any : {verb_plan, verb_analyze, verb_simulate})
      any->add_flag("--json", plan.json, "Print one JSON object");
    for (CLI::App* any : {verb_plan, verb_analyze})
      any->add_flag("--explain", plan.explain, "Print the formulas with numbers");
    for (const char* of_one_plan :
         {"--output", "--top", "--explain", "--against", "--html", "--svg"})
      sweep->excludes(verb_plan->get_option(of_one_plan));
    verb_analyze->callback([this] { verb = [this] { return app::analyze(plan); }; });
    verb_simulate->callback([this] { verb = [this] { return app::simulate(plan); }; });
  }

  void add_tools() {
    CLI::App* verb_profile = cli.add_subcommand(
        "profile", "Measure this cluster for a deck's model; under mpirun or srun");
    app::add_deck(verb_profile, profile);
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

    CLI::App* verb_keys =
        cli.add_subcommand("keys", "List the keys of a deck with units, defaults and meaning");
    verb_keys->add_option("prefix", keys.prefix,
                          "Show only keys with this prefix, for example cluster.");
    verb_keys->add_option("--of", keys.kind, "Kind of file")
        ->type_name("KIND")
        ->check(CLI::IsMember({"deck", "plan", "profile", "machine", "network"}))
        ->capture_default_str();
    verb_keys->add_flag("--markdown", keys.markdown, "Print Markdown tables");
    verb_keys->callback([this] { verb = [this] { return app::keys(keys); }; });

    CLI::App* verb_manual =
        cli.add_subcommand("manual", "Print the manual page, for example: brume manual | man -l -");
    verb_manual->callback([this] {
      verb = [this] {
        fmt::print("{}", app::manual_page(cli, BRUME_VERSION));
        return 0;
      };
    });

    CLI::App* verb_completion =
        cli.add_subcommand("completion", "Print the completion script for bash and zsh");
    verb_completion->callback([this] {
      verb = [this] {
        fmt::print("{}", app::bash_completion(cli));
        return 0;
      };
    });

    CLI::App* verb_check =
        cli.add_subcommand("check", "Validate a deck and print it with all defaults");
    app::add_deck(verb_check, check);
    verb_check->callback([this] { verb = [this] { return app::check(check); }; });

    exchange.add(cli, verb);
  }
};

/// A job may keep open as many files as this process may allow itself: hundreds of token files are
/// more than the usual 1024. No library makes a table of many entries for so many.
void allow_open_files() {
  constexpr rlim_t enough = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) return;
  limit.rlim_cur = std::min(limit.rlim_max, enough);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Reads the command line and calls its verb. @return the exit code
int called(int argc, char** argv) {
  CommandLine line;
  try {
    line.cli.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    throw Error(Failure::input, line.unexpected());
  } catch (const CLI::ParseError& error) {
    require(error.get_exit_code() == 0, Failure::input,
            "{}\n`see `brume --help` and `brume VERB --help`", error.what());
    line.cli.exit(error);
    require(bool(std::cout.flush()), Failure::storage, "standard output cannot be written");
    return 0;
  }
  CommandLine::require_whole_paths(line.cli);
  if (!line.verb) {
    std::fputs(line.cli.help().c_str(), stderr);
    return int(Failure::input);
  }
  log::start(0, 1, line.verbose);
  if (!line.cli.got_subcommand("run")) app::release_signals();  // run answers them
  allow_open_files();
  // A file size limit then shows as a failed write, which names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = line.verb();
  require(std::fflush(stdout) == 0 && std::ferror(stdout) == 0, Failure::storage,
          "standard output cannot be written");
  return code;
}

/// A lack of memory that nobody catches, before main() or in a thread, ends the job as elsewhere.
std::terminate_handler end_otherwise = nullptr;
void end_uncaught() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    comm::Session::let_rank_0_speak();  // memory mostly ends for all ranks at once
    std::fprintf(stderr, "brume: %s\n", memory_ran_out);
    comm::Session::abort(int(Failure::resource));
    ::_exit(int(Failure::resource));
  } catch (...) {
  }
  end_otherwise();
}

void before_libraries() {
  app::hold_signals();
  end_otherwise = std::set_terminate(end_uncaught);
}

/// The loader calls it before libraries initialise themselves, which takes a good part of the time
/// until main(): a request that comes meanwhile would kill the process.
[[gnu::section(".preinit_array"), gnu::used]] void (*const preinit)() = before_libraries;

}  // namespace

int main(int argc, char** argv) {
  try {
    log::start(0, 1, false);
    return called(argc, argv);
  } catch (const std::exception& error) {
    const Error meant = error_of(error);
    comm::Session::let_rank_0_speak();  // all ranks have the same command line
    log::error("brume: {}", meant.what());
    return int(meant.failure());
  }
}
