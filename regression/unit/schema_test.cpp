#include "deck/schema.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <tuple>

#include "base/error.hpp"
#include "refusal.hpp"

namespace brume::deck {
namespace {

struct Part {
  std::string name = "x";
  int size = 1;
};

struct Inner {
  double ratio = 0.5;
  std::vector<Part> parts;
};

struct Outer {
  bool on = false;
  int steps = 0;
  std::int64_t big = 0;
  double real = 1.5;
  std::string word = "fp32";
  std::vector<int> ints = {1};
  std::vector<std::int64_t> bigs;
  std::vector<double> reals;
  std::vector<std::string> words;
  Inner inner;
};

const Schema<Outer>& outer() {
  static const auto part = Schema<Part>()
                               .key("name", &Part::name, {.help = "its name", .required = true})
                               .key("size", &Part::size, {.unit = "bytes", .min = 0});
  static const auto inner = Schema<Inner>()
                                .key("ratio", &Inner::ratio, {.help = "share", .min = 0, .max = 1})
                                .tables("parts", &Inner::parts, part, "the parts");
  static const auto schema =
      Schema<Outer>()
          .key("on", &Outer::on, {.help = "switch"})
          .key("steps", &Outer::steps,
               {.unit = "iterations", .help = "how long", .required = true, .min = 1})
          .key("big", &Outer::big, {})
          .key("real", &Outer::real, {.unit = "s"})
          .key("word", &Outer::word, {.help = "a choice", .choices = {"fp32", "bf16"}})
          .key("ints", &Outer::ints, {.min = 1, .max = 9})
          .key("bigs", &Outer::bigs, {})
          .key("reals", &Outer::reals, {})
          .key("words", &Outer::words, {})
          .table("inner", &Outer::inner, inner, "inside");
  return schema;
}

Outer read(const std::string& text) { return outer().read(Document::parse(text, "a.toml")); }

using test::refusal;

std::string refused(const std::string& text) {
  return refusal([&] { read(text); });
}

TEST(Schema, ReadsEveryType) {
  const Outer value = read(
      "on = true\nsteps = 3\nbig = -9223372036854775808\nreal = 2\nword = 'bf16'\nints = [1, 9]\n"
      "bigs = [5_000_000_000]\nreals = [1, 2.5e-3]\nwords = ['a', \"b\\u00e9\"]\n"
      "[inner]\nratio = 0.25\n[[inner.parts]]\nname = 'p'\n[[inner.parts]]\nname = 'q'\nsize = "
      "7\n");
  EXPECT_TRUE(value.on);
  EXPECT_EQ(value.steps, 3);
  EXPECT_EQ(value.big, std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(value.real, 2.0);
  EXPECT_EQ(value.word, "bf16");
  EXPECT_EQ(value.ints, (std::vector<int>{1, 9}));
  EXPECT_EQ(value.bigs, (std::vector<std::int64_t>{5'000'000'000}));
  EXPECT_EQ(value.reals, (std::vector<double>{1.0, 2.5e-3}));
  EXPECT_EQ(value.words, (std::vector<std::string>{"a", "b\u00e9"}));
  EXPECT_EQ(value.inner.ratio, 0.25);
  ASSERT_EQ(value.inner.parts.size(), 2u);
  EXPECT_EQ(value.inner.parts[0].size, 1);
  EXPECT_EQ(value.inner.parts[1].name, "q");
  EXPECT_EQ(value.inner.parts[1].size, 7);
}

TEST(Schema, DefaultsStandWhereNothingIsSaid) {
  const Outer value = read("steps = 1\n");
  EXPECT_EQ(value.real, 1.5);
  EXPECT_EQ(value.ints, (std::vector<int>{1}));
  EXPECT_TRUE(value.inner.parts.empty());
}

TEST(Schema, UnknownNamesSayWhereAndWhatIsNear) {
  EXPECT_EQ(refused("steps = 1\n\nstep = 2\n"),
            "a.toml:3:1: unknown key 'step'; did you mean 'steps'?");
  EXPECT_EQ(refused("steps = 1\n[inner]\n  ratios = 2\n"),
            "a.toml:3:3: unknown key 'inner.ratios'; did you mean 'ratio'?");
  EXPECT_EQ(refused("steps = 1\n[iner]\n"),
            "a.toml:2:2: unknown table 'iner'; did you mean 'inner'?");
  EXPECT_EQ(refused("steps = 1\n\"so\\nstrange\\u0007\" = 2\n"),
            "a.toml:2:1: unknown key 'so\\nstrange\\u0007'");
}

TEST(Schema, AMistypedRequiredKeyIsUnknownBeforeItIsMissing) {
  EXPECT_EQ(refused("stepz = 1\n"), "a.toml:1:1: unknown key 'stepz'; did you mean 'steps'?");
}

TEST(Schema, MissingKeysCarryTheirHelp) {
  EXPECT_EQ(refused(""), "a.toml:1:1: missing key 'steps': how long");
  EXPECT_EQ(refused("steps = 1\n[inner]\n[[inner.parts]]\n"),
            "a.toml:3:1: table 'inner.parts[0]': missing key 'name': its name");
}

TEST(Schema, WrongTypesSayWhatIsExpectedAndFound) {
  EXPECT_EQ(refused("steps = \"ten\"\n"),
            "a.toml:1:9: 'steps' must be an integer >= 1 (iterations), found \"ten\"");
  EXPECT_EQ(refused("steps = 1.0"),
            "a.toml:1:9: 'steps' must be an integer >= 1 (iterations), found 1.0");
  EXPECT_EQ(refused("steps = 1\non = 1"), "a.toml:2:6: 'on' must be true or false, found 1");
  EXPECT_EQ(refused("steps = 1\nreal = [1]"),
            "a.toml:2:8: 'real' must be a number (s), found a list");
  EXPECT_EQ(refused("steps = 1\nints = 3"),
            "a.toml:2:8: 'ints' must be a list, each an integer in 1..9, found 3");
  EXPECT_EQ(refused("steps = 1\nints = [1, 'a']"),
            "a.toml:2:12: 'ints[1]' must be an integer in 1..9, found \"a\"");
  EXPECT_EQ(refused("steps = 1979-05-27"),
            "a.toml:1:9: 'steps' must be an integer >= 1 (iterations), found a date or time");
  EXPECT_EQ(refused("steps = 1\ninner = 1"), "a.toml:2:9: 'inner' must be a table, found 1");
  EXPECT_EQ(refused("steps = 1\ninner.parts = [1]"),
            "a.toml:2:16: 'inner.parts[0]' must be a table, found 1");
}

TEST(Schema, NumbersStayInBounds) {
  EXPECT_EQ(refused("steps = 0"),
            "a.toml:1:9: 'steps' must be an integer >= 1 (iterations), found 0");
  EXPECT_EQ(
      refused("steps = 2147483648"),
      "a.toml:1:9: 'steps' must be an integer in 1..2147483647 (iterations), found 2147483648");
  EXPECT_EQ(refused("steps = 1\ninner.ratio = 1.1"),
            "a.toml:2:15: 'inner.ratio' must be a number in 0..1, found 1.1");
  EXPECT_EQ(refused("steps = 1\nreal = nan"), "a.toml:2:8: 'real' must be a number (s), found nan");
  EXPECT_EQ(refused("steps = 1\nreal = -inf"),
            "a.toml:2:8: 'real' must be a number (s), found -inf");
  EXPECT_EQ(refused("steps = 1\nints = [10]"),
            "a.toml:2:9: 'ints[0]' must be an integer in 1..9, found 10");
}

TEST(Schema, WordsAreChosenFromTheirList) {
  EXPECT_EQ(refused("steps = 1\nword = \"bf61\""),
            "a.toml:2:8: 'word' must be one of \"fp32\", \"bf16\", found \"bf61\"; did you mean "
            "\"bf16\"?");
  EXPECT_EQ(refused("steps = 1\nwords = [\"a\\u0000b\"]"),
            "a.toml:2:10: 'words[0]' holds a zero character");
}

TEST(Schema, DoubledKeysAndBrokenTextSayWhere) {
  EXPECT_TRUE(refused("steps = 1\nsteps = 2\n").starts_with("a.toml:2:"))
      << refused("steps = 1\nsteps = 2\n");
  EXPECT_NE(refused("steps = 1\nsteps = 2\n").find("doubled key"), std::string::npos);
  EXPECT_NE(refused("steps = 1\n[inner]\n[inner]\n").find("doubled key"), std::string::npos);
  EXPECT_TRUE(refused("steps = \n").starts_with("a.toml:1:9: "));
  EXPECT_TRUE(refused("steps = \"\xff\"").starts_with("a.toml:1:"));
}

TEST(Schema, LongValuesAreCutBetweenCharacters) {
  std::string word;
  for (int i = 0; i < 40; ++i) word += "\u00e9";
  const std::string what = refused("steps = \"x" + word + "\"");
  EXPECT_NE(what.find("\u00e9...\""), std::string::npos) << what;
  EXPECT_LT(what.size(), 130u);
}

TEST(Schema, WritesAlignedBlocks) {
  Outer value;
  value.steps = 10;
  value.inner.parts = {{.name = "p", .size = 2}};
  EXPECT_EQ(outer().write(value),
            "on    = false\nsteps = 10\nbig   = 0\nreal  = 1.5\nword  = \"fp32\"\nints  = [1]\n"
            "bigs  = []\nreals = []\nwords = []\n\n[inner]\nratio = 0.5\n\n[[inner.parts]]\n"
            "name = \"p\"\nsize = 2\n");
}

TEST(Schema, HelpStandsBesideTheValue) {
  Outer value;
  value.steps = 10;
  const std::string text = outer().write(value, true);
  EXPECT_NE(text.find("steps = 10      # iterations; how long; >= 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("word  = \"fp32\"  # a choice; fp32 | bf16\n"), std::string::npos) << text;
  EXPECT_NE(text.find("[inner]  # inside\nratio = 0.5  # share; in 0..1\n"), std::string::npos)
      << text;
  EXPECT_EQ(read(text).steps, 10);
}

TEST(Schema, HelpHoldsEveryKey) {
  const std::vector<KeyText> keys = outer().help();
  ASSERT_EQ(keys.size(), 12u);
  const auto parts = [](const KeyText& k) {
    return std::tuple(k.key, k.type, k.unit, k.usual, k.help, k.table);
  };
  EXPECT_EQ(parts(keys[1]),
            std::tuple("steps", "integer", "iterations", "required", "how long; >= 1", ""));
  EXPECT_EQ(keys[10].key, "inner.parts[].name");
  EXPECT_EQ(keys[10].usual, "required");
  EXPECT_EQ(keys[10].table, "the parts");
}

TEST(Schema, NumbersThatTomlCannotHoldBreakAPromise) {
  Outer value;
  value.real = std::nan("");
  EXPECT_THROW(outer().write(value), Error);
}

std::string random_text(std::mt19937_64& random) {
  static const std::vector<std::string> pieces = {"a",    "\"", "\\", "\n",     "\t", "\x01",
                                                  "\x7f", "#",  "=",  "\u00e9", "]",  "\u2028",
                                                  "'",    "\r", "  ", ".",      "{",  "\U0001f642"};
  std::string text;
  for (std::size_t n = random() % 12; n > 0; --n) text += pieces[random() % pieces.size()];
  return text;
}

double random_real(std::mt19937_64& random) {
  while (true) {
    const auto real = std::bit_cast<double>(random());
    if (std::isfinite(real)) return real;
  }
}

// Any value comes back as it was: 64 random bits make doubles of every size, denormal ones too.
TEST(Schema, WhatIsWrittenReadsBackTheSame) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    Outer value;
    value.on = random() % 2 == 0;
    value.steps = 1 + static_cast<int>(random() % 2147483647);
    value.big = static_cast<std::int64_t>(random());
    value.real = round == 0 ? -0.0 : round == 1 ? 5e-324 : random_real(random);
    value.ints = {static_cast<int>(1 + random() % 9)};
    value.bigs = {static_cast<std::int64_t>(random()), 0};
    for (int i = 0; i < 3; ++i) value.reals.push_back(random_real(random));
    for (int i = 0; i < 3; ++i) value.words.push_back(random_text(random));
    value.inner.ratio = static_cast<double>(random() % 1000) / 999.0;
    value.inner.parts.resize(random() % 3);
    for (Part& part : value.inner.parts)
      part = {random_text(random), static_cast<int>(random() % 99)};

    const std::string text = outer().write(value, round % 2 == 0);
    const Outer back = read(text);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back.real), std::bit_cast<std::uint64_t>(value.real))
        << text;
    EXPECT_EQ(back.reals, value.reals) << text;
    EXPECT_EQ(back.words, value.words) << text;
    EXPECT_EQ(back.on, value.on);
    EXPECT_EQ(back.big, value.big);
    EXPECT_EQ(outer().write(back, round % 2 == 0), text);
  }
}

}  // namespace
}  // namespace brume::deck
