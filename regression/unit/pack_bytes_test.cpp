#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/token_file.hpp"
#include "interop/tokens.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

class PackBytes : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "brume-pack-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path put(const std::string& name, const std::string& text) const {
    const fs::path path = directory_ / "text" / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  fs::path directory_;
};

std::string text_of(const fs::path& path) {
  const data::TokenFile file(path);
  EXPECT_EQ(file.vocab_size(), 256);
  std::vector<std::uint16_t> tokens(std::size_t(file.size()));
  file.read(0, tokens);
  return {tokens.begin(), tokens.end()};
}

/// Every byte value, in a pattern that no shift by a few blocks repeats.
std::string sample_text(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * i / 7 + i);
  return text;
}

// A quarter of ten blocks: round(n / 4) steps up at the blocks 2, 6 and, at 2.5, at block 10.
TEST_F(PackBytes, HeldOutBlocksAreEvenlySpaced) {
  const PackedText packed =
      pack_bytes({put("a", "00112233445566778899")}, directory_ / "out", 0.25, 2);
  EXPECT_EQ(text_of(packed.valid), "115599");
  EXPECT_EQ(text_of(packed.train), "00223344667788");
}

TEST_F(PackBytes, EveryByteGoesToOneSideInOrder) {
  const std::string a = sample_text(1000), b = sample_text(77), c = sample_text(5001);
  const std::string all = a + b + c;
  const std::vector<fs::path> files = {put("z", a), put("empty", ""), put("b", b), put("c", c)};
  for (const double ratio : {0.0, 0.05, 0.1, 1.0 / 3.0, 0.5, 0.9}) {
    const PackedText packed = pack_bytes(files, directory_ / "out", ratio, 64);
    const std::string train = text_of(packed.train), valid = text_of(packed.valid);
    EXPECT_EQ(packed.train_tokens, std::ssize(train));
    EXPECT_EQ(packed.valid_tokens, std::ssize(valid));
    EXPECT_EQ(train.size() + valid.size(), all.size());
    EXPECT_NEAR(static_cast<double>(valid.size()), ratio * static_cast<double>(all.size()), 64.0);

    // Taking each block from the side that holds it next gives the text back.
    std::size_t from_train = 0, from_valid = 0;
    for (std::size_t at = 0; at < all.size(); at += 64) {
      const std::string block = all.substr(at, 64);
      if (train.compare(from_train, block.size(), block) == 0)
        from_train += block.size();
      else if (valid.compare(from_valid, block.size(), block) == 0)
        from_valid += block.size();
    }
    EXPECT_EQ(from_train, train.size());
    EXPECT_EQ(from_valid, valid.size());
  }
}

TEST_F(PackBytes, DirectoriesAreWalkedInNameOrder) {
  put("b.txt", "2");
  put("a/y.txt", "1");
  put("a/x.txt", "0");
  put("c.txt", "3");
  put(".hidden", "no");
  put(".git/d.txt", "no");
  fs::create_directory_symlink(directory_ / "text", directory_ / "text" / "loop");
  const PackedText packed = pack_bytes({directory_ / "text"}, directory_ / "out", 0.0, 4);
  EXPECT_EQ(text_of(packed.train), "0123");
  EXPECT_EQ(packed.valid_tokens, 0);
}

TEST_F(PackBytes, WhatCannotBePackedIsRefused) {
  const auto refused = [&](const std::vector<fs::path>& files, double ratio, const fs::path& out) {
    try {
      pack_bytes(files, out, ratio);
    } catch (const Error& error) {
      return error.failure();
    }
    return Failure{};
  };
  const fs::path text = put("a", "text");
  const fs::path out = directory_ / "out";
  EXPECT_EQ(refused({directory_ / "missing"}, 0.1, out), Failure::input);
  EXPECT_EQ(refused({put("empty", "")}, 0.1, out), Failure::input);
  EXPECT_EQ(refused({}, 0.1, out), Failure::input);
  EXPECT_EQ(refused({text}, 1.0, out), Failure::input);
  EXPECT_EQ(refused({text}, -0.1, out), Failure::input);
  EXPECT_EQ(refused({text}, 0.1, text / "below a file"), Failure::storage);
}

}  // namespace
}  // namespace brume::interop
