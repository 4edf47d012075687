#include "base/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "own_folder.hpp"
#include "refusal.hpp"

namespace {

int directory_error = 0;  ///< that a directory's fsync answers; 0: it is synced

}  // namespace

extern "C" int fsync(int file) {
  struct stat status = {};
  if (directory_error == 0 || ::fstat(file, &status) != 0 || !S_ISDIR(status.st_mode))
    return ::fdatasync(file);
  errno = directory_error;
  return -1;
}

namespace brume {
namespace {

namespace fs = std::filesystem;

constexpr unsigned other_user = 65534;

/// Files in a folder of their own, removed at the end.
class Files : public testing::Test {
 protected:
  static std::string content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void put(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(directory_), {}); }
  /// What writing says; it must be an Error(storage) that names the file.
  std::string refused(const fs::path& path) const {
    try {
      write_file(path, "new");
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::storage);
      EXPECT_TRUE(std::string(error.what()).starts_with(path.string())) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
  fs::path path_ = directory_ / "out";
};

// File systems in user space answer so.
TEST_F(Files, AFileSystemWithoutFsyncOfDirectoriesIsNoFailure) {
  for (const int unknown : {EINVAL, ENOTSUP, ENOSYS}) {
    directory_error = unknown;
    write_file(path_, "new");
    EXPECT_EQ(content(path_), "new");
  }
  directory_error = EIO;
  const std::string said = test::refusal([&] { sync_directory(directory_); }, Failure::storage);
  directory_error = 0;
  EXPECT_NE(said.find("the directory cannot be synced: Input/output error"), said.npos) << said;
}

TEST_F(Files, AFileIsMadeOrReplaced) {
  for (const char* text : {"first", "", "second"}) {
    write_file(path_, text);
    EXPECT_EQ(content(path_), text);
    EXPECT_EQ(files(), 1);
  }
}

TEST_F(Files, WhatIsNotCommittedLeavesNothing) {
  put(path_, "old");
  {
    OutputFile file(path_);
    file.write(as_bytes("new"));
    EXPECT_EQ(files(), 2);
    EXPECT_EQ(content(path_), "old");
  }
  EXPECT_EQ(content(path_), "old");
  EXPECT_EQ(files(), 1);
}

// The rights that a shell gives to new files, but nothing to those outside the group.
TEST_F(Files, RightsFollowTheUmask) {
  const auto rights = [&](mode_t mask) {
    const mode_t before = ::umask(mask);
    write_file(path_, "text");
    make_directory(directory_ / "a" / "b");
    ::umask(before);
    struct stat file = {}, folder = {};
    ::stat(path_.c_str(), &file);
    ::stat((directory_ / "a" / "b").c_str(), &folder);
    fs::remove_all(directory_ / "a");
    return std::pair(file.st_mode & 0777, folder.st_mode & 0777);
  };
  EXPECT_EQ(rights(0), std::pair(0640u, 0750u));
  EXPECT_EQ(rights(0022), std::pair(0640u, 0750u));
  EXPECT_EQ(rights(0077), std::pair(0600u, 0700u));
}

TEST_F(Files, ALinkStaysAndItsTargetIsReplaced) {
  put(directory_ / "target", "old");
  fs::create_symlink("target", directory_ / "second");
  fs::create_symlink(directory_ / "second", path_);
  write_file(path_, "new");
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_TRUE(fs::is_symlink(directory_ / "second"));
  EXPECT_EQ(content(directory_ / "target"), "new");
  EXPECT_EQ(files(), 3);

  fs::remove(directory_ / "target");
  write_file(path_, "anew");
  EXPECT_EQ(content(directory_ / "target"), "anew");
}

TEST_F(Files, AFailureNamesTheReasonOfTheSystem) {
  OutputFile file(path_);
  fs::create_directory(path_);
  try {
    file.commit();
    ADD_FAILURE() << "a folder was replaced";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), path_.string() + ": cannot be replaced: Is a directory");
  }
}

TEST_F(Files, LinksInACircleAreRefused) {
  fs::create_symlink("out", directory_ / "other");
  fs::create_symlink("other", path_);
  EXPECT_NE(refused(path_).find("more than 40 links"), std::string::npos);
}

TEST_F(Files, APipeIsWrittenAndStaysAPipe) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = content(path_); });
  write_file(path_, "through");
  reader.join();
  EXPECT_EQ(got, "through");
  EXPECT_TRUE(fs::is_fifo(path_));
  EXPECT_EQ(files(), 1);
}

// A device of the test's own that takes no byte, as /dev/full: so the device itself is written.
TEST_F(Files, ADeviceIsWrittenInPlace) {
  if (::mknod(path_.c_str(), S_IFCHR | 0600, makedev(1, 7)) != 0 ||
      Descriptor(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)).get() < 0)
    GTEST_SKIP() << "no device can be made here";
  EXPECT_NE(refused(path_).find("No space left"), std::string::npos);
  EXPECT_TRUE(fs::is_character_file(path_));
  EXPECT_EQ(files(), 1);
}

// /dev/stdout leads to /proc/self/fd/1, and what that leads to may have no name.
TEST_F(Files, AnOpenFileIsWrittenWhereItIs) {
  put(path_, "begun ");
  const Descriptor open(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  fs::remove(path_);
  write_file(fs::path("/proc/self/fd") / std::to_string(open.get()), "and ended");
  EXPECT_EQ(length(open), 15);
  EXPECT_EQ(files(), 0);
}

// A limit of this process stands for a full disk.
TEST_F(Files, AFullDiskLeavesTheTargetAsItWas) {
  put(path_, "old");
  rlimit before = {}, small = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 1 << 16;
  std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string large(1 << 17, 'x');
  EXPECT_THROW(write_file(path_, large), Error);
  EXPECT_THROW(write_file(directory_ / "none", large), Error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(content(path_), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(Files, WhatCannotBeWrittenIsAStorageError) {
  EXPECT_NE(refused(directory_ / "missing" / "out").find("cannot be created"), std::string::npos);
  fs::create_directory(path_);
  EXPECT_NE(refused(path_).find("Is a directory"), std::string::npos);
}

TEST_F(Files, WhyAFileWasNotOpenedDecidesWhatFailed) {
  const auto failure = [&](Failure of_reader = Failure::input) {
    try {
      open_regular(path_, of_reader);
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path_.string() + ": cannot be opened: "));
      return error.failure();
    }
    return Failure::bug;  // no failure: no case of this test
  };
  EXPECT_EQ(failure(), Failure::input) << "there is none";

  put(path_, "text");
  ::chmod(path_.c_str(), 0);
  ::chmod(directory_.c_str(), 0711);
  const auto root = ::geteuid();  // whom rights do not bind
  if (root == 0) {
    ASSERT_EQ(::seteuid(other_user), 0);
  }
  EXPECT_EQ(failure(), Failure::storage) << "its rights forbid it";
  if (root == 0) {
    ASSERT_EQ(::seteuid(root), 0);
  }
  ::chmod(path_.c_str(), 0600);

  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Failure of_many = failure(), of_checkpoint = failure(Failure::storage);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(of_many, Failure::resource) << "a process may have no more";
  EXPECT_EQ(of_checkpoint, Failure::storage) << "whoever writes may try once more";
}

TEST_F(Files, NothingOfAnotherUserIsFollowedWhereEverybodyMayWrite) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of another user";
  put(directory_ / "precious", "precious");
  const fs::path link = directory_ / "link", pipe = directory_ / "pipe";
  fs::create_symlink("precious", link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  for (const fs::path& planted : {link, pipe})
    ASSERT_EQ(::lchown(planted.c_str(), other_user, other_user), 0);
  ::chmod(directory_.c_str(), 01777);
  EXPECT_NE(refused(link).find("is a link or a pipe of another user (uid 65534)"),
            std::string::npos);
  EXPECT_NE(refused(pipe).find("of another user"), std::string::npos);
  EXPECT_EQ(content(directory_ / "precious"), "precious");
  ::chmod(directory_.c_str(), 0755);  // a colleague's, in a folder of which nobody else has a part
  write_file(link, "new");
  EXPECT_EQ(content(directory_ / "precious"), "new");
}

// A report may be writing its page when a job begins on the same folder.
TEST_F(Files, WhatIsBeingWrittenIsNotRemoved) {
  OutputFile page(path_);
  page.write(as_bytes("page"));
  remove_unfinished(directory_);
  page.commit();
  EXPECT_EQ(content(path_), "page");
}

TEST_F(Files, OnlyWhatIsUnfinishedIsRemoved) {
  write_file(path_, "whole");
  put(directory_ / "brume-notes.tmp", "of the user");
  put(directory_ / "brume-a1b2c3d4e5f6.txt", "of the user");
  put(directory_ / "brume-a1b2c3d4e5f6.tmp", "of a process that was killed");
  remove_unfinished(directory_);
  EXPECT_EQ(files(), 3);
  remove_unfinished(directory_ / "missing");
  EXPECT_EQ(files(), 3);
}

}  // namespace
}  // namespace brume
