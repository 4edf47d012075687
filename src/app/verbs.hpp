/// @file The verbs of the command line. Each returns the exit code or throws Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generation/sampling.hpp"
#include "interop/tokens.hpp"

namespace brume::app {

/// What all verbs that read a deck take.
struct DeckOptions {
  std::string deck;
  std::vector<std::string> sets;  ///< "key=value"
};

struct RunOptions : DeckOptions {
  std::string plan;  ///< file; empty: search
  std::optional<int> steps;
  std::string resume = "auto";  ///< auto | none | a run directory or a checkpoint
  std::string search_state;     ///< file that keeps the state of the search; empty: none
  bool replan = false;
  bool elastic = false;      ///< the launcher's nodes and ranks replace those of the deck's cluster
  bool new_data = false;     ///< on resume the deck's data may be others than the checkpoint's
  double max_minutes = 0.0;  ///< since the start of the process; 0: no limit
  bool dry_run = false;
  std::string log = "plain";  ///< plain | json
};

struct EvalOptions {
  std::string weights;      ///< run directory, checkpoint or Hugging Face model
  std::string adapter;      ///< directory of PEFT's files; empty: none
  std::string data;         ///< token file; empty: the deck's data.valid
  std::string completions;  ///< lines of JSON to score instead; empty: none
  std::string tokenizer;    ///< of these, and of bytes; empty: that which lies beside the weights
  std::string begin;        ///< token before each prompt; empty: none
  std::string plan;         ///< file; empty: the checkpoint's, or one over all ranks
  std::vector<std::string> sets;
  std::optional<std::int64_t> sequences;  ///< nothing: all
  bool json = false;
};

/// How answers to a prompt are made.
struct AnswerSettings {
  int max_tokens = 256;  ///< of an answer
  int samples = 1;       ///< answers to a prompt
  generation::Sampling sampling;
  std::vector<std::string> stops;  ///< texts that end an answer
};

struct AnswerOptions : AnswerSettings {
  std::string weights;               ///< run directory, checkpoint or Hugging Face model
  std::string adapter;               ///< directory of PEFT's files; empty: none
  std::string tokenizer;             ///< empty: the weights' own
  std::string chat_template;         ///< file; empty: the tokenizer's own
  std::string system;                ///< message before each conversation; empty: none
  std::optional<std::string> begin;  ///< token before each prompt; nothing: the tokenizer's own
  std::vector<std::string> ends;     ///< tokens that end an answer; none: the model's own
  double cache_gib = 0.0;            ///< most memory of a rank for keys; 0: what is left
  int tp = 0;                        ///< 0: as few ranks as the model fits on
  std::string plan;                  ///< file; empty: copies over all ranks
  std::vector<std::string> sets;
};

struct GenerateOptions : AnswerOptions {
  std::string prompts_file;          ///< lines of text or JSON; empty: none
  std::vector<std::string> prompts;  ///< texts
  std::string output;                ///< file of answers; empty: standard output
  int batch = 16;                    ///< sequences at once on a copy of the model
  bool json = false;                 ///< lines of JSON for a single prompt too
  bool chat = false;                 ///< prompts are messages of a user
};

struct ChatOptions : AnswerOptions {
  int context_tokens = 4096;  ///< longest conversation, unless the model's is shorter
};

struct ReportOptions {
  std::vector<std::string> runs;  ///< directories, at least one
  std::string output;             ///< file; empty: report.html of the first run
  bool text = false;              ///< on standard output instead of a page
};

struct PlanOptions : DeckOptions {
  std::string plan;                  ///< of analyze and simulate
  std::string purpose = "training";  ///< training | generation
  std::string output;                ///< file for the plan
  std::string trace;                 ///< file for the simulated timeline
  bool json = false;
  bool explain = false;
  int top = 3;
  std::string html;     ///< file for a page with pictures; empty: none
  std::string svg;      ///< file for one picture; empty: none
  std::string against;  ///< file of a plan to compare the best one with; empty: none
  std::string sweep;    ///< "key=a,b,c" or "key=a..b": a plan for each value
  std::string start;    ///< file of a plan to begin the search with; empty: none
  std::string state;    ///< file that keeps the state of the search; empty: none
};

struct ProfileOptions : DeckOptions {
  std::string purpose = "training";  ///< training | generation
  std::string output;                ///< file for the profile
};

struct InitOptions {
  std::vector<std::string> files;  ///< of text, or directories; none: the deck waits for some
  std::string directory = ".";
  std::string tokenizer;  ///< file or directory; empty: bytes are tokens
};

struct KeysOptions {
  std::string prefix;
  std::string kind = "deck";
  bool markdown = false;
};

struct SelftestOptions {
  std::string profile;  ///< name or file to compare with; empty: none
};

struct ImportOptions {
  std::vector<std::string> files;
  std::string directory;  ///< "": data, where that has no tokens yet
  interop::PackOptions pack;
  int show = 0;  ///< first documents to print
};

struct ImportHuggingFaceOptions {
  std::string directory;  ///< of the model
  std::string output;     ///< run directory
  std::vector<std::string> sets;
};

struct ImportPlanOptions {
  std::string arguments;  ///< file
  std::string directory;
  std::vector<std::string> sets;
};

struct ExportPlanOptions : DeckOptions {
  std::string plan;
  std::string trainer;  ///< megatron | torchtitan
  std::string output;   ///< empty: standard output
};

struct ExportHuggingFaceOptions {
  std::string run;     ///< run directory, or a checkpoint
  std::string output;  ///< directory of the model
  std::string dtype;   ///< f32 | bf16 | f16; empty: that of the run's precision; adapters: f32
  std::int64_t max_file_bytes = 5'000'000'000;
  bool merge = false;  ///< a run's adapter goes into the model's weights, not into files of its own
};

struct ImportMistOptions {
  std::string configuration;
  std::string directory;
  std::string profile = "l4";  ///< name or file
};

struct ImportMistProfileOptions {
  std::string file;
  std::string output;
  std::string name;      ///< of the processor
  std::string database;  ///< empty: the only one
  std::string hardware;  ///< template; empty: none
};

int run(const RunOptions& options);
int eval(const EvalOptions& options);
int generate(const GenerateOptions& options);
int chat(const ChatOptions& options);
int report(const ReportOptions& options);
int plan(const PlanOptions& options);
int plan_generation(const PlanOptions& options);
int sweep(const PlanOptions& options);
int analyze(const PlanOptions& options);
int simulate(const PlanOptions& options);
int check(const DeckOptions& options);
int init(const InitOptions& options);
int keys(const KeysOptions& options);
int profile(const ProfileOptions& options);
int selftest(const SelftestOptions& options);
int import_tokens(const ImportOptions& options);
/// Says which files were left out of a packed text, and warns of those that became other tokens
/// than their names promise.
void say_kinds(const interop::PackedText& packed, const interop::PackOptions& how);
int import_hugging_face(const ImportHuggingFaceOptions& options);
int export_hugging_face(const ExportHuggingFaceOptions& options);
int import_plan(const ImportPlanOptions& options);
int export_plan(const ExportPlanOptions& options);
int import_mist(const ImportMistOptions& options);
int import_mist_profile(const ImportMistProfileOptions& options);

}  // namespace brume::app
