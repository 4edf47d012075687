#include "manual.hpp"

#include <fmt/format.h>

#include <sstream>
#include <string_view>

namespace brume::app {
namespace {

struct Example {
  const char* verb;  ///< with those above it
  const char* command;
  const char* purpose;
};

constexpr Example examples[] = {
    {"init", "brume init my-texts/ -o mine", "pack a text, write a deck of a size that fits it"},
    {"run", "mpirun -n 4 brume run mine/deck.toml",
     "plan and train; the same command again resumes"},
    {"run", "srun brume run deck.toml --max-minutes 110", "stop with a checkpoint in time"},
    {"run", "mpirun -n 8 brume run deck.toml --replan", "resume on other ranks with a new plan"},
    {"run", "srun brume run deck.toml --set training.compare_replicas_every=20",
     "compare replicas of weights more often"},
    {"eval", "mpirun -n 4 brume eval runs/run --data other.tok",
     "loss and perplexity on other text"},
    {"generate", "mpirun -n 2 brume generate runs/run --prompts prompts.jsonl -o answers.jsonl",
     "answer prompts"},
    {"chat", "brume chat runs/run --temperature 0.7", "talk with a model that learned to chat"},
    {"report", "brume report runs/a runs/b -o both.html", "two runs on one page"},
    {"plan", "brume plan deck.toml -o plan.toml --html plan.html", "keep the plan and its picture"},
    {"plan", "brume plan deck.toml --sweep cluster.nodes=1..16", "plans for one to sixteen nodes"},
    {"plan", "brume plan deck.toml --set cluster.machine=dgx-h200 --against plan.toml",
     "compare a known plan with the best one on another machine"},
    {"analyze", "brume analyze deck.toml --plan plan.toml --explain",
     "time and memory by formulas"},
    {"simulate", "brume simulate deck.toml --plan plan.toml --trace trace.json",
     "every task, for ui.perfetto.dev"},
    {"profile", "srun brume profile deck.toml -o profile.toml", "measure this machine once"},
    {"selftest", "mpirun -n 4 brume selftest",
     "check collectives, speed and training on this machine"},
    {"check", "brume check deck.toml", "a deck with all its defaults and their meaning"},
    {"keys", "brume keys training.optimizer", "the keys of a table"},
    {"import tokens", "brume import tokens notes/ code.jsonl --tokenizer gpt2/ -o data",
     "text to token files"},
    {"import hf", "mpirun -n 4 brume import hf Llama-3.2-1B -o runs/llama",
     "pretrained weights as a checkpoint"},
    {"import plan",
     "brume import plan train.sh --from megatron -o mine --set cluster.machine=dgx-h100",
     "a Megatron-LM script as a deck and a plan"},
    {"export hf", "brume export hf runs/llama -o tuned --dtype bf16", "weights for Transformers"},
    {"export plan", "brume export plan deck.toml --plan plan.toml --to megatron",
     "a plan as arguments"},
};

constexpr std::pair<int, const char*> exit_codes[] = {
    {0, "done"},
    {2, "deck, plan, data or command line are wrong"},
    {3, "no plan fits, or none was found in time"},
    {4, "memory, threads, cores or a device are missing; or three jobs in a row were killed"},
    {5, "MPI or NCCL failed, a rank stopped responding, or replicas of a weight differ"},
    {6, "a file cannot be written, or exists and cannot be read"},
    {70, "a bug in Brume"},
    {71,
     "a second signal stopped the job, or it stopped early without checkpoints; steps are lost"},
    {75, "a signal or a time limit stopped the job; nothing is lost: start it again"},
};

/// Text in which nothing is an instruction.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

void add_verb(std::string& page, const CLI::App& app, const std::string& names) {
  const std::vector<const CLI::App*> below = app.get_subcommands({});
  if (!names.empty()) {
    std::string arguments;
    for (const CLI::Option* option : app.get_options())
      if (option->get_positional())
        arguments += fmt::format(" {}{}", option->get_single_name(),
                                 option->get_items_expected_max() > 1 ? "..." : "");
    page += fmt::format(".SS \"brume {}{}\"\n{}.\n", plain(names), plain(arguments),
                        plain(app.get_description()));
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_lnames().empty() && !option->get_positional()) continue;
      if (option->check_lname("help")) continue;
      std::string type;
      if (option->get_items_expected_max() > 0 && !option->get_positional())
        type = option->get_type_name().substr(0, option->get_type_name().find(':'));
      page += fmt::format(".TP\n.B {}{}\n{}.\n", plain(option->get_name(option->get_positional())),
                          type.empty() ? "" : " " + plain(type), plain(option->get_description()));
    }
  }
  for (const CLI::App* verb : below)
    add_verb(page, *verb, names.empty() ? verb->get_name() : names + " " + verb->get_name());
}

}  // namespace

void add_examples(CLI::App& cli) {
  for (const Example& example : examples) {
    CLI::App* app = &cli;
    std::istringstream names(example.verb);
    for (std::string name; names >> name;) app = app->get_subcommand(name);
    std::string footer = app->get_footer();
    if (footer.find("Examples:") == std::string::npos)
      footer += (footer.empty() ? "" : "\n\n") + std::string("Examples:");
    app->footer(footer + fmt::format("\n  {}\n      {}", example.command, example.purpose));
  }
}

std::string manual_page(const CLI::App& cli, const std::string& version) {
  std::string page = fmt::format(
      ".TH BRUME 1 \"\" \"brume {}\" \"User commands\"\n"
      ".SH NAME\nbrume \\- plan and run the training of transformers\n"
      ".SH SYNOPSIS\n.B brume\n.I verb\n[options]\n"
      ".SH DESCRIPTION\n{}\nA job is described by a deck; every key of one is listed by\n"
      ".B brume keys .\n.SH VERBS\n",
      plain(version), plain(cli.get_description()));
  add_verb(page, cli, "");
  page += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : exit_codes)
    page += fmt::format(".TP\n.B {}\n{}.\n", code, plain(meaning));
  page += ".SH EXAMPLES\n";
  for (const Example& example : examples)
    page += fmt::format(".TP\n.B {}\n{}.\n", plain(example.command), plain(example.purpose));
  return page;
}

}  // namespace brume::app
