/// @file The verb init: a deck to start from, for this machine and somebody's text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/numbers.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "data/token_file.hpp"
#include "deck/deck.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "interop/tokens.hpp"
#include "model/model.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;

constexpr int most_ranks = 8;

/// A basic string of TOML knows the escapes of JSON.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

/// What ranks of this machine have.
struct Machine {
  int ranks = 1;
  double memory_gib = 0.0;       ///< of each
  double host_memory_gib = 0.0;  ///< of all
};

/// On hosts a rank for each core, and half of the memory that is left for all of them; on devices
/// each device whole but for a tenth.
Machine this_machine() {
  const double left_gib =
      double(std::max<std::int64_t>(device::available_bytes(), 0)) / bytes_per_gib;
  const auto tenths = [](double gib) { return std::max(0.1, std::floor(10.0 * gib) / 10.0); };
  if (const device::Description device = device::describe_device(); !device.name.empty())
    return {.ranks = std::max(1, device.on_node),
            .memory_gib = tenths(0.9 * double(device.memory_bytes) / bytes_per_gib),
            .host_memory_gib = tenths(0.5 * left_gib)};
  const int ranks = std::min(num_cores(), most_ranks);
  return {.ranks = ranks,
          .memory_gib = tenths(0.25 * left_gib / ranks),
          .host_memory_gib = tenths(0.25 * left_gib)};
}

/// A GPT for a text of so many tokens.
struct Size {
  double most_tokens;
  int num_layers, hidden_size, num_heads, seq_len, global_batch;
  double lr;
};
constexpr std::array sizes{Size{5e6, 4, 192, 6, 128, 16, 2e-3}, Size{1e8, 6, 384, 6, 256, 32, 1e-3},
                           Size{1e300, 12, 768, 12, 1024, 64, 6e-4}};

/// Twenty tokens for each parameter are worth reading (Hoffmann et al. 2022), the same ones about
/// four times (Muennighoff et al. 2023).
constexpr double tokens_a_parameter = 20.0, most_epochs = 4.0;

}  // namespace

int init(const InitOptions& options) {
  const fs::path directory = options.directory;
  const fs::path path = (directory / "deck.toml").lexically_normal();
  require(!fs::exists(path), Failure::input, "{}: is there already: name another folder by -o",
          path.string());
  fs::path train = directory / "data" / "train.tok", valid = directory / "data" / "valid.tok";
  double tokens = 0.0, valid_tokens = infinity;  // until a text says otherwise
  int vocab_size = 256;
  if (!options.files.empty()) {
    interop::PackOptions how;
    how.tokenizer = options.tokenizer;
    const interop::PackedText packed = interop::pack_text(
        std::vector<fs::path>(options.files.begin(), options.files.end()), directory / "data", how);
    train = packed.train, valid = packed.valid;
    tokens = double(packed.train_tokens), valid_tokens = double(packed.valid_tokens);
    vocab_size = data::TokenFile(train.string()).vocab_size();
    log::info("packed {} documents into {} tokens for training and {} for validation",
              packed.documents, packed.train_tokens, packed.valid_tokens);
    say_kinds(packed, how);
  }
  const Size& size =
      *std::ranges::find_if(sizes, [&](const Size& s) { return tokens <= s.most_tokens; });
  require(tokens == 0.0 || tokens > size.seq_len, Failure::input,
          "the text has {:.0f} tokens: a sequence takes {}", tokens, size.seq_len + 1);
  const Machine machine = this_machine();
  const std::string model = fmt::format(
      "[model]\n"
      "family      = \"gpt\"\n"
      "num_layers  = {}\n"
      "hidden_size = {}\n"
      "num_heads   = {}\n"
      "seq_len     = {:<18} # tokens that it reads at once\n"
      "vocab_size  = {:<18} # {}\n",
      size.num_layers, size.hidden_size, size.num_heads, size.seq_len, vocab_size,
      options.tokenizer.empty() ? "a token is a byte" : "tokens that the tokenizer knows");
  const std::string rest = fmt::format(
      "[data]\n"
      "train = {}\n"
      "{}\n"
      "[cluster]                        # this machine\n"
      "nodes            = 1\n"
      "devices_per_node = {:<13} # ranks: start as many\n"
      "memory_gib       = {:<13} # a rank may use so much\n"
      "host_memory_gib  = {:<13} # and all ranks of a node, for what is offloaded\n\n"
      "[output]\n"
      "directory = {}\n",
      quoted(train.lexically_normal().string()),
      valid_tokens > size.seq_len
          ? fmt::format("valid = {}\n", quoted(valid.lexically_normal().string()))
          : "",
      machine.ranks, fmt::format("{:.1f}", machine.memory_gib),
      fmt::format("{:.1f}", machine.host_memory_gib),
      quoted((directory / "runs" / "first").lexically_normal().string()));
  const auto training = [&](double steps) {
    return fmt::format(
        "[training]\n"
        "steps        = {:<17} # steps\n"
        "global_batch = {:<17} # sequences per step\n"
        "precision    = \"fp32\"\n\n"
        "[training.optimizer]\n"
        "lr           = {:<17} # reached after the warm-up; it falls to a tenth by a cosine\n"
        "warmup_steps = {}\n",
        std::llround(steps), size.global_batch, fmt::format("{:.0e}", size.lr),
        std::llround(std::min(100.0, 0.1 * steps)));
  };
  const auto text = [&](double steps) { return model + "\n" + training(steps) + "\n" + rest; };
  const deck::Deck draft = deck::parse(text(100.0), path.string());
  const double parameters = double(model::num_parameters(model::config(draft.model, "fp32")));
  const double worth = tokens_a_parameter * parameters;
  const double all = tokens > 0.0 ? std::min(worth, most_epochs * tokens) : worth;
  const double steps = std::max(20.0, std::ceil(all / (size.seq_len * size.global_batch)));
  const std::string deck = fmt::format(
      "# {} parameters for {}.\n"
      "# `brume keys` lists all keys; `brume check {}` prints these with all defaults.\n\n{}",
      format_count(parameters),
      tokens > 0.0 ? fmt::format("a text of {} tokens", format_count(tokens))
                   : "text that `brume import tokens` has still to pack",
      path.string(), text(steps));
  deck::parse(deck, path.string());
  make_directory(directory);
  write_file(path, deck);
  log::info("{}: `brume plan {}` shows the plan, `mpirun -n {} brume run {}` trains", path.string(),
            path.string(), machine.ranks, path.string());
  if (options.files.empty())
    log::info("no text was named: `brume import tokens TEXT... -o {}` packs some",
              (directory / "data").lexically_normal().string());
  return 0;
}

}  // namespace brume::app
