#include "documents.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/json.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t part_bytes = 8 << 20;

/// Whether a file begins as no text does: with a zero byte in its first 4 KiB.
bool is_binary(const fs::path& path) {
  std::array<char, 4096> start{};
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), std::ssize(start));
  return std::ranges::count(std::span(start).first(std::size_t(file.gcount())), '\0') > 0;
}

void add_path(const fs::path& path, TextParts& all);

void add_directory(const fs::path& directory, TextParts& all) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    // A linked directory may lead back here; pipes and devices have no end.
    const bool walked = entry.is_regular_file() || (entry.is_directory() && !entry.is_symlink());
    if (!hidden && walked) entries.push_back(entry.path());
  }
  std::ranges::sort(entries);
  for (const fs::path& entry : entries)
    if (fs::is_regular_file(entry) && is_binary(entry))
      ++all.left_out;
    else
      add_path(entry, all);
}

void add_path(const fs::path& path, TextParts& all) {
  try {
    if (fs::is_directory(path)) return add_directory(path, all);
    require(fs::is_regular_file(path), Failure::input, "{}: no such file", path.string());
    const auto bytes = std::int64_t(fs::file_size(path));
    const bool lines = path.extension() == ".jsonl";
    const std::int64_t step = lines ? part_bytes : std::max<std::int64_t>(bytes, 1);
    for (std::int64_t first = 0; first < bytes; first += step)
      all.parts.push_back({path, lines, first, std::min(first + step, bytes)});
    all.bytes += bytes;
  } catch (const fs::filesystem_error& error) {
    throw Error(Failure::input, "{}: cannot be read: {}", path.string(), error.code().message());
  }
}

/// Bytes of a file from `first` up to the end of the line that byte `end` - 1 lies in.
std::string lines_of(const Descriptor& file, const std::string& name, std::int64_t first,
                     std::int64_t end) {
  std::string text;
  const auto read = [&](std::int64_t bytes) {
    const std::size_t before = text.size();
    text.resize(before + std::size_t(bytes));
    const auto room = std::as_writable_bytes(std::span(text).subspan(before));
    text.resize(before + read_at(file, first + std::int64_t(before), room, name));
    return text.size() > before;
  };
  constexpr std::int64_t more = 1 << 16;
  for (bool any = read(end - first); any; any = read(more)) {
    const std::size_t last = text.find('\n', std::size_t(end - first - 1));
    if (last != std::string::npos) return text.substr(0, last);
  }
  return text;
}

/// The number of the line that begins at a byte.
std::int64_t line_number(const Descriptor& file, const std::string& name, std::int64_t byte) {
  std::int64_t number = 1;
  std::string piece;
  for (std::int64_t first = 0; first < byte; first += part_bytes) {
    piece.resize(std::size_t(std::min(part_bytes, byte - first)));
    read_at(file, first, std::as_writable_bytes(std::span(piece)), name);
    number += std::ranges::count(piece, '\n');
  }
  return number;
}

}  // namespace

TextParts text_parts(const std::vector<fs::path>& files) {
  TextParts all;
  for (const fs::path& path : files) {
    add_path(path, all);
    std::error_code none;
    if (fs::is_regular_file(path, none) && is_binary(path)) all.no_text.push_back(path);
  }
  return all;
}

Encoder::Encoder(const PackOptions& options) : field_(options.field) {
  if (!options.tokenizer.empty()) tokenizer_.emplace(options.tokenizer);
  const auto find = [&](const std::string& token, const char* what) -> std::optional<std::int32_t> {
    if (token.empty()) return std::nullopt;
    const auto found = tokenizer_ ? tokenizer_->find(token) : std::nullopt;
    require(found.has_value(), Failure::input,
            "{}: has no added token '{}' that could {} documents",
            tokenizer_ ? options.tokenizer.string() : "bytes without a tokenizer", token, what);
    return found;
  };
  begin_ = find(options.begin, "begin");
  end_ = find(options.end, "end");
}

std::vector<TokenDocument> Encoder::encode(const TextPart& part) {
  const std::string name = part.path.string();
  if (!part.lines) {
    const Bytes content = read_file(part.path, Failure::input,
                                    std::numeric_limits<std::int64_t>::max(), Links::follow);
    return {document("", as_text(content))};
  }
  const Descriptor file = open_regular(part.path, Failure::input, Links::follow);
  // A part begins behind the first end of a line at or before its first byte.
  const std::int64_t from = std::max<std::int64_t>(part.first - 1, 0);
  const std::string text = lines_of(file, name, from, part.end);
  std::size_t at = part.first == 0 ? 0 : std::min(text.find('\n'), text.size() - 1) + 1;
  std::vector<TokenDocument> documents;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view found = std::string_view(text).substr(at, end - at);
    if (found.find_first_not_of(" \t\r") != std::string_view::npos) {
      try {
        documents.push_back(line(found, ""));
      } catch (const Error&) {  // once more, with the number of the line
        const std::int64_t number = line_number(file, name, from + std::int64_t(at));
        line(found, fmt::format("{}, line {}", name, number));
      }
    }
    at = end + 1;
  }
  return documents;
}

TokenDocument Encoder::line(std::string_view line, const std::string& where) {
  const nlohmann::json object = deck::parse_json(line, where);
  const auto text_in = [&](const std::string& field) {
    const bool has = object.is_object() && object.contains(field) && object[field].is_string();
    return has ? object[field].get_ptr<const std::string*>() : nullptr;
  };
  if (const std::string* const whole = text_in(field_)) return document("", *whole);
  const std::string* const prompt = text_in("prompt");
  const std::string* const completion = text_in("completion");
  require(prompt && completion, Failure::input,
          "{}: has no text in the field '{}', nor a prompt with its completion: name another "
          "field with --field",
          where, field_);
  return document(*prompt, *completion);
}

TokenDocument Encoder::document(std::string_view prompt, std::string_view text) {
  TokenDocument made;
  if (begin_) made.tokens.push_back(*begin_);
  append(prompt, made.tokens);
  made.given = std::ssize(made.tokens);
  append(text, made.tokens);
  if (!text.empty() && end_) made.tokens.push_back(*end_);
  made.bytes = std::ssize(prompt) + std::ssize(text);
  made.answer_bytes = std::ssize(text);
  return made;
}

void Encoder::append(std::string_view text, std::vector<std::int32_t>& tokens) {
  if (tokenizer_) return tokenizer_->encode(text, tokens);
  tokens.reserve(tokens.size() + text.size() + 1);
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
}

}  // namespace brume::interop
