#include "base/text.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace brume {
namespace {

TEST(Text, BytesCarryBinaryUnits) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024), "1.50 MiB");
}

TEST(Text, SecondsPickAReadableUnit) {
  EXPECT_EQ(format_seconds(1e-17), "0 s");
  EXPECT_EQ(format_seconds(2.5e-5), "25.0 us");
  EXPECT_EQ(format_seconds(0.0123), "12.30 ms");
  EXPECT_EQ(format_seconds(180), "3.0 min");
  EXPECT_EQ(format_seconds(9000), "2.5 hours");
}

TEST(Text, CountsCarryDecimalUnits) {
  EXPECT_EQ(format_count(1'240'000), "1.24 M");
  EXPECT_EQ(format_count(7), "7");
  EXPECT_EQ(format_count(949.232), "949.2");
  EXPECT_EQ(format_percent(0.000123), "0.012 %");
  EXPECT_EQ(format_percent(0.061), "6.1 %");
  EXPECT_EQ(format_percent(0.0999), "10 %");
  EXPECT_EQ(format_percent(0.999), "100 %");
}

TEST(Text, SentencesAreBrokenTablesAreNot) {
  EXPECT_EQ(wrapped("speed   one two three four five\n", 20),
            "speed   one two\n        three four\n        five\n");
  EXPECT_EQ(wrapped("speed   one two three", 40), "speed   one two three");
  EXPECT_EQ(wrapped("speed   " + std::string(50, 'x') + " y\nend\n", 20),
            "speed   " + std::string(50, 'x') + " y\nend\n");
  const std::string table = "next    one  two  three\n +1 %    10   200   3000\n";
  EXPECT_EQ(wrapped(table, 10), table);
  EXPECT_EQ(wrapped("", 10), "");
  EXPECT_EQ(wrapped("\n\n", 10), "\n\n");
  for (std::size_t columns = 1; columns < 30; ++columns) {
    std::string words = wrapped("why     some words that say why it is so\n", columns);
    std::erase(words, '\n');
    std::erase(words, ' ');
    EXPECT_EQ(words, "whysomewordsthatsaywhyitisso") << columns;
  }
}

TEST(Text, WordsGoOnBelowTheirColumn) {
  EXPECT_EQ(hanging("  --set KEY  one two three four five six seven eight\n", 40),
            "  --set KEY  one two three four five six\n             seven eight\n");
  EXPECT_EQ(hanging("              one two three four five six\n", 38),
            "              one two three four five\n              six\n");
  // No room is left there.
  EXPECT_EQ(hanging("training.steps  integer  one two three\n", 30),
            "training.steps  integer  one\n        two three\n");
  EXPECT_EQ(hanging("training.steps  integer  one two three\n", 24),
            "training.steps  integer\n        one two three\n");
  for (const char* same : {"", "\n\nOptions:\n", "  short  and good\n"})
    EXPECT_EQ(hanging(same, 40), same);
  EXPECT_EQ(hanging(std::string(50, 'x') + " y\n", 20), std::string(50, 'x') + " y\n");
}

TEST(Text, BeginningsCutNoCharacter) {
  EXPECT_EQ(beginning("ab", 2), "ab");
  EXPECT_EQ(beginning("abc", 2), "ab");
  EXPECT_EQ(beginning("a\u00e9b", 2), "a");
  EXPECT_EQ(beginning("\u00e9", 1), "");
}

TEST(Text, OneIsNotPlural) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(2, "rank"), "2 ranks");
}

TEST(Text, NearestForgivesATypingError) {
  const std::vector<std::string> keys{"num_layers", "num_heads", "hidden_size"};
  EXPECT_EQ(nearest("num_layer", keys), "num_layers");
  EXPECT_EQ(nearest("colour", keys), "");
}

TEST(Text, TableAlignsNumbersRightAndWordsLeft) {
  Table table({"step", "name"});
  table.add({"1", "a"});
  table.add({"100", "bc"});
  EXPECT_EQ(table.text(), "step  name\n   1  a\n 100  bc\n");
}

TEST(Text, WideTablesFitTheirLines) {
  Table words({"next", "time", "plan"});
  words.add({"best", "1.5 s", "dp 1  tp 2  offload 0/0/0/0  recomputed 12"});
  words.add({"+1 %", "1.6 s", "dp 2"});
  EXPECT_EQ(words.text(36),
            "next   time  plan\n"
            "best  1.5 s  dp 1  tp 2\n"
            "             offload 0/0/0/0\n"
            "             recomputed 12\n"
            "+1 %  1.6 s  dp 2\n");
  Table numbers({"stage", "weights", "gradients", "sum"});
  numbers.add({"0", "1.00 GiB", "2.00 GiB", "3.00 GiB"});
  numbers.add({"1", "1.00 GiB", "20.00 GiB", "21.00 GiB"});
  EXPECT_EQ(numbers.text(27),
            "stage   weights  gradients\n"
            "    0  1.00 GiB   2.00 GiB\n"
            "    1  1.00 GiB  20.00 GiB\n"
            "stage        sum\n"
            "    0   3.00 GiB\n"
            "    1  21.00 GiB\n");
  EXPECT_EQ(numbers.text(37), numbers.text());
  EXPECT_EQ(numbers.text(1).substr(0, 25), "stage   weights\n    0  1.");  // a cell is never cut
}

TEST(Text, RoundUpReachesTheNextMultiple) {
  EXPECT_EQ(round_up(0, 8), 0);
  EXPECT_EQ(round_up(9, 8), 16);
}

}  // namespace
}  // namespace brume
