#include "exchange.hpp"

#include <utility>

namespace brume::app {

void add_deck(CLI::App* verb, DeckOptions& options) {
  verb->add_option("deck", options.deck, "Input deck (TOML)")->required();
  verb->add_option("--set", options.sets,
                   "Override a key of the deck, for example training.steps=10")
      ->type_name("KEY=VALUE");
}

void ExchangeVerbs::add(CLI::App& cli, std::function<int()>& verb) {
  verb_ = &verb;
  CLI::App* import =
      cli.add_subcommand("import", "Import text, weights and plans in other programs' formats");
  CLI::App* out = cli.add_subcommand("export", "Export weights and plans to other programs");
  for (CLI::App* both : {import, out}) both->require_subcommand(1);
  add_tokens(import);
  add_hugging_face(import, out);
  add_plan(import, out);
  add_mist(import);
}

void ExchangeVerbs::on(CLI::App* verb, std::function<int()> action) {
  verb->callback([this, action = std::move(action)] { *verb_ = action; });
}

void ExchangeVerbs::add_tokens(CLI::App* import) {
  CLI::App* tokens = import->add_subcommand(
      "tokens", "Pack text, by a tokenizer or byte by byte, into train.tok and valid.tok");
  tokens->add_option("files", tokens_.files, "Files or directories")->required();
  tokens
      ->add_option("-o,--output", tokens_.directory,
                   "Directory to write to (default: data, if it has no tokens yet)")
      ->type_name("DIR");
  tokens->add_option("--valid", tokens_.pack.valid_ratio, "Share held out for validation")
      ->capture_default_str();
  tokens
      ->add_option("--tokenizer", tokens_.pack.tokenizer,
                   "tokenizer.json, a model of SentencePiece, or a directory with one (default: a "
                   "token is a byte)")
      ->type_name("FILE|DIR");
  tokens
      ->add_option("--end", tokens_.pack.end,
                   "Token after each document, for example '<|endoftext|>' (default: none)")
      ->type_name("TOKEN");
  tokens
      ->add_option("--begin", tokens_.pack.begin,
                   "Token before each document, for example '<s>', which is not learned (default: "
                   "none)")
      ->type_name("TOKEN");
  tokens
      ->add_option("--field", tokens_.pack.field,
                   "Field of each line of JSON that holds the text (default: text)")
      ->type_name("FIELD");
  tokens
      ->add_option("--chat-template", tokens_.pack.chat_template,
                   "Jinja template for lines of JSON with \"messages\" (default: the tokenizer's "
                   "own)")
      ->type_name("FILE");
  tokens
      ->add_option("--show", tokens_.show,
                   "Print the first N documents as text, with marks around the trained text")
      ->type_name("N")
      ->check(CLI::Range(0, 1'000'000));
  on(tokens, [this] { return import_tokens(tokens_); });
}

void ExchangeVerbs::add_hugging_face(CLI::App* import, CLI::App* out) {
  CLI::App* model_in = import->add_subcommand(
      "hf", "Import a Hugging Face model as a run's first checkpoint, with a deck to start from");
  model_in->add_option("model", import_hf_.directory, "Directory with config.json and safetensors")
      ->required();
  model_in->add_option("-o,--output", import_hf_.output, "Run directory to write to")
      ->required()
      ->type_name("DIR");
  model_in
      ->add_option("--set", import_hf_.sets,
                   "Set a key of the deck, for example model.seq_len=1024")
      ->type_name("KEY=VALUE");
  on(model_in, [this] { return import_hugging_face(import_hf_); });

  CLI::App* model_out = out->add_subcommand(
      "hf",
      "Write a run's newest weights as a Hugging Face model: config.json, safetensors, tokenizer; "
      "of a run with an adapter, the adapter as PEFT has it");
  model_out->add_option("run", export_hf_.run, "Run directory, or one of its checkpoints")
      ->required();
  model_out->add_option("-o,--output", export_hf_.output, "Directory to write to")
      ->required()
      ->type_name("DIR");
  model_out
      ->add_option("--dtype", export_hf_.dtype,
                   "Number format of the values (default: that of training.precision; adapters: "
                   "f32)")
      ->type_name("f32|bf16|f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  model_out
      ->add_option("--max-shard", export_hf_.max_file_bytes,
                   "Largest size of a file, for example 2GB")
      ->type_name("BYTES")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber)
      ->default_str("5GB");
  model_out->add_flag("--merge", export_hf_.merge,
                      "Write the whole model, with the run's adapter merged into its weights");
  on(model_out, [this] { return export_hugging_face(export_hf_); });
}

void ExchangeVerbs::add_plan(CLI::App* import, CLI::App* out) {
  CLI::App* plan_in = import->add_subcommand(
      "plan", "Read the arguments of another trainer as a plan with its deck");
  plan_in
      ->add_option("arguments", import_plan_.arguments,
                   "File with the arguments, for example the script that starts the training")
      ->required();
  plan_in->add_option("--from", trainer_, "The trainer")
      ->required()
      ->type_name("megatron")
      ->check(CLI::IsMember({"megatron"}));
  plan_in->add_option("-o,--output", import_plan_.directory, "Directory to write to")
      ->required()
      ->type_name("DIR");
  plan_in
      ->add_option("--set", import_plan_.sets,
                   "Set a key of the deck, above all the machine: cluster.machine=dgx-h100")
      ->type_name("KEY=VALUE");
  on(plan_in, [this] { return import_plan(import_plan_); });

  CLI::App* plan_out = out->add_subcommand(
      "plan", "Write a plan as a Megatron-LM script or TorchTitan configuration");
  add_deck(plan_out, export_plan_);
  plan_out->add_option("--plan", export_plan_.plan, "The plan, as brume plan -o wrote it")
      ->required()
      ->type_name("FILE");
  plan_out->add_option("--to", export_plan_.trainer, "The trainer")
      ->required()
      ->type_name("megatron|torchtitan")
      ->check(CLI::IsMember({"megatron", "torchtitan"}));
  plan_out->add_option("-o,--output", export_plan_.output, "File to write (default: the screen)")
      ->type_name("FILE");
  on(plan_out, [this] { return export_plan(export_plan_); });
}

void ExchangeVerbs::add_mist(CLI::App* import) {
  CLI::App* configuration = import->add_subcommand(
      "mist",
      "Read a configuration of Mist as deck.toml, plan.toml and, for other links, profile.toml");
  configuration->add_option("configuration", mist_.configuration, "Resolved, YAML or JSON")
      ->required();
  configuration->add_option("-o,--output", mist_.directory, "Directory to write to")
      ->required()
      ->type_name("DIR");
  configuration->add_option("--profile", mist_.profile, "Where operator times come from")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  on(configuration, [this] { return import_mist(mist_); });

  CLI::App* times =
      import->add_subcommand("mist-profile", "Read operator times of Mist as a profile");
  times->add_option("file", mist_profile_.file, "Operator times (JSON)")->required();
  times->add_option("-o,--output", mist_profile_.output, "Profile to write")
      ->required()
      ->type_name("FILE");
  times->add_option("--name", mist_profile_.name, "Name of the device, for example 'NVIDIA L4'");
  times->add_option("--database", mist_profile_.database, "Source to use if the file has several");
  times->add_option("--hardware", mist_profile_.hardware,
                    "Template of links, copies and slowdowns (default: none)");
  on(times, [this] { return import_mist_profile(mist_profile_); });
}

}  // namespace brume::app
