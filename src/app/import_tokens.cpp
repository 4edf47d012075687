/// @file The verb import tokens: text to train on.
#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"
#include "interop/tokens.hpp"
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
  log::info("packed {}, {} bytes, {:.2f} bytes a token: {} tokens into {} and {} held out into {}",
            counted(packed.documents, "document"), packed.bytes,
            double(packed.bytes) / double(tokens), packed.train_tokens, packed.train.string(),
            packed.valid_tokens, packed.valid.string());
  say_kinds(packed, how);
  if (how.valid_ratio > 0.0 && packed.valid_tokens == 0)
    log::warn("nothing is held out: the text is too short for a share of {} in blocks of {} tokens",
              how.valid_ratio, how.block_tokens);
  return 0;
}

}  // namespace brume::app
