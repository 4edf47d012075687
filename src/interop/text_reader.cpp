#include "text_reader.hpp"

#include <archive.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/json.hpp"
#include "list_lines.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// Whether a file begins as no text does: with a zero byte in its first 4 KiB.
bool is_binary(std::string_view start) { return start.substr(0, 4096).find('\0') != start.npos; }

/// The end of a name, without that of a compressed file, in small letters: ".jsonl".
std::string kind_of(fs::path path) {
  const auto end = [&] {
    std::string letters = path.extension().string();
    std::ranges::transform(letters, letters.begin(),
                           [](unsigned char c) { return char(std::tolower(c)); });
    return letters;
  };
  constexpr std::array compressed = {".gz", ".zst", ".bz2", ".xz"};
  if (std::ranges::find(compressed, end()) != compressed.end()) path = path.stem();
  return end();
}

}  // namespace

void TextFile::Free::operator()(archive* reader) const { archive_read_free(reader); }

TextFile::TextFile(const fs::path& path)
    : name_(path.string()),
      file_(open_regular(path, Failure::input, Links::follow)),
      reader_(archive_read_new()) {
  require(reader_ != nullptr, Failure::resource, "{}: no memory to read it", name_);
  archive* const reader = reader_.get();
  archive_read_support_filter_gzip(reader);
  archive_read_support_filter_zstd(reader);
  archive_read_support_filter_bzip2(reader);
  archive_read_support_filter_xz(reader);
  archive_read_support_format_empty(reader);
  archive_read_support_format_raw(reader);
  archive_entry* entry = nullptr;
  if (archive_read_open_fd(reader, file_.get(), 1 << 18) < ARCHIVE_WARN) fail();
  const int code = archive_read_next_header(reader, &entry);
  if (code < ARCHIVE_WARN) fail();
  ended_ = code == ARCHIVE_EOF;
}

void TextFile::fail() const {
  const int code = archive_errno(reader_.get());
  const char* const reason = archive_error_string(reader_.get());
  throw Error(code == EIO || code == ESTALE ? Failure::storage : Failure::input,
              "{}: cannot be read: {}", name_, reason ? reason : "it is damaged");
}

bool TextFile::read(std::size_t bytes, std::string& text) {
  const std::size_t before = text.size(), end = before + bytes;
  text.resize(end);
  std::size_t at = before;
  while (at < end && !ended_) {
    const la_ssize_t got = archive_read_data(reader_.get(), text.data() + at, end - at);
    if (got == ARCHIVE_RETRY) continue;
    if (got < 0) fail();
    ended_ = got == 0;
    at += std::size_t(got);
  }
  text.resize(at);
  return at == end;
}

std::int64_t TextFile::position() const { return ::lseek(file_.get(), 0, SEEK_CUR); }

/// The file that pieces are cut from.
struct TextReader::Open {
  Open(const Named& named) : of(named), file(named.path) {}

  /// Appends the next bytes to the text, see TextFile::read; of a list as lines.
  void read(std::size_t bytes) {
    if (!list) {
      more = file.read(bytes, text);
      return;
    }
    std::string raw;
    more = file.read(bytes, raw);
    list->take(raw, text);
  }
  bool takes_list(const Encoder& encoder, bool any_object);

  const Named& of;
  TextFile file;
  std::optional<ListLines> list = {};
  std::string text = {};        ///< what was read, but for what was handed out
  std::size_t before = 0;       ///< bytes of it that were handed out too
  bool more = true;             ///< the file may go on
  bool lines = false;           ///< of JSON
  std::int64_t first_line = 1;  ///< the number of the text's first line
  bool begins = true;           ///< nothing was handed out
};

/// Reads the text as a list from here on if its first entry is one that the encoder takes, or any
/// object.
bool TextReader::Open::takes_list(const Encoder& encoder, bool any_object) {
  constexpr std::size_t most_bytes = std::size_t{64} << 20;  // of the first entry
  if (!ListLines::begins(deck::without_mark(text))) return false;
  ListLines lines;
  std::string entries;
  lines.take(deck::without_mark(text), entries);
  while (more && entries.find('\n') == entries.npos && text.size() < most_bytes) {
    const std::size_t before = text.size();
    more = file.read(text.size(), text);
    lines.take(std::string_view(text).substr(before), entries);
  }
  if (!encoder.takes(std::string_view(entries).substr(0, entries.find('\n')), any_object))
    return false;
  list = lines;
  text = std::move(entries);
  return true;
}

TextReader::TextReader(const std::vector<fs::path>& files) {
  for (const fs::path& path : files) add_path(path, false);
}

TextReader::~TextReader() = default;

void TextReader::add_directory(const fs::path& directory) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    // A linked directory may lead back here; pipes and devices have no end.
    const bool walked = entry.is_regular_file() || (entry.is_directory() && !entry.is_symlink());
    if (!hidden && walked) entries.push_back(entry.path());
  }
  std::ranges::sort(entries);
  for (const fs::path& entry : entries) add_path(entry, true);
}

void TextReader::add_path(const fs::path& path, bool walked) {
  try {
    if (fs::is_directory(path)) return add_directory(path);
    require(fs::is_regular_file(path), Failure::input, "{}: no such file", path.string());
    files_.push_back({path, std::int64_t(fs::file_size(path)), walked});
    bytes_ += files_.back().bytes;
  } catch (const fs::filesystem_error& error) {
    throw Error(Failure::input, "{}: cannot be read: {}", path.string(), error.code().message());
  }
}

/// Opens the next file that has a text. @return whether there is one
bool TextReader::open_next(Encoder& encoder) {
  for (; opened_ < files_.size(); bytes_before_ += files_[opened_ - 1].bytes) {
    const Named& named = files_[opened_++];
    auto open = std::make_unique<Open>(named);
    open->read(piece_bytes);
    if (open->text.empty()) continue;
    if (is_binary(open->text)) {
      if (named.walked) {
        ++left_out_;
        continue;
      }
      no_text_.push_back(named.path);
    }
    const std::string kind = kind_of(named.path);
    open->lines = kind == ".jsonl" || kind == ".ndjson";
    const bool any_object = kind == ".json" && !named.walked;
    if (!open->lines) open->lines = open->takes_list(encoder, any_object);
    if (!open->lines && begins_with_brace(deck::without_mark(open->text))) {
      // The name does not say it, so the first line does, which is whole in a text of lines.
      const std::size_t start = open->text.find('{');
      while (open->more && open->text.find('\n', start) == open->text.npos)
        open->read(open->text.size());
      open->lines = encoder.takes(
          std::string_view(open->text).substr(0, open->text.find('\n', start)), any_object);
    }
    if (!open->lines && any_object) raw_json_.push_back(named.path);
    any_lines_ = any_lines_ || open->lines;
    open_ = std::move(open);
    return true;
  }
  return false;
}

std::optional<TextPiece> TextReader::next(Encoder& encoder) {
  for (;;) {
    if (!open_ && !open_next(encoder)) return std::nullopt;
    std::optional<TextPiece> piece = piece_of(*open_, encoder);
    if (!piece || piece->ends) {
      bytes_before_ += open_->of.bytes;
      open_.reset();
    }
    if (piece) return piece;
  }
}

/// The next piece of a file, none at its end.
std::optional<TextPiece> TextReader::piece_of(Open& open, Encoder& encoder) const {
  std::string& text = open.text;
  std::size_t end = 0;
  // Where a line, or a text that cannot be cut, goes on, twice as much is read each time.
  for (std::size_t wanted = piece_bytes, looked = open.before; end == 0; wanted *= 2) {
    if (open.more && text.size() < wanted) open.read(wanted - text.size());
    if (!open.more) {
      end = text.size();
      if (end == open.before) return std::nullopt;
    } else if (open.lines) {
      const std::size_t last = std::string_view(text).substr(looked).rfind('\n');
      if (last != text.npos) end = looked + last + 1;
    } else {
      end = encoder.last_cut(text, looked);
    }
    looked = text.size();
  }
  TextPiece piece{.path = open.of.path,
                  .lines = open.lines,
                  .of_list = open.list.has_value(),
                  .first_line = open.first_line,
                  .before = open.before,
                  .begins = open.begins,
                  .ends = !open.more,
                  .text = text.substr(0, end),
                  .done = bytes_before_ + (open.more ? open.file.position() : open.of.bytes)};
  open.begins = false;
  open.first_line += std::ranges::count(piece.text, '\n');
  open.before = open.lines ? 0 : end - Encoder::context_begin(text, end);
  text.erase(0, end - open.before);
  return piece;
}

}  // namespace brume::interop
