/// @file Files of text, read piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "documents.hpp"

struct archive;

namespace brume::interop {

/// A file read from its beginning on; what gzip, zstd, bzip2 or xz compressed is decompressed,
/// whatever the file is called.
class TextFile {
 public:
  /// @throws Error(input)
  explicit TextFile(const std::filesystem::path& path);

  /// Appends the next bytes, as many as asked for unless the file ends. @return whether there were
  /// so many
  /// @throws Error(input) for compressed bytes that are damaged, Error(storage)
  bool read(std::size_t bytes, std::string& text);

  std::int64_t position() const;  ///< bytes of the file that were read

 private:
  struct Free {
    void operator()(archive* reader) const;
  };
  [[noreturn]] void fail() const;

  std::string name_;
  Descriptor file_;
  std::unique_ptr<archive, Free> reader_;
  bool ended_ = false;
};

/// The text of files in order, directories walked in name order, in pieces of a few MiB.
class TextReader {
 public:
  /// @throws Error(input) for a file that is not there
  explicit TextReader(const std::vector<std::filesystem::path>& files);
  ~TextReader();

  /// The next piece; none: that was all. Where a text is cut is up to the encoder, which must be of
  /// the same options in all calls.
  /// @throws Error(input), Error(storage) for a file that cannot be read
  std::optional<TextPiece> next(Encoder& encoder);

  std::int64_t bytes() const { return bytes_; }  ///< of all files

  // What is known at the end:
  bool any_lines() const { return any_lines_; }        ///< a file had lines of JSON
  std::int64_t left_out() const { return left_out_; }  ///< files of directories that are no text
  const auto& no_text() const { return no_text_; }     ///< files that were named, but are none
  const auto& raw_json() const { return raw_json_; }   ///< named .json without a text a line

 private:
  struct Named {
    std::filesystem::path path;
    std::int64_t bytes;
    bool walked;  ///< found in a directory
  };
  struct Open;

  void add_path(const std::filesystem::path& path, bool walked);
  void add_directory(const std::filesystem::path& directory);
  bool open_next(Encoder& encoder);
  std::optional<TextPiece> piece_of(Open& open, Encoder& encoder) const;

  std::vector<Named> files_;
  std::int64_t bytes_ = 0;
  std::size_t opened_ = 0;         ///< files
  std::int64_t bytes_before_ = 0;  ///< of the files before the open one
  std::unique_ptr<Open> open_;
  bool any_lines_ = false;
  std::int64_t left_out_ = 0;
  std::vector<std::filesystem::path> no_text_, raw_json_;
};

}  // namespace brume::interop
