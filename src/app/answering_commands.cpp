/// @file Options of commands that compute with trained weights: eval, generate, chat.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "command_line.hpp"

namespace brume::app {
namespace {

/// Options of verbs that compute with trained weights.
void add_weights(CLI::App* of_verb, std::string& weights, std::string& adapter) {
  of_verb
      ->add_option("weights", weights,
                   "Run directory, one of its checkpoints, or a Hugging Face model")
      ->required();
  of_verb
      ->add_option("--adapter", adapter,
                   "Directory of an adapter of PEFT for these weights (default: the run's own)")
      ->type_name("DIR");
}

void add_tokenizer(CLI::App* of_verb, std::string& tokenizer) {
  of_verb
      ->add_option("--tokenizer", tokenizer,
                   "tokenizer.json, a model of SentencePiece, or a directory with one (default: "
                   "the weights' own)")
      ->type_name("FILE|DIR");
}

const std::map<std::string_view, const char*> sampling_help{
    {"temperature", "Divides logits before a token is drawn; 0: the most likely token"},
    {"top_p", "Draw from the fewest tokens whose probabilities add up to X"},
    {"min_p", "Draw from tokens with this share of the largest probability"},
    {"repetition_penalty", "Divides positive logits of tokens that occurred, multiplies others"},
    {"presence_penalty", "Subtracted from logits of tokens that the answer has"},
    {"frequency_penalty", "... for each time that the answer has the token"}};

/// Options of verbs by which a model answers.
void add_answering(CLI::App* of_verb, AnswerOptions& o) {
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
      ->add_option("--plan", o.plan, "Stages and tensor parallelism of a plan (default: one stage)")
      ->type_name("FILE");
  of_verb
      ->add_option("--set", o.sets,
                   "Override a key of the run's deck, for example model.seq_len=4096")
      ->type_name("KEY=VALUE");
}

void check_answering(const AnswerOptions& o) {
  for (const generation::SamplingKey& key : generation::sampling_keys())
    require(std::isfinite(o.sampling.*key.value), Failure::input, "--{} must be a number",
            key.name);
  require(std::isfinite(o.cache_gib), Failure::input, "--cache-gib must be a number");
  require(o.tp == 0 || o.plan.empty(), Failure::input,
          "--plan has its own tensor parallelism: leave --tp out");
  require(std::ranges::find(o.stops, "") == o.stops.end(), Failure::input, "--stop needs a text");
}

}  // namespace

void CommandLine::add_eval() {
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

void CommandLine::add_generate() {
  CLI::App* verb_generate = cli.add_subcommand(
      "generate",
      "Answer prompts with trained weights; one rank, mpirun or srun. The same command again "
      "makes the answers that a killed job left open");
  GenerateOptions& o = generate;
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

void CommandLine::add_chat() {
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

}  // namespace brume::app
