#include "data/token_file.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "token_format.hpp"
#include "token_layout.hpp"

namespace brume::data {
namespace {

/// Fills `room` from a byte of a file on that was long enough when it was opened.
void read_all(const Descriptor& file, std::int64_t byte, std::span<std::byte> room,
              const std::string& name) {
  const std::size_t got = read_at(file, byte, room, name);
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
  require(header.version >= 1 && header.version <= newest_version, Failure::input,
          "{}: has layout version {}, this program reads 1 to {}", name, header.version,
          newest_version);
  const bool wide = header.token_bytes == 4;
  require(header.token_bytes == 2 || (wide && header.version >= 2), Failure::input,
          "{}: has tokens of {} bytes, expected 2{}", name, header.token_bytes,
          header.version >= 2 ? " or 4" : "");
  const int most = wide ? max_vocab : max_vocab_16_bits;
  require(header.vocab_size >= 1 && header.vocab_size <= std::uint32_t(most), Failure::input,
          "{}: has a vocabulary of {}, expected 1 to {}", name, header.vocab_size, most);
  const auto room = std::uint64_t(size) - sizeof(Header);
  const bool ends = header.version >= 3;
  const bool in_pairs = header.version < pairs_version || header.documents % 2 == 0;
  require(in_pairs && header.zero == 0 && header.last_zero == 0 && ends == (header.documents > 0) &&
              ((header.answers == 0 && header.version < 4) || header.answers == header.documents),
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
      header.answers > 0 ? numbers_from(answers) : DocumentTable::Read(), name,
      header.version == 4);
}

/// Finds the documents of a file by tokens that begin or end each of them.
class MarkedDocuments {
 public:
  explicit MarkedDocuments(DocumentMarks marks) : marks_(marks) {}

  bool wanted() const { return marks_.begin >= 0 || marks_.end >= 0; }

  /// The next tokens of the file.
  void add(std::span<const std::byte> bytes, int token_bytes) {
    as_tokens(bytes, token_bytes, [this](const auto tokens) {
      for (const std::uint64_t token : tokens) {
        const bool begins = marks_.begin >= 0 && token == std::uint64_t(marks_.begin);
        if (begins && count_ > (ends_.empty() ? 0 : ends_.back())) ends_.push_back(count_);
        ++count_;
        const bool ends = marks_.end >= 0 && token == std::uint64_t(marks_.end);
        if (ends) ends_.push_back(count_);
        any_ = any_ || begins || ends;
      }
    });
  }

  std::shared_ptr<const DocumentTable> table(const std::string& name) {
    require(any_, Failure::input,
            "{}: has neither data.begin_token = {} nor data.end_token = {}, by which its documents "
            "should be told apart",
            name, marks_.begin, marks_.end);
    if (ends_.empty() || ends_.back() < count_) ends_.push_back(count_);
    const auto ends = std::make_shared<const std::vector<std::int64_t>>(std::move(ends_));
    return std::make_shared<DocumentTable>(
        count_, std::ssize(*ends),
        [ends](std::int64_t first, std::span<std::int64_t> numbers) {
          std::copy_n(ends->begin() + first, numbers.size(), numbers.begin());
        },
        DocumentTable::Read(), name);
  }

 private:
  DocumentMarks marks_;
  std::int64_t count_ = 0;  ///< tokens so far
  bool any_ = false;        ///< a mark was there
  std::vector<std::int64_t> ends_;
};

/// The header of a file of ours; none when it does not begin as one.
std::optional<Header> read_header(const Descriptor& file, const std::string& name) {
  Header header{.magic = {}};
  const std::size_t got = read_at(file, 0, std::as_writable_bytes(std::span(&header, 1)), name);
  if (header.magic != Header{}.magic) return std::nullopt;
  require(got == sizeof(Header), Failure::input, "{}: is no token file: {} bytes, a header has {}",
          name, got, sizeof(Header));
  check(header, length(file), name);
  return header;
}

/// What TokenFile::key() says. Ranks on other nodes know the same file by the same key; the number
/// of its device may be another one there.
std::string key_of(const Descriptor& file, const std::filesystem::path& path,
                   const TokenLayout& layout) {
  struct ::stat status = {};
  require(::fstat(file.get(), &status) == 0, Failure::bug, "a file has no status");
  const auto& [changed_s, changed_ns] = status.st_ctim;
  const auto& [written_s, written_ns] = status.st_mtim;
  return fmt::format("{} {} {}.{:09} {}.{:09} {} {} {} {}", status.st_ino, status.st_size,
                     changed_s, changed_ns, written_s, written_ns, layout.first_byte, layout.count,
                     layout.token_bytes, std::filesystem::canonical(path).string());
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, DocumentMarks marks,
                     const TokenChecks& known)
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

  key_ = key_of(*file_, path, layout);
  const bool ends = documents_ || (header && header->documents > 0);
  if (ends) marks = {};
  const auto found = known.find(key_);
  if (found == known.end() || MarkedDocuments(marks).wanted()) {
    read_through(header ? &*header : nullptr, marks);
    if (key_of(*file_, path, layout) != key_) key_.clear();
  } else {
    checksum_ = found->second.checksum;
    vocab_size_ = found->second.vocab_size;
  }
  if (header && header->documents > 0) documents_ = documents_of(*header, file_, name);
  has_pairs_ = header && header->version == pairs_version;
}

std::int64_t TokenFile::num_pairs() const { return has_pairs_ ? documents_->count() / 2 : 0; }

std::array<Document, 2> TokenFile::pair(std::int64_t number) const {
  require(number < num_pairs(), Failure::bug, "{}: pair {} of {}", path_.string(), number,
          num_pairs());
  return documents_->pair(number);
}

void TokenFile::read_through(const Header* header, DocumentMarks marks) {
  const std::string name = path_.string();
  MarkedDocuments marked(marks);
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
    if (of_tokens <= 0) continue;
    const auto tokens = std::span(piece).first(std::size_t(of_tokens));
    highest = std::max(highest, highest_of(tokens, token_bytes_));
    if (marked.wanted()) marked.add(tokens, token_bytes_);
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
  if (marked.wanted()) documents_ = marked.table(name);
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

}  // namespace brume::data
