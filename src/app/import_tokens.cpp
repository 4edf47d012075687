/// @file The verb import tokens: text to train on.
#include <filesystem>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "data/token_file.hpp"
#include "interop/tokens.hpp"
#include "tokenizer/tokenizer.hpp"
#include "verbs.hpp"

namespace brume::app {

void say_kinds(const interop::PackedText& packed, const interop::PackOptions& how) {
  namespace fs = std::filesystem;
  if (packed.left_out > 0)
    log::info("left out {} of these directories that are no text",
              counted(packed.left_out, "file"));
  for (const fs::path& path : packed.no_text)
    log::warn(
        "{} is no text, but was packed as if it were: token files of other programs are named "
        "in data.train as they are",
        path.string());
  for (const fs::path& path : packed.raw_json)
    log::warn(
        "{}: its braces and keys were packed as text: its first line is no object of JSON with a "
        "text in the field '{}'. Name the field with --field, or write one object a line",
        path.string(), how.field.value_or("text"));
  if (!packed.replaced.empty())
    log::warn("{}{}: bytes that are no UTF-8 became U+FFFD. Convert such files by iconv -t UTF-8",
              packed.replaced[0].string(),
              packed.replaced.size() == 1
                  ? ""
                  : fmt::format(" and {}", counted(packed.replaced.size() - 1, "other file")));
}

/// Prints the first documents of a token file, with marks around the text that is to be learned.
void show_documents(const std::filesystem::path& path, const ImportOptions& options) {
  const data::TokenFile file(path);
  std::optional<tokenizer::Tokenizer> tokenizer;
  if (!options.pack.tokenizer.empty()) tokenizer.emplace(options.pack.tokenizer);
  // A token's text depends on those before it in its document.
  const auto text_of = [&](std::int64_t document, std::int64_t first, std::int64_t end) {
    std::vector<std::int32_t> tokens(std::size_t(end - document));
    file.read(document, tokens);
    const auto spell = [&](std::span<const std::int32_t> some) {
      return tokenizer ? tokenizer->decode(some) : std::string(some.begin(), some.end());
    };
    const std::string before = spell(std::span(tokens).first(std::size_t(first - document)));
    return terminal::printable(spell(tokens).substr(before.size()));
  };
  std::int64_t document = 0;
  int shown = 0;
  constexpr std::int64_t longest_tokens = 1 << 16;
  for (const data::Document& part :
       file.documents(0, std::min(file.size(), 2 * options.show * longest_tokens))) {
    const int each = file.has_pairs() ? 2 : 1;
    if (!part.continues && ++shown > options.show * each) break;
    if (!part.continues) document = part.first;
    const char* const gap = shown > 1 ? "\n" : "";
    if (file.has_pairs())
      fmt::print("{}--- pair {}, {}\n", gap, (shown + 1) / 2,
                 shown % 2 == 1 ? "chosen" : "rejected");
    else if (!part.continues)
      fmt::print("{}--- document {}\n", gap, shown);
    const std::int64_t end = std::min(part.end, part.first + longest_tokens);
    const std::int64_t answer = std::min(part.answer, end);
    fmt::print("{}", text_of(document, part.first, answer));
    if (answer < end) fmt::print("\u27e6{}\u27e7", text_of(document, answer, end));
    if (end < part.end) fmt::print(" ... {} tokens more", part.end - end);
  }
  fmt::print("\n");
}

int import_tokens(const ImportOptions& options) {
  namespace fs = std::filesystem;
  // Who names a folder means it; nobody loses tokens by leaving it out.
  const fs::path folder = options.directory.empty() ? "data" : options.directory;
  std::error_code none;
  for (const char* name : {"train.tok", "valid.tok"})
    require(!options.directory.empty() || !fs::exists(folder / name, none), Failure::input,
            "{} is there already: -o {} replaces it, -o DIR writes elsewhere",
            (folder / name).string(), folder.string());
  const std::vector<fs::path> files(options.files.begin(), options.files.end());
  interop::PackOptions how = options.pack;
  Progress shown("packing", 1.0);
  how.progress = [&, done = 0.0](double share) mutable {
    shown.add(share - std::exchange(done, share));
  };
  const interop::PackedText packed = interop::pack_text(files, folder, how);
  const std::int64_t tokens = packed.train_tokens + packed.valid_tokens;
  log::info(
      "packed {}, {} bytes, {:.2f} bytes a token: {} tokens into {} and {} held out into {}",
      packed.pairs ? counted(packed.documents / 2, "pair") : counted(packed.documents, "document"),
      packed.bytes, double(packed.bytes) / double(tokens), packed.train_tokens,
      packed.train.string(), packed.valid_tokens, packed.valid.string());
  if (packed.learned_tokens < tokens)
    log::info("{} of these tokens are to be learned; the others are given", packed.learned_tokens);
  if (packed.unanswered > 0)
    log::warn("left out conversations, prompts and pairs without an answer: {}", packed.unanswered);
  say_kinds(packed, how);
  if (how.valid_ratio > 0.0 && packed.valid_tokens == 0)
    log::warn("nothing is held out: the text is too short for a share of {} in blocks of {} tokens",
              how.valid_ratio, how.block_tokens);
  if (options.show > 0) show_documents(packed.train, options);
  return 0;
}

}  // namespace brume::app
