#include "device/scratch_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <optional>
#include <random>
#include <vector>

#include "own_folder.hpp"
#include "refusal.hpp"

namespace brume::device {
namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20, page = ScratchFile::page_bytes;

/// A folder on a file system of each kind.
class ScratchFileTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::is_directory(GetParam())) GTEST_SKIP() << "there is no " << GetParam();
    folder.emplace(GetParam());
    directory = folder->path();
  }

  std::optional<test::OwnFolder> folder;
  std::string directory;
};

std::vector<std::byte> noise(std::mt19937& random, std::size_t bytes) {
  std::vector<std::byte> values(bytes);
  std::ranges::generate(values, [&] { return std::byte(random()); });
  return values;
}

/// The system's handle of the open file, which has no name any more.
std::filesystem::path handle_of(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().starts_with(directory))
      return entry.path();
  }
  return {};
}

TEST_P(ScratchFileTest, BeginsWithZerosAndLeavesNoName) {
  ScratchFile file(directory, 3 * page + 1);
  EXPECT_EQ(file.bytes(), 4 * page);
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::vector<std::byte> bytes(std::size_t(file.bytes()), std::byte{1});
  file.read(0, bytes);
  EXPECT_EQ(std::ranges::count(bytes, std::byte{0}), file.bytes());
}

// Any bytes of any memory: whole pages, parts of one, longer than what a detour takes at once.
TEST_P(ScratchFileTest, GivesBackWhatWasWritten) {
  constexpr std::int64_t bytes = 5 * mib;
  ScratchFile file(directory, bytes);
  std::mt19937 random(1);
  std::vector<std::byte> expected(std::size_t(bytes), std::byte{0});
  alignas(page) static std::array<std::byte, bytes> pages;
  for (int i = 0; i < 200; ++i) {
    const bool aligned = random() % 2 == 0;
    const std::int64_t first =
        random() % std::uint64_t(bytes) / (aligned ? page : 1) * (aligned ? page : 1);
    const std::int64_t most =
        i % 4 == 0 ? bytes - first : std::min<std::int64_t>(3 * page, bytes - first);
    const auto count = 1 + random() % std::uint64_t(most);
    const std::vector<std::byte> values = noise(random, count);
    const std::span<std::byte> from(pages.data() + (random() % 2 == 0 ? 0 : 24),
                                    std::min(count, std::size_t(bytes - 24)));
    std::copy_n(values.begin(), from.size(), from.begin());
    file.write(first, from);
    std::ranges::copy(from, expected.begin() + first);

    const std::int64_t begin =
        random() % 2 == 0 ? first : std::int64_t(random() % std::uint64_t(bytes));
    const std::span<std::byte> to = from.first(std::min(from.size(), std::size_t(bytes - begin)));
    std::ranges::fill(to, std::byte{0});
    file.read(begin, to);
    ASSERT_TRUE(std::ranges::equal(to, std::span(expected).subspan(std::size_t(begin), to.size())))
        << "transfer " << i;
  }
  std::vector<std::byte> all(std::size_t(bytes), std::byte{0});
  file.read(0, all);
  EXPECT_EQ(all, expected);
}

TEST_P(ScratchFileTest, FilesAreApart) {
  ScratchFile one(directory, page), two(directory, page);
  const std::vector<std::byte> ones(std::size_t(page), std::byte{1}),
      twos(std::size_t(page), std::byte{2});
  one.write(0, ones);
  two.write(0, twos);
  std::vector<std::byte> back(std::size_t(page), std::byte{0});
  one.read(0, back);
  EXPECT_EQ(back, ones);
}

/// No file may grow beyond a limit, as on a disk without space.
class Full {
 public:
  explicit Full(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~Full() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_P(ScratchFileTest, AFullDiskShowsAtOnce) {
  const Full full(1 << 20);
  const std::string what =
      test::refusal([&] { ScratchFile(directory, 2 * mib); }, Failure::storage);
  EXPECT_NE(what.find("2097152 bytes"), std::string::npos) << what;
  EXPECT_NE(what.find(directory), std::string::npos) << what;
  EXPECT_NE(what.find("cluster.scratch"), std::string::npos) << what;
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST_P(ScratchFileTest, AFailedWriteIsAnError) {
  ScratchFile file(directory, 2 * mib);
  const std::vector<std::byte> from(std::size_t(page), std::byte{1});
  const Full full(1 << 20);
  const std::string what = test::refusal([&] { file.write(mib, from); }, Failure::storage);
  EXPECT_NE(what.find("cannot write 4096 bytes at 1048576"), std::string::npos) << what;
  EXPECT_NE(what.find(directory), std::string::npos) << what;
}

TEST_P(ScratchFileTest, AFileThatLostItsEndIsAnError) {
  ScratchFile file(directory, 4 * page);
  const std::filesystem::path handle = handle_of(directory);
  ASSERT_FALSE(handle.empty());
  const Descriptor other(::open(handle.c_str(), O_RDWR));
  ASSERT_EQ(::ftruncate(other.get(), 2 * page), 0);
  std::vector<std::byte> to(std::size_t(2 * page), std::byte{0});
  EXPECT_NO_THROW(file.read(0, to));
  const std::string what = test::refusal([&] { file.read(page, to); }, Failure::storage);
  EXPECT_NE(what.find("cannot read"), std::string::npos) << what;
  EXPECT_NE(what.find("it ends"), std::string::npos) << what;
}

// The second file system has no way past the page cache, or had none for long.
INSTANTIATE_TEST_SUITE_P(On, ScratchFileTest,
                         ::testing::Values(std::filesystem::temp_directory_path(), "/dev/shm"));

TEST(ScratchFile, NamesADirectoryThatIsNotThere) {
  const test::OwnFolder folder;
  const std::string missing = folder / "missing";
  const std::string what = test::refusal([&] { ScratchFile(missing, 1); }, Failure::storage);
  EXPECT_NE(what.find("'" + missing + "': No such file or directory"), std::string::npos) << what;
}

TEST(ScratchFile, NoBytesNeedNoFile) {
  const test::OwnFolder folder;
  EXPECT_EQ(ScratchFile(folder / "missing", 0).bytes(), 0);
}

}  // namespace
}  // namespace brume::device
