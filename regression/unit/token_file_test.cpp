#include "data/token_file.hpp"
#include "data/token_writer.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "own_folder.hpp"

namespace brume::data {
namespace {

namespace fs = std::filesystem;

class TokenFiles : public testing::Test {
 protected:
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  /// What opening says; it must be an Error(input) that names the file.
  std::string refused() const {
    try {
      TokenFile file(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      EXPECT_TRUE(std::string(error.what()).starts_with(path_.string())) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
  fs::path path_ = directory_ / "a.tok";
};

std::vector<std::int32_t> counting(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), std::int32_t{0});
  return tokens;
}

std::vector<std::int32_t> all_of(const TokenFile& file) {
  std::vector<std::int32_t> tokens(std::size_t(file.size()));
  file.read(0, tokens);
  return tokens;
}

/// The checksum as src/data/README.md defines it, word by word from the bytes of a whole file.
std::uint64_t checksum_of(const std::string& file) {
  const auto stir = [](std::uint64_t sum, std::uint64_t word) {
    return std::rotl(sum ^ word, 29) * 0x100000001b3;
  };
  const auto word = [&](std::size_t at) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8 && at + i < file.size(); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(file[at + i])} << (8 * i);
    return value;
  };
  constexpr std::uint64_t start = 0xcbf29ce484222325;
  std::uint64_t sums[4] = {start, start + 1, start + 2, start + 3};
  for (std::size_t i = 0; 64 + 8 * i < file.size(); ++i)
    sums[i % 4] = stir(sums[i % 4], word(64 + 8 * i));
  std::uint64_t sum = start;
  for (std::size_t i = 0; i < 4; ++i) sum = stir(sum, word(8 * i));
  if (word(40) > 0) sum = stir(stir(sum, word(40)), word(48));
  for (const std::uint64_t lane : sums) sum = stir(sum, lane);
  return sum;
}

// 16 tokens fill the four lanes of the checksum once; the counts around it leave each lane part
// full.
TEST_F(TokenFiles, WhatIsWrittenReadsBack) {
  for (const std::size_t count : {0, 1, 3, 4, 5, 15, 16, 17, 1000}) {
    const auto tokens = counting(count);
    write_token_file(path_, tokens, 1000);
    const TokenFile file(path_);
    EXPECT_EQ(file.size(), std::int64_t(count));
    EXPECT_EQ(all_of(file), tokens);
    EXPECT_EQ(file.vocab_size(), 1000);
    EXPECT_EQ(fs::file_size(path_), 64 + 2 * count);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1)
      << "a temporary file was left";
}

TEST_F(TokenFiles, TheLayoutIsTheDocumentedOne) {
  write_token_file(path_, std::vector<std::int32_t>{0x0102, 7}, 300);
  const std::string file = bytes();
  EXPECT_EQ(file.substr(0, 8), "BRUMETOK");
  EXPECT_EQ(file.substr(8, 4), std::string("\1\0\0\0", 4));
  EXPECT_EQ(file.substr(12, 4), std::string("\2\0\0\0", 4));
  EXPECT_EQ(file.substr(16, 4), std::string("\x2c\1\0\0", 4));
  EXPECT_EQ(file.substr(24, 8), std::string("\2\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(file.substr(64), std::string("\2\1\7\0", 4));
}

// A vocabulary that 16 bits do not hold takes 32.
TEST_F(TokenFiles, LargeVocabulariesTakeWideTokens) {
  const std::vector<std::int32_t> tokens = {0x01020304, 7, 65536};
  write_token_file(path_, tokens, 0x01020305);
  const std::string file = bytes();
  EXPECT_EQ(file.substr(8, 12), std::string("\2\0\0\0\4\0\0\0\5\3\2\1", 12));
  EXPECT_EQ(file.substr(64), std::string("\4\3\2\1\7\0\0\0\0\0\1\0", 12));
  EXPECT_EQ(all_of(TokenFile(path_)), tokens);
  EXPECT_EQ(TokenFile(path_).vocab_size(), 0x01020305);
  EXPECT_EQ(TokenFile(path_).identity().checksum, checksum_of(file));

  write_token_file(path_, counting(9), 65536);
  EXPECT_EQ(fs::file_size(path_), 64 + 2 * 9);
  write_token_file(path_, counting(9), 65537);
  EXPECT_EQ(fs::file_size(path_), 64 + 4 * 9);
  std::string damaged = bytes();
  damaged[66] = 2;  // token 131072
  const std::uint64_t sum = checksum_of(damaged);
  for (std::size_t i = 0; i < 8; ++i) damaged[32 + i] = static_cast<char>(sum >> (8 * i));
  put(damaged);
  EXPECT_NE(refused().find("holds token 131072, outside its vocabulary of 65537"),
            std::string::npos);
}

// What an earlier reading told is trusted until the file is another one, or was written to.
TEST_F(TokenFiles, AKnownFileIsNotReadAgain) {
  write_token_file(path_, counting(9), 16);
  const TokenFile first(path_);
  const TokenChecks known{{first.key(), {.checksum = 5, .vocab_size = 7}}};
  const auto checksum = [&] { return TokenFile(path_, {}, known).identity().checksum; };
  EXPECT_EQ(checksum(), 5u);
  EXPECT_EQ(TokenFile(path_, {}, known).vocab_size(), 7);
  EXPECT_EQ(all_of(TokenFile(path_, {}, known)), counting(9));
  EXPECT_EQ(TokenFile(path_).identity(), first.identity());
  EXPECT_EQ(TokenFile(path_, {.begin = -1, .end = 3}, known).identity(), first.identity());

  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // file systems count time in steps
  fs::last_write_time(path_, fs::last_write_time(path_));
  EXPECT_EQ(checksum(), first.identity().checksum);
  write_token_file(path_, std::vector<std::int32_t>(9, 3), 16);
  EXPECT_EQ(TokenFile(path_, {}, known).identity(), TokenFile(path_).identity());
  put(std::string(bytes().size(), 'x'));
  EXPECT_THROW(TokenFile(path_, {}, known), Error);

  // The same bytes under another layout.
  const fs::path wide = directory_ / "a.u32", narrow = directory_ / "a.u16";
  put("12345678");
  fs::copy_file(path_, wide);
  const TokenChecks of_wide{{TokenFile(wide).key(), {.checksum = 5, .vocab_size = 7}}};
  fs::rename(wide, narrow);
  EXPECT_NE(TokenFile(narrow, {}, of_wide).identity().checksum, 5u);
}

TEST_F(TokenFiles, AnOpenFileOutlivesItsReplacement) {
  write_token_file(path_, counting(9), 16);
  const TokenFile file = TokenFile(path_);
  write_token_file(path_, std::vector<std::int32_t>(9, 3), 16);
  EXPECT_EQ(all_of(file)[8], 8);
  EXPECT_EQ(all_of(TokenFile(path_))[8], 3);
}

/// What all documents of a file are, from its ends.
std::vector<Document> documents_of(const DocumentEnds& ends) {
  std::vector<Document> documents;
  for (std::size_t i = 0; i < ends.ends.size(); ++i) {
    const std::int64_t first = i == 0 ? 0 : ends.ends[i - 1];
    documents.push_back({first, ends.answers.empty() ? first : ends.answers[i], ends.ends[i],
                         !ends.continued.empty() && ends.continued[i]});
  }
  return documents;
}

// More documents than a block of the search holds, some without a token, of files with tokens of
// both widths.
TEST_F(TokenFiles, DocumentsReadBack) {
  for (const int vocab_size : {1000, 100'000})
    for (const auto& [answers, parts] : {std::pair(false, false), {true, false}, {true, true}}) {
      DocumentEnds ends;
      for (std::int64_t i = 0, end = 0; i < 300; ++i) {
        if (answers) ends.answers.push_back(end + i % 3);
        if (parts) ends.continued.push_back(i % 5 > 1);
        ends.ends.push_back(end += i % 7 == 5 ? i % 3 : 2 + i % 4);
      }
      const auto tokens = counting(std::size_t(ends.ends.back()));
      write_token_file(path_, tokens, vocab_size > 1000 ? vocab_size : 2000, ends);
      const TokenFile file(path_);
      EXPECT_EQ(all_of(file), tokens);
      EXPECT_TRUE(file.has_documents());
      EXPECT_EQ(file.identity().checksum, checksum_of(bytes()));
      for (std::int64_t first = 0; first < file.size(); first += 3)
        for (const std::int64_t count : {1, 10, 500}) {
          const std::int64_t end = std::min(first + count, file.size());
          std::vector<Document> expected;
          for (const Document& document : documents_of(ends))
            if (document.first < end && document.end > first) expected.push_back(document);
          EXPECT_EQ(file.documents(first, end), expected) << first << " to " << end;
        }
    }
  write_token_file(path_, counting(9), 16);
  EXPECT_FALSE(TokenFile(path_).has_documents());
  EXPECT_EQ(TokenFile(path_).documents(2, 5), (std::vector<Document>{{0, 0, 9}}));
}

// More ends than the writer keeps in memory, and tokens that come in pieces of any size.
TEST_F(TokenFiles, WhatComesPieceByPieceIsWrittenAsAWhole) {
  const auto tokens = counting(700'000);
  DocumentEnds documents;
  for (std::int64_t end = 2; end <= std::ssize(tokens); end += 2) {
    documents.ends.push_back(end);
    documents.answers.push_back(end - end / 2 % 2);
  }
  write_token_file(path_, tokens, 700'000, documents);
  const std::string whole = bytes();
  EXPECT_EQ(TokenFile(path_).identity().checksum, checksum_of(whole));
  EXPECT_EQ(TokenFile(path_).documents(0, 700'000), documents_of(documents));
  const fs::path other = directory_ / "b.tok";
  {
    TokenFileWriter writer(other, 700'000);
    std::size_t done = 0;
    for (std::size_t i = 0; i < documents.ends.size(); ++i) {
      for (const auto end = std::size_t(documents.ends[i]); done < end; ++done)
        writer.add(std::span(tokens).subspan(done, 1));
      writer.add_document(documents.ends[i], documents.answers[i]);
    }
    EXPECT_EQ(writer.size(), 700'000);
    EXPECT_FALSE(fs::exists(other));
    writer.commit(true);
  }
  std::ifstream file(other, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), whole);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 2);
}

TEST_F(TokenFiles, WrongDocumentsAreRefused) {
  const auto refusal = [&](const DocumentEnds& ends) {
    write_token_file(path_, counting(9), 16, ends);
    return refused();
  };
  EXPECT_NE(refusal({{4, 3, 9}, {}}).find("a document has the tokens 4 to 3"), std::string::npos);
  EXPECT_NE(refusal({{4, 10}, {}}).find("wrong of a file of 9 tokens"), std::string::npos);
  EXPECT_NE(refusal({{4, 8}, {}}).find("its last document ends with token 8, but it has 9"),
            std::string::npos);
  EXPECT_NE(refusal({{4, 9}, {5, 4}}).find("learned from 5 on"), std::string::npos);
  EXPECT_NE(refusal({{4, 9}, {0, 10}}).find("learned from 10 on"), std::string::npos);
  EXPECT_THROW(write_token_file(path_, counting(9), 16, {{4, 9}, {0}}), Error);
  EXPECT_THROW(write_token_file(path_, counting(9), 16, {{4, 9}, {}, {false, true}}), Error);
  EXPECT_NE(refusal({{4, 9}, {0, 4}, {true, false}}).find("its first document continues another"),
            std::string::npos);

  for (const std::vector<bool>& continued : {std::vector<bool>(), {false, true}}) {
    write_token_file(path_, counting(9), 16, {{4, 9}, {1, 9}, continued});
    const std::string whole = bytes();
    EXPECT_EQ(whole.size(), 64u + 32 + 4 * 8);
    EXPECT_EQ(whole[8], continued.empty() ? 3 : 4);
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string damaged = whole;
      damaged[bit / 8] = char(damaged[bit / 8] ^ (1 << (bit % 8)));
      put(damaged);
      EXPECT_THROW(TokenFile{path_}, Error) << "bit " << bit;
    }
    for (std::size_t size = 0; size < whole.size(); ++size) {
      put(whole.substr(0, size));
      refused();
    }
    // 2^61 documents of 8 bytes wrap around to none.
    std::string huge = whole;
    huge[47] = huge[55] = '\x20';
    put(huge);
    EXPECT_NE(refused().find("promises 9 tokens of 2305843009213693954 documents"),
              std::string::npos);
  }
}

// Nobody may cut a file that a job reads, but when it happens the job must be able to say so.
TEST_F(TokenFiles, ACutFileIsAStorageErrorWhenItIsRead) {
  write_token_file(path_, counting(5000), 65536);
  const TokenFile file(path_);
  fs::resize_file(path_, 4096);
  std::vector<std::int32_t> tokens(100);
  file.read(0, tokens);
  EXPECT_EQ(tokens[99], 99);
  try {
    file.read(4000, tokens);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::storage);
    EXPECT_EQ(std::string(error.what()),
              path_.string() +
                  ": ends before byte 8264, although it was longer when it was opened: it was "
                  "changed while the job read it; restore it and start the job again");
  }
}

TEST_F(TokenFiles, TokensOutsideTheFileBreakAPromise) {
  write_token_file(path_, counting(20), 64);
  const TokenFile file(path_);
  std::vector<std::int32_t> tokens(5);
  EXPECT_NO_THROW(file.read(15, tokens));
  EXPECT_THROW(file.read(16, tokens), Error);
  EXPECT_THROW(file.read(-1, tokens), Error);
}

// A reader looks at one piece after the other, and its sums go on from piece to piece.
TEST_F(TokenFiles, LongFilesAreCheckedToTheEnd) {
  auto tokens = counting(1'300'021);
  for (std::int32_t& token : tokens) token %= 65536;
  write_token_file(path_, tokens, 65536);
  EXPECT_EQ(all_of(TokenFile(path_)), tokens);
  std::string damaged = bytes();
  EXPECT_EQ(TokenFile(path_).identity().checksum, checksum_of(damaged));
  for (const std::size_t at : {std::size_t{64}, damaged.size() / 2, damaged.size() - 1}) {
    damaged[at] = char(damaged[at] ^ 1);
    put(damaged);
    EXPECT_NE(refused().find("is damaged: checksum"), std::string::npos);
    damaged[at] = char(damaged[at] ^ 1);
  }
}

TEST_F(TokenFiles, EveryFlippedBitIsFound) {
  write_token_file(path_, counting(21), 65536);
  const std::string whole = bytes();
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    put(damaged);
    EXPECT_THROW(TokenFile{path_}, Error) << "bit " << bit;
  }
}

TEST_F(TokenFiles, EveryTruncationIsFound) {
  write_token_file(path_, counting(21), 64);
  const std::string whole = bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put(whole.substr(0, size));
    refused();
  }
  put(whole + "ab");
  EXPECT_NE(refused().find("promises 21 tokens, but 44 bytes follow"), std::string::npos);
}

// count = 2^63 + 21: twice that wraps around to 42, the true number of bytes.
TEST_F(TokenFiles, ALengthThatWrapsAroundIsRefused) {
  write_token_file(path_, counting(21), 64);
  std::string file = bytes();
  file[31] = '\x80';
  put(file);
  EXPECT_NE(refused().find("promises"), std::string::npos);
}

TEST_F(TokenFiles, DamageSaysItsKind) {
  write_token_file(path_, counting(21), 64);
  const std::string whole = bytes();
  const auto with = [&](std::size_t at, char byte) {
    std::string file = whole;
    file[at] = byte;
    put(file);
    return refused();
  };
  EXPECT_NE(with(0, 'X').find("is no token file: it does not begin"), std::string::npos);
  EXPECT_NE(with(8, 6).find("layout version 6, this program reads 1 to 5"), std::string::npos);
  EXPECT_NE(with(8, 3).find("has a damaged header"), std::string::npos);
  EXPECT_NE(with(8, 4).find("has a damaged header"), std::string::npos);
  EXPECT_NE(with(8, 5).find("has a damaged header"), std::string::npos);
  EXPECT_NE(with(40, 1).find("has a damaged header"), std::string::npos);
  EXPECT_NE(with(12, 4).find("tokens of 4 bytes, expected 2"), std::string::npos);
  EXPECT_NE(with(18, 2).find("a vocabulary of 131136"), std::string::npos);
  EXPECT_NE(with(70, 9).find("is damaged: checksum"), std::string::npos);
}

TEST_F(TokenFiles, ATokenOutsideTheVocabularyIsRefused) {
  for (const std::size_t count : {1, 6, 21, 40}) {
    write_token_file(path_, counting(count), static_cast<int>(count));
    std::string file = bytes();
    const auto seal = [&] {
      const std::uint64_t sum = checksum_of(file);
      for (std::size_t i = 0; i < 8; ++i) file[32 + i] = static_cast<char>(sum >> (8 * i));
      put(file);
    };
    const std::string whole = file;
    seal();
    EXPECT_EQ(file, whole) << "the checksum is not the documented one";
    file[64] = static_cast<char>(count);
    seal();
    EXPECT_NE(refused().find(fmt::format("holds token {0}, outside its vocabulary of {0}", count)),
              std::string::npos);
  }
}

TEST_F(TokenFiles, WhatIsNoRegularFileIsRefused) {
  EXPECT_NE(refused().find("cannot be opened"), std::string::npos);
  fs::create_directory(path_);
  EXPECT_NE(refused().find("is not a regular file"), std::string::npos);
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refused().find("is not a regular file"), std::string::npos);
}

// A copy elsewhere is the same data; one other token, or a larger vocabulary, is not.
TEST_F(TokenFiles, TheIdentityIsThatOfTheContent) {
  const auto identity = [&](std::vector<std::int32_t> tokens, int vocab_size) {
    write_token_file(path_, tokens, vocab_size);
    return TokenFile(path_).identity();
  };
  const TokenFileIdentity one = identity(counting(21), 64);
  EXPECT_EQ(one.path, path_.string());
  EXPECT_EQ(one.tokens, 21);
  EXPECT_EQ(one.vocab_size, 64);
  EXPECT_EQ(one.checksum, checksum_of(bytes()));
  EXPECT_EQ(identity(counting(21), 64), one);
  EXPECT_NE(identity(counting(21), 65), one);
  EXPECT_NE(identity(std::vector<std::int32_t>(21, 3), 64).checksum, one.checksum);
}

TEST_F(TokenFiles, FailedWritingLeavesNothing) {
  try {
    write_token_file(directory_ / "missing" / "a.tok", counting(3), 8);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::storage);
  }
  fs::create_directories(path_ / "full");
  EXPECT_THROW(write_token_file(path_, counting(3), 8), Error);  // its name is a directory
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1);
}

TEST_F(TokenFiles, TokensOutsideTheVocabularyAreNotWritten) {
  EXPECT_THROW(write_token_file(path_, counting(9), 8), Error);
  EXPECT_THROW(write_token_file(path_, counting(9), 0), Error);
  EXPECT_THROW(write_token_file(path_, std::vector<std::int32_t>{-1}, 9), Error);
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace brume::data
