#include "io/reference.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/error.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

class ReferenceFile : public testing::Test {
 protected:
  std::string bytes() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const { std::ofstream(file_, std::ios::binary) << bytes; }
  std::string refused() const {
    return test::refusal([&] { read_reference(folder_.path()); }, Failure::storage);
  }

  test::OwnFolder folder_;
  fs::path file_ = folder_ / "reference.bin";
  const Reference usual_{.run = "0123456789abcdef",
                         .source = "train: 5 tokens",
                         .weights = "77",
                         .train = {-1.5, -0x1.123456789abcdp7},
                         .valid = {-3.25}};
};

TEST_F(ReferenceFile, ComesBackBitForBit) {
  EXPECT_EQ(read_reference(folder_.path()), std::nullopt);
  write_reference(folder_.path(), usual_);
  EXPECT_EQ(read_reference(folder_.path()), usual_);
  const Reference empty{.run = "r", .source = "s", .weights = "w"};
  write_reference(folder_.path(), empty);
  EXPECT_EQ(read_reference(folder_.path()), empty);
}

TEST_F(ReferenceFile, DamageIsRefused) {
  write_reference(folder_.path(), usual_);
  const std::string whole = bytes();
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    std::string damaged = whole;
    damaged[i] = char(damaged[i] ^ 4);
    put(damaged);
    EXPECT_NE(refused().find("reference.bin"), std::string::npos);
    put(whole.substr(0, i));
    EXPECT_NE(refused().find("reference.bin"), std::string::npos);
  }
}

}  // namespace
}  // namespace brume::io
