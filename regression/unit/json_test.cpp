#include "deck/json.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "refusal.hpp"

namespace brume::deck {
namespace {

std::string refused(const std::string& text) {
  return test::refusal([&] { parse_json(text, "a.json"); }, Failure::input);
}

TEST(Json, ValuesAreRead) {
  const nlohmann::json read = parse_json(R"({"sizes": [1, 2.5], "name": "a\"[{"})", "a.json");
  EXPECT_EQ(read["sizes"][1], 2.5);
  EXPECT_EQ(read["name"], "a\"[{");
}

TEST(Json, AnErrorNamesLineAndColumn) {
  EXPECT_EQ(refused("{\n  \"a\": ?}"), "a.json:2:8: is not JSON from here on");
  EXPECT_EQ(refused("x"), "a.json:1:1: is not JSON from here on");
  EXPECT_NE(refused("").find("a.json:1:"), std::string::npos);
  EXPECT_NE(refused("[1, 2").find("a.json:1:"), std::string::npos);
  EXPECT_NE(refused("\"\xFF\"").find("a.json:1:"), std::string::npos) << "no UTF-8";
}

TEST(Json, ANumberBeyondDoublesIsRefused) {
  EXPECT_NE(refused("[1e999]").find("a number is too large"), std::string::npos);
}

// Whoever walks over it calls itself once a level: a file must not overflow the stack.
TEST(Json, NestingEndsAt64) {
  const auto nested = [](std::size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(64), "a.json"));
  EXPECT_EQ(refused(nested(65)), "a.json:1:65: is nested more than 64 deep");
  EXPECT_EQ(refused(nested(1'000'000)), "a.json:1:65: is nested more than 64 deep");
  const std::string brackets = '"' + std::string(100, '[') + "\\\"" + std::string(100, '{') + '"';
  EXPECT_NO_THROW(parse_json(brackets, "a.json")) << "in a text they nest nothing";
}

TEST(Json, FilesAreReadUpToALength) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("brume-json-{}.json", ::getpid());
  std::ofstream(path) << "[1, 2]";
  EXPECT_EQ(load_json(path, 6)[1], 2);
  EXPECT_NE(test::refusal([&] { load_json(path, 5); }, Failure::input).find("at most 5"),
            std::string::npos);
  std::filesystem::remove(path);
  EXPECT_NE(test::refusal([&] { load_json(path, 6); }, Failure::input).find("cannot be opened"),
            std::string::npos);
}

TEST(Json, ValuesAreDescribedInAShortLine) {
  EXPECT_EQ(describe_json({{"a", 1}}), "an object");
  EXPECT_EQ(describe_json(nlohmann::json::array({1})), "a list");
  EXPECT_EQ(describe_json(2.5), "2.5");
  EXPECT_EQ(describe_json(nullptr), "null");
  EXPECT_LT(describe_json(std::string(1000, 'x')).size(), 60u);
}

}  // namespace
}  // namespace brume::deck
