#include "data/token_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "token_layout.hpp"

namespace brume::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they are");

constexpr int max_vocab_16_bits = 1 << 16;
constexpr int max_vocab = std::numeric_limits<std::int32_t>::max();

/// The first 64 bytes of a token file.
struct Header {
  std::array<char, 8> magic = {'B', 'R', 'U', 'M', 'E', 'T', 'O', 'K'};
  std::uint32_t version = 1;
  std::uint32_t token_bytes = 2;
  std::uint32_t vocab_size = 0;
  std::uint32_t zero = 0;
  std::uint64_t count = 0;
  std::uint64_t checksum = 0;
  std::uint64_t documents = 0;
  std::uint64_t answers = 0;  ///< none, or as many as documents
  std::uint64_t last_zero = 0;
};
static_assert(sizeof(Header) == 64);

/// A file has the oldest version that can hold what it says.
Header header_for(std::int64_t count, int vocab_size, const DocumentEnds& documents = {}) {
  const bool wide = vocab_size > max_vocab_16_bits;
  return {.version = documents.ends.empty() ? wide ? 2u : 1u : 3u,
          .token_bytes = wide ? 4u : 2u,
          .vocab_size = std::uint32_t(vocab_size),
          .count = std::uint64_t(count),
          .documents = documents.ends.size(),
          .answers = documents.answers.size()};
}

std::uint64_t stir(std::uint64_t sum, std::uint64_t word) {
  return std::rotl(sum ^ word, 29) * 0x100000001b3;
}

/// The checksum of README.md, from bytes that come piece by piece. Four sums side by side keep up
/// with the memory.
class Checksum {
 public:
  static constexpr std::size_t step = 32;  ///< bytes; all pieces but the last are multiples

  void add(std::span<const std::byte> bytes) {
    constexpr std::size_t word_bytes = step / 4;
    for (std::size_t i = 0; i < bytes.size(); i += step) {
      std::array<std::uint64_t, 4> words{};
      const std::size_t left = std::min(bytes.size() - i, step);
      std::memcpy(words.data(), bytes.data() + i, left);
      for (std::size_t k = 0; k * word_bytes < left; ++k) sums_[k] = stir(sums_[k], words[k]);
    }
  }

  std::uint64_t of(const Header& header) const {
    std::array<std::uint64_t, 4> front{};
    std::memcpy(front.data(), &header, sizeof(front));
    std::uint64_t sum = start;
    for (const std::uint64_t word : front) sum = stir(sum, word);
    if (header.documents > 0) sum = stir(stir(sum, header.documents), header.answers);
    for (const std::uint64_t word : sums_) sum = stir(sum, word);
    return sum;
  }

 private:
  static constexpr std::uint64_t start = 0xcbf29ce484222325;
  std::array<std::uint64_t, 4> sums_ = {start, start + 1, start + 2, start + 3};
};

/// Fills `room` from a byte of a file on that was long enough when it was opened.
void read_all(const Descriptor& file, std::int64_t byte, std::span<std::byte> room,
              const std::string& name) {
  const std::size_t got = read_at(file, byte, room, name, Failure::storage);
  require(got == room.size(), Failure::storage,
          "{}: ends before byte {}, although it was longer when it was opened: it was changed "
          "while the job read it; restore it and start the job again",
          name, byte + std::ssize(room));
}

/// Calls `use` with the bytes as tokens of their type.
template <class Use>
auto as_tokens(std::span<const std::byte> bytes, int token_bytes, const Use& use) {
  const auto typed = [&]<class T>(T) {
    return use(std::span(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)));
  };
  switch (token_bytes) {
    case 1: return typed(std::uint8_t{});
    case 2: return typed(std::uint16_t{});
    case 4: return typed(std::uint32_t{});
    default: return typed(std::uint64_t{});
  }
}

std::uint64_t highest_of(std::span<const std::byte> bytes, int token_bytes) {
  return as_tokens(bytes, token_bytes,
                   [](const auto tokens) { return std::uint64_t{std::ranges::max(tokens)}; });
}

std::int64_t token_bytes_of(const Header& header) {
  return std::int64_t(header.count * header.token_bytes);
}

/// Where the ends of documents begin behind the header: after whole steps of the checksum.
std::int64_t first_end_of(const Header& header) {
  constexpr std::int64_t step = Checksum::step;
  return (token_bytes_of(header) + step - 1) / step * step;
}

/// What follows the header.
std::int64_t bytes_behind(const Header& header) {
  if (header.documents == 0) return token_bytes_of(header);
  const auto numbers = std::int64_t(header.documents + header.answers);
  return first_end_of(header) + numbers * std::int64_t(sizeof(std::int64_t));
}

/// Checks all of the header but its checksum. @throws Error(input)
void check(const Header& header, std::int64_t size, const std::string& name) {
  require(header.version >= 1 && header.version <= 3, Failure::input,
          "{}: has layout version {}, this program reads 1 to 3", name, header.version);
  const bool wide = header.token_bytes == 4;
  require(header.token_bytes == 2 || (wide && header.version >= 2), Failure::input,
          "{}: has tokens of {} bytes, expected 2{}", name, header.token_bytes,
          header.version >= 2 ? " or 4" : "");
  const int most = wide ? max_vocab : max_vocab_16_bits;
  require(header.vocab_size >= 1 && header.vocab_size <= std::uint32_t(most), Failure::input,
          "{}: has a vocabulary of {}, expected 1 to {}", name, header.vocab_size, most);
  const auto room = std::uint64_t(size) - sizeof(Header);
  const bool ends = header.version == 3;
  require(header.zero == 0 && header.last_zero == 0 && ends == (header.documents > 0) &&
              (header.answers == 0 || header.answers == header.documents),
          Failure::input, "{}: has a damaged header", name);
  // Each count fits the file before it is multiplied.
  const bool fits =
      header.count <= room / header.token_bytes && header.documents <= room / sizeof(std::int64_t);
  require(fits && room == std::uint64_t(bytes_behind(header)), Failure::input,
          "{}: promises {} tokens{}, but {} bytes follow the header", name, header.count,
          ends ? fmt::format(" of {} documents", header.documents) : "", room);
}

/// Ends and answers of the documents of a file of ours.
std::shared_ptr<const DocumentTable> documents_of(const Header& header,
                                                  std::shared_ptr<const Descriptor> file,
                                                  const std::string& name) {
  const auto numbers_from = [&](std::int64_t byte) -> DocumentTable::Read {
    return [=](std::int64_t first, std::span<std::int64_t> numbers) {
      read_all(*file, byte + first * std::int64_t(sizeof(std::int64_t)),
               std::as_writable_bytes(numbers), name);
    };
  };
  const auto count = std::int64_t(header.documents);
  const std::int64_t ends = std::int64_t(sizeof(Header)) + first_end_of(header);
  const std::int64_t answers = ends + count * std::int64_t(sizeof(std::int64_t));
  return std::make_shared<DocumentTable>(
      std::int64_t(header.count), count, numbers_from(ends),
      header.answers > 0 ? numbers_from(answers) : DocumentTable::Read(), name);
}

/// The header of a file of ours; none when it does not begin as one.
std::optional<Header> read_header(const Descriptor& file, const std::string& name) {
  Header header{.magic = {}};
  const std::size_t got =
      read_at(file, 0, std::as_writable_bytes(std::span(&header, 1)), name, Failure::input);
  if (header.magic != Header{}.magic) return std::nullopt;
  require(got == sizeof(Header), Failure::input, "{}: is no token file: {} bytes, a header has {}",
          name, got, sizeof(Header));
  check(header, length(file), name);
  return header;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path)
    : path_(path),
      file_(std::make_shared<const Descriptor>(open_regular(path, Failure::input, Links::follow))) {
  const std::string name = path.string();
  const std::optional<Header> header = read_header(*file_, name);
  const TokenLayout layout = header ? TokenLayout{.first_byte = sizeof(Header),
                                                  .count = std::int64_t(header->count),
                                                  .token_bytes = int(header->token_bytes)}
                                    : foreign_layout(file_, path);
  first_byte_ = layout.first_byte;
  token_bytes_ = layout.token_bytes;
  size_ = layout.count;
  documents_ = layout.documents;

  Checksum sum;
  std::uint64_t highest = 0;
  const std::int64_t token_bytes = size_ * token_bytes_;
  const std::int64_t bytes = header ? bytes_behind(*header) : token_bytes;
  constexpr std::int64_t piece_bytes = std::int64_t{Checksum::step} << 16;
  std::vector<std::byte> piece;
  for (std::int64_t first = 0; first < bytes; first += piece_bytes) {
    piece.resize(std::size_t(std::min(piece_bytes, bytes - first)));
    read_all(*file_, first_byte_ + first, piece, name);
    sum.add(piece);
    const std::int64_t of_tokens = std::min(std::ssize(piece), token_bytes - first);
    if (of_tokens > 0)
      highest = std::max(highest,
                         highest_of(std::span(piece).first(std::size_t(of_tokens)), token_bytes_));
  }
  // Of a file that does not say its vocabulary, all that could follow is the smallest one.
  const auto most = std::uint64_t(header ? header->vocab_size : max_vocab);
  const Header summed = header ? *header : header_for(size_, int(std::min(highest, most - 1) + 1));
  checksum_ = sum.of(summed);
  vocab_size_ = int(summed.vocab_size);
  require(!header || checksum_ == header->checksum, Failure::input,
          "{}: is damaged: checksum {:016x}, expected {:016x}", name, checksum_, summed.checksum);
  require(size_ == 0 || highest < most, Failure::input,
          "{}: holds token {}, outside {} vocabulary of {}", name, highest,
          header ? "its" : "the largest", most);
  if (header && header->documents > 0) documents_ = documents_of(*header, file_, name);
}

std::vector<Document> TokenFile::documents(std::int64_t first, std::int64_t end) const {
  if (!documents_) return {{0, 0, size_}};
  return documents_->find(first, end);
}

void TokenFile::read_bytes(std::int64_t first, std::span<std::byte> bytes) const {
  const std::int64_t end = first + std::ssize(bytes) / token_bytes_;
  require(first >= 0 && end <= size_, Failure::bug, "tokens {} to {} of {}", first, end, size_);
  read_all(*file_, first_byte_ + first * token_bytes_, bytes, path_.string());
}

void TokenFile::read(std::int64_t first, std::span<std::int32_t> tokens) const {
  if (token_bytes_ == sizeof(std::int32_t))
    return read_bytes(first, std::as_writable_bytes(tokens));
  std::vector<std::byte> bytes(tokens.size() * std::size_t(token_bytes_));
  read_bytes(first, bytes);
  as_tokens(bytes, token_bytes_, [&](const auto found) {
    std::ranges::transform(found, tokens.begin(), [](auto token) { return std::int32_t(token); });
  });
}

TokenFileIdentity TokenFile::identity() const {
  return {
      .path = path_.string(), .checksum = checksum_, .tokens = size_, .vocab_size = vocab_size_};
}

void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      int vocab_size, const DocumentEnds& documents) {
  require(vocab_size >= 1, Failure::bug, "{}: a vocabulary of {}", path.string(), vocab_size);
  for (const std::int32_t token : tokens)
    require(token >= 0 && token < vocab_size, Failure::bug,
            "{}: token {} outside the vocabulary of {}", path.string(), token, vocab_size);
  require(documents.answers.empty() || documents.answers.size() == documents.ends.size(),
          Failure::bug, "{}: {} documents with {} answers", path.string(), documents.ends.size(),
          documents.answers.size());
  Header header = header_for(std::ssize(tokens), vocab_size, documents);
  std::vector<std::uint16_t> narrow;
  if (header.token_bytes == 2) narrow.assign(tokens.begin(), tokens.end());
  const std::span<const std::byte> bytes =
      header.token_bytes == 2 ? std::as_bytes(std::span(narrow)) : std::as_bytes(tokens);
  // What follows the header, in pieces of whole steps of the checksum but for the last one.
  const std::size_t whole = bytes.size() / Checksum::step * Checksum::step;
  std::vector<std::byte> rest(bytes.begin() + std::ptrdiff_t(whole), bytes.end());
  if (!documents.ends.empty() && !rest.empty()) rest.resize(Checksum::step);
  for (const std::vector<std::int64_t>& numbers : {documents.ends, documents.answers}) {
    const auto more = std::as_bytes(std::span(numbers));
    rest.insert(rest.end(), more.begin(), more.end());
  }
  Checksum sum;
  sum.add(bytes.first(whole));
  sum.add(rest);
  header.checksum = sum.of(header);

  OutputFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(bytes.first(whole));
  file.write(rest);
  file.commit();
}

}  // namespace brume::data
