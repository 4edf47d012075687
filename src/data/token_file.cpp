#include "data/token_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

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

/// Four sums side by side keep up with the memory; README.md defines the result.
std::uint64_t checksum(const Header& header, std::span<const std::uint16_t> tokens) {
  constexpr std::uint64_t start = 0xcbf29ce484222325;
  constexpr std::size_t tokens_a_word = 4;
  std::array<std::uint64_t, 4> sums = {start, start + 1, start + 2, start + 3};
  for (std::size_t i = 0; i < tokens.size(); i += sums.size() * tokens_a_word) {
    std::array<std::uint64_t, 4> words{};
    const std::size_t left = std::min(tokens.size() - i, sums.size() * tokens_a_word);
    std::memcpy(words.data(), tokens.data() + i, left * sizeof(std::uint16_t));
    for (std::size_t k = 0; k * tokens_a_word < left; ++k) sums[k] = stir(sums[k], words[k]);
  }
  std::array<std::uint64_t, 4> front{};
  std::memcpy(front.data(), &header, sizeof(front));
  std::uint64_t sum = start;
  for (const std::uint64_t word : front) sum = stir(sum, word);
  for (const std::uint64_t word : sums) sum = stir(sum, word);
  return sum;
}

int highest_of(std::span<const std::uint16_t> tokens) {
  return tokens.empty() ? -1 : std::ranges::max(tokens);
}

std::string last_error() { return std::strerror(errno); }

std::shared_ptr<const std::byte> map(const std::filesystem::path& path, std::size_t& size) {
  // O_NONBLOCK: a pipe without a writer must not hang the job.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require(file.get() >= 0, Failure::input, "{}: cannot be opened: {}", path.string(), last_error());
  struct stat status = {};
  require(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), Failure::input,
          "{}: is not a regular file", path.string());
  size = static_cast<std::size_t>(status.st_size);
  require(size >= sizeof(Header), Failure::input, "{}: is no token file: {} bytes, a header has {}",
          path.string(), size, sizeof(Header));
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  require(start != MAP_FAILED, Failure::resource, "{}: cannot be mapped: {}", path.string(),
          last_error());
  const auto unmap = [size](const std::byte* first) {
    ::munmap(const_cast<std::byte*>(first), size);
  };
  return {static_cast<const std::byte*>(start), unmap};
}

/// Checks all of the header but its checksum. @throws Error(input)
void check(const Header& header, std::size_t size, const std::string& name) {
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
  const std::size_t room = size - sizeof(Header);
  require(room % ours.token_bytes == 0 && header.count == room / ours.token_bytes, Failure::input,
          "{}: promises {} tokens, but {} bytes follow the header", name, header.count, room);
  require(header.zero == 0 && header.zeros == ours.zeros, Failure::input,
          "{}: has a damaged header", name);
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : path_(path) {
  std::size_t size = 0;
  mapping_ = map(path, size);
  Header header;
  std::memcpy(&header, mapping_.get(), sizeof(header));
  check(header, size, path.string());
  const auto* first = reinterpret_cast<const std::uint16_t*>(mapping_.get() + sizeof(header));
  tokens_ = {first, static_cast<std::size_t>(header.count)};
  vocab_size_ = static_cast<int>(header.vocab_size);

  const std::uint64_t found = checksum(header, tokens_);
  require(found == header.checksum, Failure::input,
          "{}: is damaged: checksum {:016x}, expected {:016x}", path.string(), found,
          header.checksum);
  checksum_ = header.checksum;
  const int highest = highest_of(tokens_);
  require(highest < vocab_size_, Failure::input, "{}: holds token {}, outside its vocabulary of {}",
          path.string(), highest, vocab_size_);
}

TokenFileIdentity TokenFile::identity() const {
  return {.path = path_.string(),
          .checksum = checksum_,
          .tokens = std::ssize(tokens_),
          .vocab_size = vocab_size_};
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
  header.checksum = checksum(header, tokens);

  OutputFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(std::as_bytes(tokens));
  file.commit();
}

}  // namespace brume::data
