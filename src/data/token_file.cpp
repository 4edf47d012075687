#include "data/token_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "base/files.hpp"

namespace brume::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they are");

/// The first 64 bytes of a token file.
struct Header {
  std::array<char, 8> magic = {'B', 'R', 'U', 'M', 'E', 'T', 'O', 'K'};
  std::uint32_t version = 1;
  std::uint32_t token_bytes = sizeof(std::uint16_t);
  std::uint32_t vocab_size = 0;
  std::uint32_t zero = 0;
  std::uint64_t count = 0;
  std::uint64_t checksum = 0;
  std::array<std::uint64_t, 3> zeros = {};
};
static_assert(sizeof(Header) == 64);

std::uint64_t stir(std::uint64_t sum, std::uint64_t word) {
  return std::rotl(sum ^ word, 29) * 0x100000001b3;
}

/// The checksum of README.md, from tokens that come piece by piece. Four sums side by side keep up
/// with the memory.
class Checksum {
 public:
  static constexpr std::size_t step = 16;  ///< tokens; all pieces but the last are multiples

  void add(std::span<const std::uint16_t> tokens) {
    constexpr std::size_t tokens_a_word = step / 4;
    for (std::size_t i = 0; i < tokens.size(); i += step) {
      std::array<std::uint64_t, 4> words{};
      const std::size_t left = std::min(tokens.size() - i, step);
      std::memcpy(words.data(), tokens.data() + i, left * sizeof(std::uint16_t));
      for (std::size_t k = 0; k * tokens_a_word < left; ++k) sums_[k] = stir(sums_[k], words[k]);
    }
  }

  std::uint64_t of(const Header& header) const {
    std::array<std::uint64_t, 4> front{};
    std::memcpy(front.data(), &header, sizeof(front));
    std::uint64_t sum = start;
    for (const std::uint64_t word : front) sum = stir(sum, word);
    for (const std::uint64_t word : sums_) sum = stir(sum, word);
    return sum;
  }

 private:
  static constexpr std::uint64_t start = 0xcbf29ce484222325;
  std::array<std::uint64_t, 4> sums_ = {start, start + 1, start + 2, start + 3};
};

int highest_of(std::span<const std::uint16_t> tokens) {
  return tokens.empty() ? -1 : std::ranges::max(tokens);
}

/// Checks all of the header but its checksum. @throws Error(input)
void check(const Header& header, std::int64_t size, const std::string& name) {
  const Header ours;
  require(header.magic == ours.magic, Failure::input,
          "{}: is no token file: it does not begin with BRUMETOK; `brume import tokens` makes one",
          name);
  require(header.version == ours.version, Failure::input,
          "{}: has layout version {}, this program reads {}", name, header.version, ours.version);
  require(header.token_bytes == ours.token_bytes, Failure::input,
          "{}: has tokens of {} bytes, expected {}", name, header.token_bytes, ours.token_bytes);
  require(header.vocab_size >= 1 && header.vocab_size <= 65536, Failure::input,
          "{}: has a vocabulary of {}, expected 1 to 65536", name, header.vocab_size);
  const auto room = std::uint64_t(size) - sizeof(Header);
  require(room % ours.token_bytes == 0 && header.count == room / ours.token_bytes, Failure::input,
          "{}: promises {} tokens, but {} bytes follow the header", name, header.count, room);
  require(header.zero == 0 && header.zeros == ours.zeros, Failure::input,
          "{}: has a damaged header", name);
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path)
    : path_(path),
      file_(std::make_shared<const Descriptor>(open_regular(path, Failure::input, Links::follow))) {
  const std::string name = path.string();
  const std::int64_t bytes = length(*file_);
  require(bytes >= std::int64_t(sizeof(Header)), Failure::input,
          "{}: is no token file: {} bytes, a header has {}", name, bytes, sizeof(Header));
  Header header;
  read_at(*file_, 0, std::as_writable_bytes(std::span(&header, 1)), name, Failure::input);
  check(header, bytes, name);
  size_ = std::int64_t(header.count);
  vocab_size_ = int(header.vocab_size);
  checksum_ = header.checksum;

  Checksum sum;
  int highest = -1;
  constexpr std::int64_t piece_tokens = std::int64_t{Checksum::step} << 15;
  std::vector<std::uint16_t> piece(std::size_t(std::min(piece_tokens, size_)));
  for (std::int64_t first = 0; first < size_; first += piece_tokens) {
    piece.resize(std::size_t(std::min(piece_tokens, size_ - first)));
    read(first, piece);
    sum.add(piece);
    highest = std::max(highest, highest_of(piece));
  }
  const std::uint64_t found = sum.of(header);
  require(found == header.checksum, Failure::input,
          "{}: is damaged: checksum {:016x}, expected {:016x}", name, found, header.checksum);
  require(highest < vocab_size_, Failure::input, "{}: holds token {}, outside its vocabulary of {}",
          name, highest, vocab_size_);
}

void TokenFile::read(std::int64_t first, std::span<std::uint16_t> tokens) const {
  const std::int64_t end = first + std::ssize(tokens);
  require(first >= 0 && end <= size_, Failure::bug, "tokens {} to {} of {}", first, end, size_);
  const auto byte = std::int64_t(sizeof(Header)) + first * std::int64_t(sizeof(std::uint16_t));
  const std::size_t got =
      read_at(*file_, byte, std::as_writable_bytes(tokens), path_.string(), Failure::storage);
  require(got == tokens.size_bytes(), Failure::storage,
          "{}: ends before token {}, although it held {} when it was opened: it was changed while "
          "the job read it; restore it and start the job again",
          path_.string(), end, size_);
}

TokenFileIdentity TokenFile::identity() const {
  return {
      .path = path_.string(), .checksum = checksum_, .tokens = size_, .vocab_size = vocab_size_};
}

void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens,
                      int vocab_size) {
  require(vocab_size >= 1 && vocab_size <= 65536, Failure::bug,
          "{}: a vocabulary of {}, expected 1 to 65536", path.string(), vocab_size);
  const int highest = highest_of(tokens);
  require(highest < vocab_size, Failure::bug, "{}: token {} outside the vocabulary of {}",
          path.string(), highest, vocab_size);
  Header header;
  header.vocab_size = static_cast<std::uint32_t>(vocab_size);
  header.count = tokens.size();
  Checksum sum;
  sum.add(tokens);
  header.checksum = sum.of(header);

  OutputFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(std::as_bytes(tokens));
  file.commit();
}

}  // namespace brume::data
