#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "token_layout.hpp"

namespace brume::data {
namespace {

namespace fs = std::filesystem;

/// A file with its name, which begins every error.
struct Source {
  Source(std::shared_ptr<const Descriptor> of, std::string called)
      : file(std::move(of)), name(std::move(called)), bytes(length(*file)) {}

  std::shared_ptr<const Descriptor> file;
  std::string name;
  std::int64_t bytes;

  /// What lies at a byte; it must be there.
  template <class T>
  T at(std::int64_t byte) const {
    T value{};
    values(byte, std::span(&value, 1));
    return value;
  }

  template <class T>
  void values(std::int64_t byte, std::span<T> room) const {
    const std::size_t got = read_at(*file, byte, std::as_writable_bytes(room), name);
    require(got == room.size_bytes(), Failure::input, "{}: ends within its header", name);
  }

  std::string text(std::int64_t byte, std::int64_t size) const {
    require(byte + size <= bytes, Failure::input, "{}: ends within its header", name);
    std::string found(std::size_t(size), '\0');
    values(byte, std::span(found));
    return found;
  }

  bool begins_with(std::string_view magic) const {
    return bytes >= std::ssize(magic) && text(0, std::ssize(magic)) == magic;
  }
};

/// The layout of `count` tokens that fill the file to its end.
TokenLayout filled(const Source& source, std::int64_t first_byte, std::uint64_t count,
                   int token_bytes) {
  const auto room = std::uint64_t(source.bytes - first_byte);
  const auto width = std::uint64_t(token_bytes);
  require(room % width == 0 && count == room / width, Failure::input,
          "{}: promises {} tokens of {} bytes, but {} bytes follow its header: write it again",
          source.name, count, token_bytes, room);
  return {.first_byte = first_byte, .count = std::int64_t(count), .token_bytes = token_bytes};
}

// --- llm.c: 256 numbers of 32 bits, then the tokens ---
// @source  llm.c, dev/data/data_common.py and llmc/dataloader.h

struct LlmCKind {
  std::int32_t magic, version;
  int token_bytes;
};
constexpr std::array<LlmCKind, 2> llm_c_kinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

std::optional<TokenLayout> llm_c(const Source& source) {
  constexpr std::int64_t header_bytes = 1024;
  if (source.bytes < 4) return std::nullopt;
  const auto magic = source.at<std::int32_t>(0);
  const auto* kind = std::ranges::find(llm_c_kinds, magic, &LlmCKind::magic);
  if (kind == llm_c_kinds.end()) return std::nullopt;
  require(source.bytes >= header_bytes, Failure::input,
          "{}: begins as token files of llm.c do, but has {} bytes, their header has {}",
          source.name, source.bytes, header_bytes);
  const auto version = source.at<std::int32_t>(4);
  require(version == kind->version, Failure::input,
          "{}: is a token file of llm.c of version {}, this program reads {}", source.name, version,
          kind->version);
  return filled(source, header_bytes, source.at<std::uint32_t>(8), kind->token_bytes);
}

// --- numpy: a text that describes one array, then its values ---
// @source  numpy, the documentation of numpy.lib.format

/// What stands behind `key` in the description, up to one of `ends`.
std::string_view entry(std::string_view description, std::string_view key, std::string_view ends,
                       const Source& source) {
  const std::size_t at = description.find(key);
  require(at != std::string_view::npos, Failure::input, "{}: its numpy header has no {}",
          source.name, key);
  const std::string_view rest = description.substr(at + key.size());
  return rest.substr(0, rest.find_first_of(ends));
}

std::optional<TokenLayout> numpy(const Source& source) {
  if (!source.begins_with("\x93NUMPY")) return std::nullopt;
  const bool first_version = source.at<std::uint8_t>(6) == 1;
  const std::int64_t begin = first_version ? 10 : 12;
  const std::int64_t size =
      first_version ? source.at<std::uint16_t>(8) : source.at<std::uint32_t>(8);
  const std::string description = source.text(begin, size);

  const std::string_view type = entry(description, "'descr': '", "'", source);
  constexpr std::array<std::pair<std::string_view, int>, 6> widths = {
      {{"|u1", 1}, {"<u2", 2}, {"<i4", 4}, {"<u4", 4}, {"<i8", 8}, {"<u8", 8}}};
  const auto* width = std::ranges::find(widths, type, &std::pair<std::string_view, int>::first);
  require(width != widths.end(), Failure::input,
          "{}: holds numbers of type '{}', tokens are uint8, uint16, uint32, uint64, int32 or "
          "int64, little-endian: convert it with astype",
          source.name, type);

  const std::string_view shape = entry(description, "'shape': (", ")", source);
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), count);
  require(error == std::errc() && std::string_view(end, shape.data() + shape.size()) == ",",
          Failure::input, "{}: has the shape ({}), tokens are one row: save it with reshape(-1)",
          source.name, shape);
  return filled(source, begin + size, count, width->second);
}

// --- Megatron: NAME.bin with the tokens alone, NAME.idx with what they are ---
// @source  Megatron-LM, megatron/core/datasets/indexed_dataset.py

constexpr std::string_view megatron_magic("MMIDIDX\0\0", 9);

/// The index of a Megatron file, whose arrays follow each other without alignment.
class MegatronIndex {
 public:
  explicit MegatronIndex(Source given) : source_(std::move(given)) {
    const Source& source = source_;
    constexpr std::int64_t header_bytes = 34;
    const auto version = source.at<std::uint64_t>(9);
    require(version == 1, Failure::input, "{}: is an index of version {}, this program reads 1",
            source.name, version);
    const int type = source.at<std::uint8_t>(17);
    token_bytes_ = type == 1 ? 1 : type == 8 ? 2 : type == 4 ? 4 : type == 5 ? 8 : 0;
    require(token_bytes_ > 0, Failure::input,
            "{}: has tokens of type {}, expected 1 (uint8), 4 (int32), 5 (int64) or 8 (uint16)",
            source.name, type);
    sequences_ = source.at<std::int64_t>(18);
    const auto documents = source.at<std::int64_t>(26);
    // Each count fits the file before it is multiplied.
    const bool sane = sequences_ >= 0 && sequences_ <= source.bytes / 12 && documents >= 1 &&
                      documents <= source.bytes / 8;
    lengths_ = header_bytes;
    offsets_ = lengths_ + (sane ? sequences_ * 4 : 0);
    documents_ = offsets_ + (sane ? sequences_ * 8 : 0);
    num_documents_ = sane ? documents - 1 : 0;
    const std::int64_t end = documents_ + (sane ? documents * 8 : 0);
    require(sane && (source.bytes == end || source.bytes == end + sequences_), Failure::input,
            "{}: promises {} sequences and {} ends of documents, which its {} bytes do not hold",
            source.name, sequences_, documents, source.bytes);
    const auto last = source.at<std::int64_t>(end - 8);
    require(last == sequences_, Failure::input,
            "{}: its last document ends with sequence {}, but it has {}", source.name, last,
            sequences_);
  }

  int token_bytes() const { return token_bytes_; }
  std::int64_t num_documents() const { return num_documents_; }
  const std::string& name() const { return source_.name; }

  /// Where documents end, from document `first` on, in a file of `tokens`.
  void ends(std::int64_t first, std::int64_t tokens, std::span<std::int64_t> found) const {
    source_.values(documents_ + (first + 1) * 8, found);
    for (std::int64_t& end : found) {
      require(end >= 0 && end <= sequences_, Failure::input,
              "{}: a document ends with sequence {}, but it has {}", source_.name, end, sequences_);
      end =
          end == sequences_ ? tokens : source_.at<std::int64_t>(offsets_ + end * 8) / token_bytes_;
    }
  }

  /// Tokens of all sequences, which lie one after the other and within `bin_bytes`.
  std::int64_t count_tokens(std::int64_t bin_bytes) const {
    constexpr std::int64_t piece = 1 << 16;
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> offsets;
    std::int64_t end = 0;  // bytes
    for (std::int64_t first = 0; first < sequences_; first += piece) {
      const std::int64_t part = std::min(piece, sequences_ - first);
      lengths.resize(std::size_t(part));
      offsets.resize(std::size_t(part));
      source_.values(lengths_ + first * 4, std::span(lengths));
      source_.values(offsets_ + first * 8, std::span(offsets));
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        require(lengths[i] >= 0 && offsets[i] == end, Failure::input,
                "{}: sequence {} has {} tokens from byte {} on, expected byte {}: write it again",
                source_.name, first + std::int64_t(i), lengths[i], offsets[i], end);
        end += std::int64_t{lengths[i]} * token_bytes_;  // at most 2^34 more than bin_bytes
        require(end <= bin_bytes, Failure::input,
                "{}: sequence {} ends at byte {}, but the .bin beside it has {} bytes",
                source_.name, first + std::int64_t(i), end, bin_bytes);
      }
    }
    return end / token_bytes_;
  }

 private:
  Source source_;
  int token_bytes_ = 0;
  std::int64_t sequences_ = 0, num_documents_ = 0;
  std::int64_t lengths_ = 0, offsets_ = 0, documents_ = 0;  // where each array begins, in bytes
};

std::optional<TokenLayout> megatron(const Source& source, const fs::path& path) {
  const fs::path beside = fs::path(path).replace_extension(".idx");
  require(!source.begins_with(megatron_magic), Failure::input,
          "{}: is the index of a Megatron file: name the .bin beside it", source.name);
  std::error_code none;
  if (path.extension() != ".bin" || !fs::is_regular_file(beside, none)) return std::nullopt;
  const Source index(
      std::make_shared<const Descriptor>(open_regular(beside, Failure::input, Links::follow)),
      beside.string());
  require(index.begins_with(megatron_magic), Failure::input,
          "{}: is no index of a Megatron file: it does not begin with MMIDIDX; move it away if {} "
          "has none",
          index.name, source.name);
  const auto megatron = std::make_shared<const MegatronIndex>(index);
  const std::int64_t count = megatron->count_tokens(source.bytes);
  TokenLayout layout{.count = count, .token_bytes = megatron->token_bytes()};
  if (megatron->num_documents() > 0)
    layout.documents = std::make_shared<DocumentTable>(
        count, megatron->num_documents(),
        [=](std::int64_t first, std::span<std::int64_t> ends) {
          megatron->ends(first, count, ends);
        },
        DocumentTable::Read(), megatron->name());
  return layout;
}

// --- bare tokens, as nanoGPT writes them: only the name can say what they are ---

std::optional<TokenLayout> bare(const Source& source, const fs::path& path) {
  const fs::path kind = path.extension();
  if (kind != ".u16" && kind != ".u32") return std::nullopt;
  const int token_bytes = kind == ".u16" ? 2 : 4;
  require(source.bytes % token_bytes == 0, Failure::input,
          "{}: has {} bytes, which are no whole number of tokens of {} bytes", source.name,
          source.bytes, token_bytes);
  return filled(source, 0, std::uint64_t(source.bytes / token_bytes), token_bytes);
}

}  // namespace

TokenLayout foreign_layout(const std::shared_ptr<const Descriptor>& file, const fs::path& path) {
  const Source source(file, path.string());
  std::optional<TokenLayout> found = megatron(source, path);
  if (!found) found = llm_c(source);
  if (!found) found = numpy(source);
  if (!found) found = bare(source, path);
  require(found.has_value(), Failure::input,
          "{}: is no token file: it does not begin as those of Brume, llm.c and numpy do, and has "
          "no Megatron index (.idx) beside it; bare tokens of 16 bits, as nanoGPT writes them, are "
          "read under a name that ends in .u16 (of 32 bits: .u32); `brume import tokens` packs "
          "text",
          source.name);
  return *found;
}

}  // namespace brume::data
