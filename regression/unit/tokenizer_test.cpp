// Ids as the reference library has them: regression/data/tokenizers/make.py wrote the tokenizers,
// the text and what they make of it.
#include "tokenizer/tokenizer.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "own_folder.hpp"

namespace brume::tokenizer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Tokens = std::vector<std::int32_t>;

const fs::path folder = fs::path(BRUME_REGRESSION_DIR) / "data/tokenizers";

std::string all_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

Tokens encoded(Tokenizer& tokenizer, std::string_view text) {
  Tokens tokens;
  tokenizer.encode(text, tokens);
  return tokens;
}

/// Where the ids differ first, with the text around it.
void expect_same(Tokenizer& tokenizer, std::string_view text, const Tokens& expected) {
  const Tokens tokens = encoded(tokenizer, text);
  const auto [found, wanted] = std::ranges::mismatch(tokens, expected);
  if (found == tokens.end() && wanted == expected.end()) return;
  const auto at = found - tokens.begin();
  const auto near = [&](const Tokens& of) {
    const auto begin = of.begin() + std::max<std::ptrdiff_t>(at - 5, 0);
    std::string words;
    for (auto it = begin; it < std::min(begin + 12, of.end()); ++it)
      words += "[" + tokenizer.decode(std::span(&*it, 1)) + "]";
    return words;
  };
  ADD_FAILURE() << "token " << at << " of " << tokens.size() << ", " << expected.size()
                << " expected: " << near(tokens) << "\nexpected " << near(expected);
}

class Tokenizers : public testing::TestWithParam<const char*> {
 protected:
  fs::path path() const { return folder / (std::string(GetParam()) + ".json"); }
};

TEST_P(Tokenizers, IdsAreThoseOfTheReference) {
  const json expected = json::parse(all_of(folder / "expected.json"));
  const std::string text = all_of(folder / "text.txt");
  Tokenizer tokenizer(path());
  const auto ids = expected.at(GetParam()).get<Tokens>();
  ASSERT_GT(ids.size(), 3000u);
  expect_same(tokenizer, text, ids);
  expect_same(tokenizer, text, ids);  // and from what it remembers
  EXPECT_EQ(tokenizer.vocab_size(), 902);
}

// A megabyte and more, where somebody has made it: make.py FOLDER, then BRUME_LONG_TEXT=FOLDER.
TEST_P(Tokenizers, LongTextsToo) {
  const char* long_text = std::getenv("BRUME_LONG_TEXT");
  if (long_text == nullptr) GTEST_SKIP() << "BRUME_LONG_TEXT names no folder";
  const std::string text = all_of(fs::path(long_text) / "long.txt");
  const std::string bytes = all_of(fs::path(long_text) / (std::string(GetParam()) + ".ids"));
  Tokens expected(bytes.size() / 4);
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  ASSERT_GT(text.size(), 1'000'000u);
  Tokenizer tokenizer(path());
  expect_same(tokenizer, text, expected);
}

TEST_P(Tokenizers, DecodingGivesTheTextBack) {
  std::string text = all_of(folder / "text.txt");
  Tokenizer tokenizer(path());
  // Without added tokens, behind each of which some encodings put a space.
  if (tokenizer.find("<unk>")) std::erase(text, '<');
  const std::string back = tokenizer.decode(encoded(tokenizer, text));
  if (std::string(GetParam()) == "qwen")  // whose texts are normalized first
    EXPECT_EQ(encoded(tokenizer, back), encoded(tokenizer, text));
  else
    EXPECT_EQ(back, text);
  for (const std::int32_t wrong : {-1, 902})
    EXPECT_THROW(tokenizer.decode(std::span(&wrong, 1)), Error);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Tokenizers,
                         testing::Values("gpt2", "llama3", "qwen", "smollm", "falcon", "llama2",
                                         "mistral", "metaspace", "gemma"));

TEST(Tokenizer, BrokenUtf8IsReadAsPythonReplacesIt) {
  Tokenizer tokenizer(folder / "gpt2.json");
  const std::string mark = "\xef\xbf\xbd";
  const auto read = [&](const std::string& text) {
    return tokenizer.decode(encoded(tokenizer, text));
  };
  EXPECT_EQ(read("a\xff"), "a" + mark);
  EXPECT_EQ(read("\xe2\x82 x"), mark + " x");           // a character without its end
  EXPECT_EQ(read("\xed\xa0\x80"), mark + mark + mark);  // a surrogate
  EXPECT_EQ(read("\xc0\xaf\xf8"), mark + mark + mark);  // longer than need be, unknown
  EXPECT_EQ(read("\xf0\x9f\x8e\xf0\x9f\x8e\x89"), mark + "\xf0\x9f\x8e\x89");
  EXPECT_EQ(read(""), "");
}

TEST(Tokenizer, AddedTokensStandForTheirText) {
  Tokenizer tokenizer(folder / "gpt2.json");
  EXPECT_EQ(tokenizer.find("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer.find("<|end|>"), 900);
  EXPECT_EQ(tokenizer.find("the"), std::nullopt);
  EXPECT_EQ(encoded(tokenizer, "<tool><|endoftext|><|end|>"), Tokens({901, 0, 900}));
}

// Ids as tokenizers 0.23.3 gives them for gpt2.json with these three more.
TEST(Tokenizer, AddedTokensTakeTheSpaceTheyAskFor) {
  json file = json::parse(all_of(folder / "gpt2.json"));
  const auto add = [&](const char* text, int id, bool lstrip, bool rstrip) {
    file["added_tokens"].push_back({{"content", text},
                                    {"id", id},
                                    {"lstrip", lstrip},
                                    {"rstrip", rstrip},
                                    {"normalized", false}});
  };
  add("<L>", 902, true, false);
  add("<R>", 903, false, true);
  add("<B>", 904, true, true);
  const fs::path path =
      fs::temp_directory_path() / ("brume-strip-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << file;
  Tokenizer tokenizer(path);
  fs::remove(path);
  EXPECT_EQ(encoded(tokenizer, "a \t<L> b"), Tokens({65, 902, 464}));
  EXPECT_EQ(encoded(tokenizer, "a <R>\n\u3000 b"), Tokens({65, 221, 903, 66}));
  EXPECT_EQ(encoded(tokenizer, "a \u2028<B>\u00a0 b"), Tokens({65, 904, 66}));
  EXPECT_EQ(encoded(tokenizer, "<R>  <L>"), Tokens({903, 902}));
  EXPECT_EQ(encoded(tokenizer, "  <B><B>  "), Tokens({904, 904}));
  EXPECT_EQ(encoded(tokenizer, "a\u200b<L>\u200b<R>\u200b"), Tokens({65, 348, 902, 348, 903, 348}));
  EXPECT_EQ(encoded(tokenizer,
                    "<L>\v<B>\xc2\x85"
                    "c"),
            Tokens({902, 904, 67}));
}

/// A folder for files of one tokenizer.
class Folder : public testing::Test {
 protected:
  void put(const std::string& name, const json& content) const {
    std::ofstream(path_ / name) << content;
  }
  std::string refused() const {
    try {
      const Tokenizer tokenizer(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      return std::string(error.what()).substr(path_.string().size() + 1);
    }
    return "";
  }

  test::OwnFolder folder_;
  fs::path path_ = folder_.path();
};

// Cuts as tokenizers 0.23.3 makes them, which show in what is merged. In its syntax {1,2}+ repeats,
// and {1}? matches nothing first.
TEST_F(Folder, PatternsMeanWhatTheReferenceReads) {
  struct Case {
    const char *pattern, *behavior, *pieces;
  };
  const Case cases[] = {{"no", "Isolated", "over| t|h|er|e| |234| t|he| |end"},
                        {R"(\p{N}{1,2}+)", "Isolated", "over| t|h|er|e| |234| t|he| |end"},
                        {"h{1}?", "Isolated", "o|v|e|r| |t|h|e|r|e| |2|3|4| |t|h|e| |e|n|d"},
                        {R"(\w+)", "Isolated", "over| |t|h|er|e| |234| |t|he| |end"},
                        {"(?<=t)h", "Isolated", "over| t|h|er|e| |234| t|h|e| |end"},
                        {"[a-z&&[^e]]+", "MergedWithNext", "o|ve|r| |t|he|re| |234| |t|he| |e|n|d"},
                        {R"(\s*)", "MergedWithNext", "o|v|e|r| t|h|e|r|e| |2|3|4| t|h|e| |e|n|d"},
                        {"(?=e)", "MergedWithPrevious", "ov|er| t|h|er|e| |234| t|h|e| |end"},
                        {R"(\bt)", "Isolated", "over| |t|h|er|e| |234| |t|he| |end"}};
  json file = json::parse(all_of(folder / "llama3.json"));
  file["model"]["ignore_merges"] = false;
  json& split = file["pre_tokenizer"]["pretokenizers"][0];
  for (const auto& [pattern, behavior, pieces] : cases) {
    split["pattern"]["Regex"] = pattern;
    split["behavior"] = behavior;
    put("tokenizer.json", file);
    Tokenizer tokenizer(path_);
    std::string found;
    for (const std::int32_t token : encoded(tokenizer, "over there 234 the end"))
      found += (found.empty() ? "" : "|") + tokenizer.decode(std::span(&token, 1));
    EXPECT_EQ(found, pieces) << pattern;
  }
}

// A space and the first byte of what follows are merged unless a cut is between them.
TEST_F(Folder, PunctuationIsThatOfUnicode8) {
  json file = json::parse(all_of(folder / "gpt2.json"));
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                             {{"type", "ByteLevel"}, {"use_regex", false}}}}};
  json &vocabulary = file["model"]["vocab"], merges = json::array();
  const std::vector<std::string> letters = [&] {
    std::vector<std::string> all;
    for (const auto& [word, id] : vocabulary.items())
      if (word.size() <= 2) all.push_back(word);
    return all;
  }();
  for (const std::string& letter : letters) {
    if (letter.size() == 2 && static_cast<unsigned char>(letter[0]) > 0xc3) continue;
    if (letter.size() == 1 || static_cast<unsigned char>(letter[0]) >= 0xc2) {
      vocabulary.emplace("\u0120" + letter, 1000 + vocabulary.size());
      merges.push_back({"\u0120", letter});
    }
  }
  file["model"]["merges"] = merges;
  file["added_tokens"] = json::array();
  put("tokenizer.json", file);
  Tokenizer tokenizer(path_);
  const auto is_cut = [&](char32_t c) {
    std::string text = " ";
    const auto add = [&](unsigned bits) { text += char(bits); };
    if (c < 0x80)
      add(c);
    else if (c < 0x800)
      add(0xc0 | c >> 6), add(0x80 | (c & 0x3f));
    else if (c < 0x10000)
      add(0xe0 | c >> 12), add(0x80 | (c >> 6 & 0x3f)), add(0x80 | (c & 0x3f));
    else
      add(0xf0 | c >> 18), add(0x80 | (c >> 12 & 0x3f)), add(0x80 | (c >> 6 & 0x3f)),
          add(0x80 | (c & 0x3f));
    const Tokens tokens = encoded(tokenizer, text);
    return tokenizer.decode(std::span(tokens).first(1)) == " ";
  };
  for (const char32_t c : {U'$', U'~', U'\u2e42', U'\u166d', U'\U000111c9'})
    EXPECT_TRUE(is_cut(c)) << unsigned(c);
  for (const char32_t c : {U'a', U'\u061d', U'\u2e43', U'\U00010ead', U'\U0001e95e'})
    EXPECT_FALSE(is_cut(c)) << unsigned(c);
  int cuts = 0;
  for (char32_t c = 0x21; c < 0x1f000; ++c)
    cuts += c != 0x7f && (c < 0xd800 || c >= 0xe000) && is_cut(c);
  EXPECT_EQ(cuts, 726);
}

json added(const std::string& content, bool lstrip = false) {
  return {{"content", content},  {"lstrip", lstrip},     {"rstrip", false},
          {"normalized", false}, {"single_word", false}, {"special", false}};
}

// Ids as transformers 5.24 gives them for gpt2.json with these files beside it.
TEST_F(Folder, FilesBesideATokenizerAddTokens) {
  put("tokenizer.json", json::parse(all_of(folder / "gpt2.json")));
  const auto ids = [&] {
    Tokenizer tokenizer(path_);
    const Tokens tokens = encoded(tokenizer, "a <tool> b <x> c");
    fs::remove(path_ / "tokenizer_config.json");
    fs::remove(path_ / "added_tokens.json");
    return tokens;
  };
  const Tokens plain = {65, 221, 901, 464, 302, 88, 30, 360};
  const Tokens with_x = {65, 221, 901, 464, 221, 902, 360};
  const auto decoder = [&](const std::string& id, const json& token) {
    put("tokenizer_config.json", {{"added_tokens_decoder", {{id, token}}}});
  };
  EXPECT_EQ(ids(), plain);
  decoder("902", added("<x>"));
  EXPECT_EQ(ids(), with_x);
  decoder("901", added("<tool>", true));
  EXPECT_EQ(ids(), (Tokens{65, 901, 464, 302, 88, 30, 360}));
  decoder("66", added("b"));
  put("added_tokens.json", {{"<x>", 902}});  // which the decoder makes forgotten
  EXPECT_EQ(ids(), (Tokens{65, 221, 901, 221, 66, 302, 88, 30, 360}));
  put("added_tokens.json", {{"<tool>", 901}, {"<x>", 902}});
  EXPECT_EQ(ids(), with_x);
  put("tokenizer_config.json", {{"pad_token", "b"}});
  EXPECT_EQ(ids(), (Tokens{65, 221, 901, 221, 66, 302, 88, 30, 360}));
}

TEST_F(Folder, TokensWithoutAnIdAreRefusedWhereATextHasThem) {
  put("tokenizer.json", json::parse(all_of(folder / "gpt2.json")));
  const auto said = [&] {
    Tokenizer tokenizer(path_);
    EXPECT_EQ(encoded(tokenizer, "a <tool> b").size(), 4u);
    EXPECT_EQ(tokenizer.vocab_size(), 902);
    try {
      encoded(tokenizer, "a <tool> b <x> c");
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto about = [&](const char* file) {
    return "a text has '<x>', a token that " + (path_ / file).string() + " adds to " +
           (path_ / "tokenizer.json").string();
  };
  put("special_tokens_map.json", {{"pad_token", added("<x>")}});
  EXPECT_TRUE(said().starts_with(about("special_tokens_map.json"))) << said();
  put("tokenizer_config.json", {{"added_tokens_decoder", json::object()}});
  EXPECT_EQ(said(), "");
  put("tokenizer_config.json", {{"additional_special_tokens", {"<x>"}}});
  EXPECT_TRUE(said().starts_with(about("tokenizer_config.json"))) << said();
}

TEST_F(Folder, ContradictionsOfFilesBesideATokenizerAreRefused) {
  put("tokenizer.json", json::parse(all_of(folder / "gpt2.json")));
  const auto decoder = [&](const std::string& id, const json& token) {
    put("tokenizer_config.json", {{"added_tokens_decoder", {{id, token}}}});
    return refused();
  };
  const auto other = [&](const std::string& token, const std::string& found,
                         const std::string& expected) {
    return "tokenizer_config.json: the token '" + token +
           "' has another id than Transformers gives it in " + (path_ / "tokenizer.json").string() +
           ": found " + found + ", expected " + expected + ". Correct one of the files.";
  };
  EXPECT_EQ(decoder("950", added("<tool>")), other("<tool>", "950", "901"));
  EXPECT_EQ(decoder("902", added("b")), other("b", "902", "66"));
  EXPECT_EQ(decoder("910", added("<x>")), other("<x>", "910", "902"));
  EXPECT_EQ(decoder("9x", added("<x>")),
            "tokenizer_config.json: the token '<x>' has the id \"9x\", expected 0 to 16777215");
  EXPECT_EQ(decoder("902", 5), "tokenizer_config.json: a token has no content");
  put("tokenizer_config.json", json::array());
  EXPECT_EQ(refused(), "tokenizer_config.json: must be an object");
}

TEST_F(Folder, FilesBesideAModelOfSentencePieceAddTokens) {
  fs::copy(folder / "bpe.model", path_ / "tokenizer.model");
  put("added_tokens.json", {{"</s>", 2}, {"<x>", 800}});
  Tokenizer tokenizer(path_);
  EXPECT_EQ(tokenizer.find("<x>"), 800);
  EXPECT_EQ(tokenizer.vocab_size(), 801);
  EXPECT_FALSE(encoded(tokenizer, "a </s>").empty());
  EXPECT_THROW(encoded(tokenizer, "a <x>"), Error);
}

TEST_F(Folder, ATokenizerIsFoundInAModelsFolder) {
  EXPECT_EQ(find_tokenizer(path_), std::nullopt);
  EXPECT_EQ(refused(),
            " has no tokenizer: expected tokenizer.json, tokenizer.model or spiece.model");
  fs::create_directory(path_ / "hf");
  for (const char* name :
       {"hf/spiece.model", "hf/tokenizer.model", "hf/tokenizer.json", "tokenizer.model"}) {
    put(name, 1);
    EXPECT_EQ(find_tokenizer(path_), path_ / name);
  }
}

// A token is the prompt's if the reference library says that it ends within the prompt.
TEST(Tokenizer, APromptAndItsTextAreEncodedAsOne) {
  struct Case {
    const char *name, *prompt, *text;
    std::int64_t given;
  };
  const Case cases[] = {
      {"llama2", "int main", "() of", 3},
      {"mistral", "int main", "() of", 3},
      {"metaspace", "int main", "() of", 3},
      {"gemma", "int main", "() of", 2},
      {"gpt2", "int main", "() of", 3},
      {"gpt2", "a\n\n", "b", 3},
      {"gpt2", "a ", "the", 1},
      {"llama2", "", "the", 0},
      {"gpt2", "a <", "tool> b", 2},
  };
  for (const auto& [name, prompt, text, given] : cases) {
    Tokenizer tokenizer(folder / (std::string(name) + ".json"));
    Tokens tokens = {7};
    EXPECT_EQ(tokenizer.encode(prompt, text, tokens), given) << name << ": " << prompt << text;
    EXPECT_EQ(tokens.front(), 7);
    tokens.erase(tokens.begin());
    EXPECT_EQ(tokens, encoded(tokenizer, std::string(prompt) + text)) << name;
  }
  Tokenizer model(folder / "bpe.model");
  Tokens tokens;
  const std::int64_t given = model.encode("the dogs ", "50%", tokens);
  EXPECT_EQ(model.decode(std::span(tokens).first(std::size_t(given))), "the dogs ");
}

// The space that is put before a text is none of its bytes, unlike one of the text.
TEST(Tokenizer, BytesOfATextAreThoseThatWereWritten) {
  struct Case {
    const char *name, *begin, *text;
    std::int64_t bytes;
  };
  const Case cases[] = {
      {"llama2", "", "the dogs", 8},        {"llama2", "", " the dogs", 9},
      {"llama2", "<|end|>", "dogs", 4},     {"llama2", "the <|end|>", "dogs", 8},
      {"mistral", "", "the dogs", 8},       {"mistral", "the <|end|>", " dogs", 9},
      {"metaspace", "the <|end|>", "a", 5}, {"gemma", "", " the dogs", 9},
      {"gpt2", "<|end|>", " the dogs", 9}};
  for (const auto& [name, begin, text, bytes] : cases) {
    Tokenizer tokenizer(folder / (std::string(name) + ".json"));
    const Tokens tokens = encoded(tokenizer, std::string(begin) + text);
    EXPECT_EQ(tokenizer.text_bytes(tokens), bytes) << name << ": " << begin << text;
  }
  Tokenizer tokenizer(folder / "llama2.json");
  const Tokens tokens = encoded(tokenizer, "the dogs");
  EXPECT_EQ(tokenizer.text_bytes(tokens, 1),
            8 - (std::ssize(tokenizer.decode(std::span(tokens).first(1)))));
}

class Models : public testing::TestWithParam<const char*> {};

TEST_P(Models, OfSentencePieceHaveItsIds) {
  const json expected = json::parse(all_of(folder / "expected.json"));
  std::string text = all_of(folder / "text.txt");
  const std::string mark = "\xef\xbf\xbd";
  for (std::size_t at = 0; (at = text.find(mark)) != std::string::npos;)
    text.erase(at, mark.size());
  const auto again =
      std::ranges::unique(text, [](char a, char b) { return a == b && a >= '!' && a <= '~'; });
  text.erase(again.begin(), again.end());
  Tokenizer tokenizer(folder / (std::string(GetParam()) + ".model"));
  expect_same(tokenizer, text, expected.at(GetParam()).get<Tokens>());
  EXPECT_EQ(tokenizer.vocab_size(), 800);
  EXPECT_EQ(tokenizer.find("</s>"), 2);
  EXPECT_EQ(tokenizer.find("e"), std::nullopt);
  const std::string words = "int main() of the lazy dogs; <tool>";
  EXPECT_EQ(tokenizer.decode(encoded(tokenizer, words)), words);
  const std::int32_t control = 2;
  EXPECT_EQ(tokenizer.text_bytes(std::span(&control, 1)), 0);
  EXPECT_EQ(tokenizer.text_bytes(encoded(tokenizer, "dogs")), 4);  // without the space before it
}

INSTANTIATE_TEST_SUITE_P(OfSentencePiece, Models, testing::Values("bpe", "unigram"));

TEST(Tokenizer, WhatIsNoModelOfSentencePieceIsRefused) {
  const std::string whole = all_of(folder / "bpe.model");
  const fs::path directory =
      fs::temp_directory_path() / ("brume-model-" + std::to_string(::getpid()));
  const fs::path path = directory / "tokenizer.model";
  fs::create_directory(directory);
  for (const std::string& content : {std::string("{}"), std::string(), whole.substr(0, 5000)}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    try {
      const Tokenizer tokenizer(directory);
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      EXPECT_TRUE(std::string(error.what()).starts_with(path.string() + ": is no model of"))
          << error.what();
    }
  }
  fs::remove_all(directory);
  EXPECT_THROW(Tokenizer(folder / "missing.model"), Error);
}

// A piece that begins with a zero byte is an empty one to the library's table, which throws.
TEST(Tokenizer, ZerosInAModelOfSentencePieceAreReadOrRefused) {
  const std::string whole = all_of(folder / "unigram.model");
  const fs::path directory =
      fs::temp_directory_path() / ("brume-zeros-" + std::to_string(::getpid()));
  fs::create_directory(directory);
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); at += 5) {
    std::string content = whole;
    content[at] = '\0';
    std::ofstream(directory / "tokenizer.model", std::ios::binary | std::ios::trunc) << content;
    try {
      const Tokenizer tokenizer(directory);
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input) << "byte " << at << ": " << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  fs::remove_all(directory);
}

// Letters, marks, digits and what joins words stand beside no word of its own.
TEST(Tokenizer, AddedTokensOfSingleWordsStandAlone) {
  Tokenizer tokenizer(folder / "mistral.json");
  const auto has = [&](const std::string& text) {
    return std::ranges::count(encoded(tokenizer, text), 901) > 0;
  };
  for (const char* alone :
       {"<tool>", " <tool> ", "(<tool>)", "\u00b2<tool>\u20ac", "<tool>\u00a0a"})
    EXPECT_TRUE(has(alone)) << alone;
  for (const char* within : {"a<tool>", "<tool>a", "_<tool>", "<tool>\u0301", "\u0663<tool>",
                             "<tool>\u200d", "\u24b6<tool>", "<tool>\u2167", "<tool>\u6f22"})
    EXPECT_FALSE(has(within)) << within;
}

/// What a tokenizer.json says after a change, without the folder; a json pointer names the place.
std::string refused(const std::string& pointer, const json& value) {
  json file = json::parse(all_of(folder / "llama3.json"));
  file[json::json_pointer(pointer)] = value;
  const fs::path path =
      fs::temp_directory_path() / ("brume-tokenizer-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << file;
  std::string said;
  try {
    const Tokenizer tokenizer(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    said = error.what();
    EXPECT_TRUE(said.starts_with(path.string() + ": ")) << said;
    said = said.substr(path.string().size() + 2);
  }
  fs::remove(path);
  return said;
}

TEST(Tokenizer, WhatIsNotSupportedIsRefusedByName) {
  const auto pattern = [](const std::string& regex) {
    return refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", regex);
  };
  EXPECT_EQ(pattern("(a"), "the pattern '(a' is refused: end pattern with unmatched parenthesis");
  EXPECT_EQ(pattern(R"(\p{Foo})"),
            R"(the pattern '\p{Foo}' is refused: invalid character property name {Foo})");
  EXPECT_EQ(refused("/pre_tokenizer/pretokenizers/0/behavior", "Removed"),
            "Split with the behavior 'Removed' is not supported");
  EXPECT_EQ(refused("/pre_tokenizer", {{"type", "Metaspace"}}),
            "Metaspace has no letter as 'replacement'");
  EXPECT_EQ(
      refused("/pre_tokenizer/pretokenizers/0", {{"type", "Metaspace"}, {"replacement", "\u2581"}}),
      "the pre_tokenizer Metaspace is supported alone only");
  EXPECT_EQ(refused("/pre_tokenizer", {{"type", "Whitespace"}}),
            "the pre_tokenizer 'Whitespace' is not supported");
  const std::string neither =
      "only models with a pre_tokenizer ByteLevel, or else with byte_fallback, are supported";
  EXPECT_EQ(refused("/pre_tokenizer", nullptr), neither);
  EXPECT_EQ(refused("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}}), neither);
  EXPECT_EQ(refused("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}}),
            "the normalizer Replace is supported for a String only");
  EXPECT_EQ(refused("/normalizer", {{"type", "Lowercase"}}),
            "the normalizer \"Lowercase\" is not supported");
  EXPECT_EQ(refused("/model/type", "Unigram"), "the model must be of type BPE, found \"Unigram\"");
  EXPECT_EQ(refused("/model/byte_fallback", true),
            "its vocabulary has no token for the byte 0x00, which one that is byte-level or has "
            "byte_fallback needs");
  EXPECT_EQ(refused("/model/merges/7", "a"), "merge 7 is no pair of words");
  EXPECT_EQ(refused("/model/merges/7", "a \u4e00"), "merge 7 has a word outside the vocabulary");
  EXPECT_EQ(refused("/model/vocab/a", -1), "token 'a' has the id -1, expected 0 to 16777215");
  json vocabulary = json::parse(all_of(folder / "llama3.json")).at("model").at("vocab");
  vocabulary.erase("a");
  EXPECT_EQ(refused("/model/vocab", vocabulary),
            "its vocabulary has no token for the byte 0x61, which one that is byte-level or has "
            "byte_fallback needs");
  EXPECT_THROW(Tokenizer(folder / "expected.json"), Error);
  EXPECT_THROW(Tokenizer(folder / "missing.json"), Error);
}

}  // namespace
}  // namespace brume::tokenizer
