#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "deck/schema.hpp"
#include "refusal.hpp"

namespace brume::deck {
namespace {

struct Inner {
  double ratio = 0.5;
};

struct Outer {
  int steps = 0;
  std::string word;
  std::vector<int> ints;
  std::vector<double> reals;
  std::vector<std::string> words;
  Inner inner;
  std::vector<Inner> parts;
};

const Schema<Outer>& outer() {
  static const auto inner = Schema<Inner>().key("ratio", &Inner::ratio, {.min = 0, .max = 1});
  static const auto schema =
      Schema<Outer>()
          .key("steps", &Outer::steps, {.unit = "iterations", .required = true, .min = 1})
          .key("word", &Outer::word, {})
          .key("ints", &Outer::ints, {.min = 1, .max = 9})
          .key("reals", &Outer::reals, {})
          .key("words", &Outer::words, {})
          .table("inner", &Outer::inner, inner, "inside")
          .tables("parts", &Outer::parts, inner, "parts");
  return schema;
}

Outer read(const std::string& text) { return outer().read(Document::parse(text, "a.toml")); }

using test::refusal;

std::string refused(const std::string& text) {
  return refusal([&] { read(text); });
}

std::string refused_set(const std::string& assignment) {
  return refusal([&] {
    auto document = Document::parse("steps = 1\n", "a.toml");
    document.set(assignment);
    outer().read(document);
  });
}

TEST(Document, HostileShapesAreRefused) {
  const auto nest = [](int depth) {
    return "words = " + std::string(depth, '[') + std::string(depth, ']') + "\nsteps = 1";
  };
  refused(nest(65));
  refused(nest(200'000));
  std::string parts = "a";
  for (int i = 0; i < 1'000'000; ++i) parts += ".a";
  // The 64th dot ends the 64th "a.".
  const std::string deep = ":128: a key of more than 64 parts";
  EXPECT_EQ(refused("steps = 1\n" + parts + " = 1"), "a.toml:2" + deep);
  EXPECT_EQ(refused("words = ['''a''', \"\"\"b\"\"\"\"\", '']\n" + parts), "a.toml:2" + deep);
  EXPECT_EQ(refused("words = [\"\"\"\\\n\n \"\"\"]\n" + parts), "a.toml:4" + deep);
  EXPECT_TRUE(refused("steps = 1\n[" + parts + "]").starts_with("a.toml:2:129: a key of more"));
  EXPECT_EQ(refused(std::string((std::size_t{16} << 20) + 1, '\n')),
            "a.toml: is larger than 16 MiB");
  std::string values = "ints = [";
  for (int i = 0; i < 1'100'000; ++i) values += "1,";
  EXPECT_TRUE(refused(values).ends_with(": more than 1048576 values"));
  std::string tables;
  for (int i = 0; i < 70'000; ++i) tables += "[a" + std::to_string(i) + "]\n";
  EXPECT_EQ(refused(tables), "a.toml:65537:1: more than 65536 tables and dotted keys");
}

TEST(Document, DotsInTextAndNumbersAreNotDepth) {
  std::string reals = "0.5";
  for (int i = 0; i < 1000; ++i) reals += ", 0.5";
  const std::string dots(1000, '.');
  const Outer value = read("steps = 1 # " + dots + "\nwords = ['" + dots + "', \"\\\"" + dots +
                           "\", '''\n'" + dots + "''']\nreals = [" + reals + "]\n");
  EXPECT_EQ(value.reals.size(), 1001u);
  EXPECT_EQ(value.words[1], "\"" + dots);
}

TEST(Document, TextOutsideQuotesIsAscii) {
  EXPECT_EQ(refused("steps = \u00e9"),
            "a.toml:1:9: a character that TOML takes inside quotes only");
  EXPECT_TRUE(refused("words = [\"\\\u00e9\"]").starts_with("a.toml:1:12: a character"));
  EXPECT_EQ(read("\xef\xbb\xbfsteps = 1 # \u00e9").steps, 1);
}

// A quote in a word begins no string, so what follows is outside quotes.
TEST(Document, AQuoteBeginsAWord) {
  EXPECT_EQ(refused("steps = 0%'\u00b8'"), "a.toml:1:11: a quote within a word");
  EXPECT_EQ(read("'steps' = 1\nwords = [ 'a', # b\r\n\t\"c\"]\n").words.size(), 2u);
}

// The library's own checks would end the program here.
TEST(Document, WhatTheParserGivesUpOnHasItsLine) {
  EXPECT_EQ(refused("steps = 1\n\nword = ''\n[inner]\nratio = 1979-05-27T:\n"),
            "a.toml:5: is not TOML");
}

TEST(Document, SetReplacesOneValueOfThisCopyOnly) {
  auto document = Document::parse("steps = 1\n[inner]\nratio = 0.5\n", "a.toml");
  const Document before = document;
  document.set("inner.ratio=0.25");
  document.set(" steps = 7 ");
  document.set("words=[\"a\"]");
  document.set("parts=[{ratio = 1}]");
  const Outer value = outer().read(document);
  EXPECT_EQ(value.inner.ratio, 0.25);
  EXPECT_EQ(value.steps, 7);
  EXPECT_EQ(value.words, (std::vector<std::string>{"a"}));
  EXPECT_EQ(value.parts.at(0).ratio, 1.0);
  EXPECT_EQ(outer().read(before).steps, 1);
  EXPECT_EQ(document.where("inner.ratio"), "--set inner.ratio=0.25");
  EXPECT_EQ(before.where("inner.ratio"), "a.toml:3:9");
  EXPECT_EQ(before.where("inner.nothing"), "a.toml");
}

TEST(Document, SetTakesABareWord) {
  auto document = Document::parse("steps = 1\n", "a.toml");
  document.set("word=bf16");
  EXPECT_EQ(outer().read(document).word, "bf16");
}

TEST(Document, SetIsNamedInMessages) {
  EXPECT_EQ(refused_set("steps=0"),
            "--set steps=0: 'steps' must be an integer >= 1 (iterations), found 0");
  EXPECT_EQ(refused_set("ints=[3,99]"),
            "--set ints=[3,99]: 'ints[1]' must be an integer in 1..9, found 99");
  EXPECT_EQ(refused_set("iner.ratio=1"),
            "--set iner.ratio=1: unknown table 'iner'; did you mean 'inner'?");
  EXPECT_EQ(refused_set("steps.x=1"), "--set steps.x=1: 'steps' is not a table");
  EXPECT_EQ(refused_set("steps"), "--set steps: expected key=value");
  EXPECT_EQ(refused_set("=1"), "--set =1: expected key=value");
  EXPECT_EQ(refused_set("a..b=1"), "--set a..b=1: expected key=value");
  EXPECT_TRUE(refused_set("word=\xff").starts_with("--set word="));
  EXPECT_EQ(refused_set("steps=1\nword=2").substr(0, 12), "--set steps=");
}

TEST(Document, FilesThatCannotBeReadAreNamed) {
  EXPECT_EQ(refusal([] { Document::load("no/such.toml"); }),
            "no/such.toml: cannot be opened: No such file or directory");
  EXPECT_EQ(refusal([] { Document::load("."); }), ".: cannot be read");
  EXPECT_EQ(refusal([] { Document::load("/dev/zero"); }), "/dev/zero: is larger than 16 MiB");
}

}  // namespace
}  // namespace brume::deck
