// Token files of other programs, written here byte by byte from their documentation.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/sampler.hpp"
#include "data/token_file.hpp"
#include "data/token_writer.hpp"
#include "foreign_token_files.hpp"
#include "own_folder.hpp"

namespace brume::data {
namespace {

namespace fs = std::filesystem;
using namespace test;
class ForeignTokens : public testing::Test {
 protected:
  fs::path put(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ / name, std::ios::binary | std::ios::trunc) << bytes;
    return directory_ / name;
  }

  Tokens read(const std::string& name, const std::string& bytes) const {
    const TokenFile file(put(name, bytes));
    Tokens tokens(std::size_t(file.size()));
    file.read(0, tokens);
    if (!tokens.empty()) {  // and from the middle on
      Tokens half(tokens.size() - tokens.size() / 2);
      file.read(std::int64_t(tokens.size() / 2), half);
      EXPECT_TRUE(std::equal(half.rbegin(), half.rend(), tokens.rbegin()));
    }
    return tokens;
  }

  std::string refused(const std::string& name, const std::string& bytes) const {
    try {
      const TokenFile file(put(name, bytes));
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      std::string said = error.what();
      EXPECT_TRUE(said.starts_with(directory_.string() + "/")) << said;
      EXPECT_EQ(said.find('\n'), std::string::npos);
      return said.substr(directory_.string().size() + 1);
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }

  void expect_refused(const std::string& name, const std::string& bytes,
                      const std::string& words) const {
    const std::string said = refused(name, bytes);
    EXPECT_NE(said.find(words), std::string::npos) << said;
  }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
};

const Tokens small = {3, 1, 4, 1, 5, 9, 50256};
const Tokens large = {3, 128255, 4, 65536, 5, 9, 0};

TEST_F(ForeignTokens, FilesOfLlmC) {
  EXPECT_EQ(read("a.bin", llm_c(20240520, 1, 7, numbers(small, 2))), small);
  EXPECT_EQ(read("a.bin", llm_c(20240801, 7, 7, numbers(large, 4))), large);
  EXPECT_EQ(read("a.bin", llm_c(20240520, 1, 0, "")), Tokens());

  expect_refused("a.bin", llm_c(20240520, 2, 7, numbers(small, 2)),
                 "a.bin: is a token file of llm.c of version 2, this program reads 1");
  expect_refused("a.bin", llm_c(20240801, 7, 7, numbers(small, 2)),
                 "a.bin: promises 7 tokens of 4 bytes, but 14 bytes follow its header");
  expect_refused("a.bin", llm_c(20240520, 1, 0x80000007, numbers(small, 2)),
                 "promises 2147483655 tokens");
  expect_refused("a.bin", llm_c(20240520, 1, 7, "").substr(0, 500),
                 "but has 500 bytes, their header has 1024");
}

TEST_F(ForeignTokens, ArraysOfNumpy) {
  EXPECT_EQ(read("a.npy", npy("<u2", "7,", numbers(small, 2))), small);
  EXPECT_EQ(read("a.npy", npy("<u2", "7,", numbers(small, 2), 2)), small);
  EXPECT_EQ(read("a.npy", npy("<i4", "7,", numbers(large, 4))), large);
  EXPECT_EQ(read("a.npy", npy("<u4", "7,", numbers(large, 4))), large);
  EXPECT_EQ(read("a.npy", npy("<i8", "7,", numbers(large, 8))), large);
  EXPECT_EQ(read("a.npy", npy("|u1", "2,", "\x7\xff")), Tokens({7, 255}));

  expect_refused("a.npy", npy(">u2", "7,", numbers(small, 2)),
                 "a.npy: holds numbers of type '>u2'");
  expect_refused("a.npy", npy("<f4", "7,", numbers(small, 4)), "type '<f4'");
  expect_refused("a.npy", npy("<u2", "7, 1", numbers(small, 2)),
                 "has the shape (7, 1), tokens are one row: save it with reshape(-1)");
  expect_refused("a.npy", npy("<u2", "", numbers(small, 2)), "has the shape ()");
  expect_refused("a.npy", npy("<u2", "99999999999999999999,", ""), "has the shape (999");
  expect_refused("a.npy", npy("<u2", "9223372036854775815,", numbers(small, 2)), "promises 92233");
  expect_refused("a.npy", npy("<u2", "8,", numbers(small, 2)),
                 "a.npy: promises 8 tokens of 2 bytes, but 14 bytes follow its header");
  const std::string whole = npy("<u2", "7,", numbers(small, 2));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(refused("a.npy", whole.substr(0, size)), "");
}

TEST_F(ForeignTokens, FilesOfMegatron) {
  const auto both = [&](const Index& index) {
    put("a.idx", index.bytes());
    return numbers(index.token_bytes == 2 ? small : large, index.token_bytes);
  };
  const Index narrow{.type = 8, .lengths = {3, 0, 4}, .documents = {0, 1, 3}};
  const Index wide{.type = 4, .lengths = {7}, .documents = {0, 1}, .token_bytes = 4};
  EXPECT_EQ(read("a.bin", both(narrow)), small);
  EXPECT_EQ(read("a.bin", both(wide)), large);
  put("a.idx", narrow.bytes());
  EXPECT_EQ(TokenFile(put("a.bin", numbers(small, 2))).documents(0, 7),
            (std::vector<Document>{{0, 0, 3}, {3, 3, 7}}));
  Index part = narrow;  // tokens that no sequence holds do not count
  part.lengths = {3, 2};
  part.documents = {0, 2};
  EXPECT_EQ(read("a.bin", both(part)), Tokens(small.begin(), small.begin() + 5));
  put("a.idx", narrow.bytes() + std::string(3, '\0'));  // with a mode for each sequence
  EXPECT_EQ(read("a.bin", numbers(small, 2)), small);

  const auto broken = [&](auto change, const std::string& words) {
    Index index = narrow;
    change(index);
    expect_refused("a.bin", both(index), words);
  };
  broken([](Index& index) { index.version = 2; }, "a.idx: is an index of version 2");
  broken([](Index& index) { index.type = 6; }, "a.idx: has tokens of type 6, expected 1");
  broken([](Index& index) { index.shift = 2; },
         "a.idx: sequence 1 has 0 tokens from byte 8 on, expected byte 6");
  broken(
      [](Index& index) {
        index.lengths = {3, 0, 5};
      },
      "a.idx: sequence 2 ends at byte 16, but the .bin beside it has 14 bytes");
  broken([](Index& index) { index.lengths = {3, -1, 5}; }, "sequence 1 has -1 tokens");
  broken(
      [](Index& index) {
        index.documents = {0, 2};
      },
      "a.idx: its last document ends with sequence 2, but it has 3");
  broken([](Index& index) { index.documents = {}; }, "0 ends of documents");
  broken(
      [](Index& index) {
        index.documents = {0, 4, 3};
      },
      "a.idx: a document ends with sequence 4, but it has 3");
  broken(
      [](Index& index) {
        index.documents = {0, 3, 1, 3};
      },
      "a.idx: says that a document has the tokens 7 to 3");

  const std::string whole = narrow.bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put("a.idx", whole.substr(0, size));
    EXPECT_TRUE(refused("a.bin", numbers(small, 2)).starts_with("a.idx: "));
  }
  std::string huge = whole;
  huge.replace(18, 8, number(std::int64_t{1} << 62, 8));
  put("a.idx", huge);
  EXPECT_NE(refused("a.bin", numbers(small, 2)).find("promises 4611686018427387904 sequences"),
            std::string::npos);
  std::string least = whole;
  least.replace(26, 8, number(std::numeric_limits<std::int64_t>::min(), 8));
  put("a.idx", least);
  EXPECT_NE(refused("a.bin", numbers(small, 2)).find("-9223372036854775808 ends of documents"),
            std::string::npos);
  expect_refused("a.idx", whole, "a.idx: is the index of a Megatron file: name the .bin");
}

// A file of bare tokens says nothing, so its name must.
TEST_F(ForeignTokens, BareTokensAreNamed) {
  EXPECT_EQ(read("a.u16", numbers(small, 2)), small);
  EXPECT_EQ(read("a.u32", numbers(large, 4)), large);
  expect_refused("a.bin", numbers(small, 2), "read under a name that ends in .u16");
  expect_refused("a.u16", "odd", "a.u16: has 3 bytes, which are no whole number of tokens");
}

TEST_F(ForeignTokens, TokensBeyondAllVocabulariesAreRefused) {
  expect_refused("a.u32", number(-1, 4), "holds token 4294967295, outside the largest vocabulary");
  expect_refused("a.npy", npy("<i8", "1,", number(-1, 8)), "holds token 18446744073709551615");
}

// The vocabulary is the smallest that holds all tokens, and the same tokens are the same data.
TEST_F(ForeignTokens, TheIdentityIsThatOfTheTokens) {
  const TokenFileIdentity bare = TokenFile(put("a.u16", numbers(small, 2))).identity();
  EXPECT_EQ(bare.vocab_size, 50257);
  EXPECT_EQ(bare.tokens, 7);
  const auto packed = [&] {
    const fs::path path = put("b.npy", npy("<u2", "7,", numbers(small, 2)));
    return TokenFile(path).identity();
  }();
  EXPECT_EQ(packed.checksum, bare.checksum);
  write_token_file(directory_ / "c.tok", small, 50257);
  EXPECT_EQ(TokenFile(directory_ / "c.tok").identity().checksum, bare.checksum);
  EXPECT_NE(TokenFile(put("a.u16", numbers({3, 1}, 2))).identity().checksum, bare.checksum);
}

std::vector<std::int64_t> ends_of(const TokenFile& file) {
  std::vector<std::int64_t> ends;
  for (const Document& document : file.documents(0, file.size())) {
    EXPECT_EQ(document.first, ends.empty() ? 0 : ends.back());
    EXPECT_EQ(document.answer, document.first);
    ends.push_back(document.end);
  }
  return ends;
}

// A mark twice in a row makes a document of itself; a file may end in the middle of one.
TEST_F(ForeignTokens, DocumentsAreToldApartByTheirMarks) {
  using Ends = std::vector<std::int64_t>;
  const Tokens tokens = {7, 1, 2, 7, 7, 3, 4, 5};
  const std::string narrow = numbers(tokens, 2), wide = numbers(tokens, 4);
  const std::vector<fs::path> paths = {put("a.u16", narrow),
                                       put("a.u32", wide),
                                       put("b.bin", llm_c(20240520, 1, 8, narrow)),
                                       put("c.bin", llm_c(20240801, 7, 8, wide)),
                                       put("a.npy", npy("<i8", "8,", numbers(tokens, 8))),
                                       put("b.npy", npy("|u1", "8,", numbers(tokens, 1)))};
  for (const fs::path& path : paths) {
    EXPECT_EQ(ends_of(TokenFile(path, {.begin = 7})), Ends({3, 4, 8})) << path;
    EXPECT_EQ(ends_of(TokenFile(path, {.end = 7})), Ends({1, 4, 5, 8})) << path;
    EXPECT_EQ(ends_of(TokenFile(path, {.begin = 7, .end = 5})), Ends({3, 4, 8})) << path;
    EXPECT_EQ(ends_of(TokenFile(path, {.begin = 1, .end = 7})), Ends({1, 4, 5, 8})) << path;
    EXPECT_FALSE(TokenFile(path).has_documents());
    EXPECT_EQ(TokenFile(path, {.end = 7}).identity(), TokenFile(path).identity());
    try {
      const TokenFile file(path, {.begin = 9, .end = 65535});
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      EXPECT_TRUE(std::string(error.what()).starts_with(path.string() + ": has neither"));
    }
  }
  // A file that says itself where documents end is believed.
  write_token_file(directory_ / "d.tok", tokens, 8, {{2, 8}, {}});
  EXPECT_EQ(ends_of(TokenFile(directory_ / "d.tok", {.begin = 7})), Ends({2, 8}));
  write_token_file(directory_ / "e.tok", tokens, 8);
  EXPECT_EQ(ends_of(TokenFile(directory_ / "e.tok", {.begin = 7})), Ends({3, 4, 8}));
  put("m.bin", narrow);
  put("m.idx", Index{.lengths = {3, 5}, .documents = {0, 1, 2}}.bytes());
  EXPECT_EQ(ends_of(TokenFile(directory_ / "m.bin", {.begin = 7})), Ends({3, 8}));
}

// Documents across many of the pieces in which a file is read, of which one mark is the last token
// of a piece: 2 MiB, tokens of 2 bytes.
TEST_F(ForeignTokens, IsolatedSamplesAreThoseOfAFileWithEnds) {
  constexpr std::int32_t mark = 50256;
  Tokens tokens;
  DocumentEnds documents;
  while (std::ssize(tokens) < 3'000'000) {
    const std::size_t length = 1 + tokens.size() * 7 % 901;
    for (std::size_t i = 0; i < length; ++i) tokens.push_back(std::int32_t(tokens.size() % 50000));
    tokens.push_back(mark);
    documents.ends.push_back(std::ssize(tokens));
  }
  tokens[(1 << 20) - 1] = mark;
  documents.ends.push_back(1 << 20);
  std::ranges::sort(documents.ends);
  const auto twice = std::ranges::unique(documents.ends);
  documents.ends.erase(twice.begin(), twice.end());
  write_token_file(directory_ / "a.tok", tokens, 50257, documents);
  const TokenFile bare(put("a.u16", numbers(tokens, 2)), {.end = mark});
  const Sampler given(TokenFile(directory_ / "a.tok"), Order::shuffled, 3, 256, true);
  const Sampler found(bare, Order::shuffled, 3, 256, true);
  ASSERT_EQ(found.num_windows(), given.num_windows());
  EXPECT_EQ(found.document_share(), given.document_share());
  for (std::int64_t i = 0; i < given.num_windows(); i += 7) {
    Tokens inputs(256), targets(256), begins(256), inputs2(256), targets2(256), begins2(256);
    given.sample(i, {inputs, targets, begins});
    found.sample(i, {inputs2, targets2, begins2});
    ASSERT_EQ(inputs, inputs2);
    ASSERT_EQ(targets, targets2);
    ASSERT_EQ(begins, begins2);
  }
}

TEST_F(ForeignTokens, SamplesAreThoseOfTheFile) {
  const Sampler sampler(TokenFile(put("a.u32", numbers(large, 4))), Order::sequential, 0, 3);
  Tokens inputs(3), targets(3);
  sampler.sample(1, inputs, targets);
  EXPECT_EQ(inputs, Tokens({65536, 5, 9}));
  EXPECT_EQ(targets, Tokens({5, 9, 0}));
}

}  // namespace
}  // namespace brume::data
