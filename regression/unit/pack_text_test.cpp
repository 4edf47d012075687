#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/token_file.hpp"
#include "interop/tokens.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"
#include "tokenizer/tokenizer.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

class PackText : public testing::Test {
 protected:
  fs::path put(const std::string& name, const std::string& text) const {
    const fs::path path = directory_ / "text" / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
};

std::string text_of(const fs::path& path) {
  const data::TokenFile file(path);
  EXPECT_EQ(file.vocab_size(), 256);
  std::vector<std::int32_t> tokens(std::size_t(file.size()));
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
TEST_F(PackText, HeldOutBlocksAreEvenlySpaced) {
  const PackedText packed = pack_text({put("a", "00112233445566778899")}, directory_ / "out",
                                      {.valid_ratio = 0.25, .block_tokens = 2});
  EXPECT_EQ(text_of(packed.valid), "115599");
  EXPECT_EQ(text_of(packed.train), "00223344667788");
}

std::vector<data::Document> documents_of(const fs::path& path) {
  const data::TokenFile file(path);
  return file.documents(0, file.size());
}

// Blocks of 4 tokens, the second and, of eight, the sixth held out: where one is, documents end.
TEST_F(PackText, DocumentsEndWhereTheyOrTheirPartsDo) {
  using Documents = std::vector<data::Document>;
  const PackedText packed = pack_text({put("a", "aaaaaaaaaa"), put("b", "bbb"), put("c", "ccccc"),
                                       put("empty", ""), put("d", "dddddddddddddd")},
                                      directory_ / "out", {.valid_ratio = 0.25, .block_tokens = 4});
  EXPECT_EQ(text_of(packed.train), "aaaaaabbbcccccdddddddddd");
  EXPECT_EQ(text_of(packed.valid), "aaaadddd");
  EXPECT_EQ(documents_of(packed.train),
            (Documents{{0, 0, 4}, {4, 4, 6}, {6, 6, 9}, {9, 9, 14}, {14, 14, 16}, {16, 16, 24}}));
  EXPECT_EQ(documents_of(packed.valid), (Documents{{0, 0, 4}, {4, 4, 8}}));
}

// A quarter of 24 tokens in pairs of 4 is held out, give or take half a pair. No pair is cut,
// though a block has 2 tokens.
TEST_F(PackText, PromptsStayWithTheirCompletions) {
  using Documents = std::vector<data::Document>;
  std::string lines = "{\"text\": \"ab\"}\n";
  for (const char c : std::string("pqrst"))
    lines +=
        fmt::format("{{\"prompt\": \"{0}{0}{0}\", \"completion\": \"{1}\"}}\n", c, char(c - 32));
  lines += "{\"prompt\": \"\", \"completion\": \"uuuu\"}\n";
  const PackedText packed = pack_text({put("a.jsonl", lines)}, directory_ / "out",
                                      {.valid_ratio = 0.25, .block_tokens = 2});
  EXPECT_EQ(text_of(packed.train), "abpppPrrrRsssStttT");
  EXPECT_EQ(documents_of(packed.train),
            (Documents{{0, 0, 2}, {2, 5, 6}, {6, 9, 10}, {10, 13, 14}, {14, 17, 18}}));
  EXPECT_EQ(text_of(packed.valid), "qqqQuuuu");
  EXPECT_EQ(documents_of(packed.valid), (Documents{{0, 3, 4}, {4, 4, 8}}));
  EXPECT_EQ(packed.documents, 7);
  EXPECT_EQ(packed.bytes, 26);
  EXPECT_THROW(pack_text({put("b.jsonl", "{\"prompt\": \"p\"}\n")}, directory_ / "out", {}), Error);
}

// No space is put before the completion.
TEST_F(PackText, APromptAndItsCompletionAreOneText) {
  const fs::path llama = fs::path(BRUME_REGRESSION_DIR) / "data/tokenizers/llama2.json";
  const fs::path lines = put("a.jsonl", R"({"prompt": "the do", "completion": "gs <|end|>"})");
  const PackedText packed = pack_text({lines}, directory_ / "out",
                                      {.valid_ratio = 0.0, .tokenizer = llama, .begin = "<s>"});
  const data::TokenFile file(packed.train);
  std::vector<std::int32_t> expected = {1}, tokens(std::size_t(file.size()));
  tokenizer::Tokenizer tokenizer(llama);
  tokenizer.encode("the dogs <|end|>", expected);
  file.read(0, tokens);
  EXPECT_EQ(tokens, expected);
  const auto document = documents_of(packed.train).front();
  EXPECT_EQ(tokenizer.decode(std::span(tokens).subspan(std::size_t(document.answer))),
            "gs <|end|>");
}

// Conversations stay whole; what a turn ends with is learned, but not the line that follows it.
TEST_F(PackText, AnswersOfConversationsAreLearned) {
  const fs::path chat = put(
      "chat.jinja",
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '<|end|>' if m.role == 'assistant' }}"
      "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
  std::string lines;
  const auto add = [&](std::initializer_list<std::pair<const char*, std::string>> messages) {
    std::string all;
    for (const auto& [role, content] : messages)
      all += fmt::format("{}{{\"role\": \"{}\", \"content\": \"{}\"}}", all.empty() ? "" : ", ",
                         role, content);
    lines += fmt::format("{{\"messages\": [{}]}}\n", all);
  };
  add({{"user", "the dog"}, {"assistant", "jumps"}, {"user", "who"}, {"assistant", "the fox"}});
  add({{"user", "nobody"}});
  add({{"system", "be"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}});
  const fs::path file = put("a.jsonl", lines);
  for (const char* name : {"qwen.json", "gpt2.json", "llama2.json"}) {
    const fs::path path = fs::path(BRUME_REGRESSION_DIR) / "data/tokenizers" / name;
    const PackedText packed = pack_text(
        {file}, directory_ / "out",
        {.valid_ratio = 0.0, .block_tokens = 2, .tokenizer = path, .chat_template = chat});
    EXPECT_EQ(packed.documents, 2);
    EXPECT_EQ(packed.unanswered, 1);
    const data::TokenFile tokens(packed.train);
    const tokenizer::Tokenizer tokenizer(path);
    std::string found;
    std::int64_t learned = 0;
    for (const data::Document& part : documents_of(packed.train)) {
      std::vector<std::int32_t> all(std::size_t(part.end - part.first));
      tokens.read(part.first, all);
      const auto given = std::size_t(part.answer - part.first);
      const auto text = [&](std::span<const std::int32_t> some) {
        std::string bytes = tokenizer.decode(some);
        return bytes;
      };
      found += part.continues ? "+" : "*";
      found += text(std::span(all).first(given)) + "[" + text(std::span(all).subspan(given)) + "]";
      learned += part.end - part.answer;
    }
    EXPECT_EQ(packed.learned_tokens, learned);
    std::erase(found, ' ');  // those before words belong to either side
    EXPECT_EQ(found,
              "*user:thedog\nassistant:[jumps<|end|>]+\nuser:who\nassistant:[thefox<|end|>]+\n[]"
              "*system:be\nuser:a\nassistant:[b<|end|>]+\nuser:c\n[]")
        << name;
  }
  EXPECT_NE(test::refusal([&] {
              pack_text({file}, directory_ / "out");
            }).find("a.jsonl, line 1: is a conversation. bytes without a tokenizer: has no chat"),
            std::string::npos);
}

// Each form becomes the same documents as its conversation in OpenAI's.
TEST_F(PackText, ConversationsOfOtherFormsAreTheSame) {
  const fs::path chat =
      put("chat.jinja",
          "{% if tools %}{{ tools[0].name }}{% endif %}{% for m in messages %}<{{ m.role }}>"
          "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
  const auto trained = [&](const std::string& line) {
    const PackedText packed = pack_text({put("a.jsonl", line + "\n")}, directory_ / "out",
                                        {.valid_ratio = 0.0, .chat_template = chat});
    std::string marked, all = text_of(packed.train);
    for (const data::Document& part : documents_of(packed.train))
      marked += all.substr(std::size_t(part.first), std::size_t(part.answer - part.first)) + "[" +
                all.substr(std::size_t(part.answer), std::size_t(part.end - part.answer)) + "]";
    return marked;
  };
  const char* usual = "<system>s<user>a<assistant>[b]<user>c<assistant>[d]";
  for (
      const char* line :
      {R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"}], "system": "not this one"})",
       R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
            {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}], "system": "s"})",
       R"({"conversations": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"}], "tools": ""})",
       R"({"instruction": "c", "input": "", "output": "d", "history": [["a", "b"]], "system": "s"})"}) {
    std::string one(line);
    std::erase(one, '\n');
    EXPECT_EQ(trained(one), usual) << one;
  }
  // A prompt's answers are given, and so is one that says it.
  EXPECT_EQ(
      trained(
          R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
          R"({"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})"),
      "<user>a<assistant>b<user>c<assistant>[d]");
  EXPECT_EQ(
      trained(
          R"({"messages": [{"role": "assistant", "content": "a", "weight": 0}, )"
          R"({"role": "user", "content": "b"}, {"role": "assistant", "content": "c", "weight": 1}]})"),
      "<assistant>a<user>b<assistant>[c]");
  EXPECT_EQ(trained(R"({"instruction": "Add", "input": "1 1", "output": "2"})"),
            "<user>Add\n1 1<assistant>[2]");
  EXPECT_EQ(
      trained(
          R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], )"
          R"("tools": "[{\"name\": \"f\"}]"})"),
      "f<user>a<assistant>[b]");
  EXPECT_EQ(
      trained(R"({"instruction": "", "input": "x", "output": "y", "text": "<user>x<assistant>y"})"),
      "<user>x<assistant>[y]");
  EXPECT_EQ(
      trained(
          R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0}, )"
          R"({"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]})"),
      "<user>a<assistant>b<user>c<assistant>[d]");
  const auto refused = [&](const char* line) { return test::refusal([&] { trained(line); }); };
  for (const auto& [line, says] :
       {std::pair(R"({"instruction": "a", "input": 5, "output": "b"})", "'input' must be a text"),
        {R"({"instruction": "a", "output": "b", "system": ["s"]})", "'system' must be a text"},
        {R"({"messages": [{"role": "assistant", "content": "b", "weight": "0"}]})", "'weight'"},
        {R"({"messages": [{"role": "assistant", "content": "b", "weight": 0.5}]})", "'weight'"},
        {R"({"conversations": []})", "'conversations' must be a list of messages"},
        {R"({"messages": [{"content": "a"}]})", "'messages' must be a list of messages"}})
    EXPECT_NE(refused(line).find(says), std::string::npos) << line;
  EXPECT_NE(refused(R"({"conversations": [{"from": "alien", "value": "a"}]})")
                .find("line 1: a message is from \"alien\""),
            std::string::npos);
  EXPECT_NE(
      refused(R"({"conversations": [{"from": "gpt", "value": 1}]})").find("must have the texts"),
      std::string::npos);
  EXPECT_NE(refused(R"({"instruction": "a", "output": "b", "history": ["c"]})").find("pairs"),
            std::string::npos);
  EXPECT_NE(
      refused(R"({"messages": [{"role": "user", "content": "a"}], "tools": "["})").find("'tools'"),
      std::string::npos);
}

// Data sets come as one list, too: an entry is a document, however it is laid out.
TEST_F(PackText, AListHasItsEntriesAsDocuments) {
  const auto packed_as = [&](const std::string& name, const std::string& text) {
    const PackedText packed =
        pack_text({put(name, text)}, directory_ / "out", {.valid_ratio = 0.0});
    return fmt::format("{} {}", packed.documents, text_of(packed.train));
  };
  const std::string list =
      "\xef\xbb\xbf [ {\"text\": \"a[]{},\\\"\"}\n,\n{\n \"text\":\n\"b\\\\\", \"x\": [[{}], "
      "1]}\r\n]\n";
  for (const char* name : {"a.json", "a.txt", "a"})
    EXPECT_EQ(packed_as(name, list), "2 a[]{},\"b\\") << name;
  EXPECT_EQ(packed_as("a.json", "[]"), "1 []");
  EXPECT_EQ(packed_as("a.txt", "[{x} is no JSON\n"), "1 [{x} is no JSON\n");
  const auto refused = [&](const std::string& text) {
    return test::refusal([&] { packed_as("a.json", text); });
  };
  EXPECT_NE(refused(R"([{"text": "a"}, {"txt": "b"}])").find("a.json, entry 2: has no text"),
            std::string::npos);
  EXPECT_NE(refused(R"([{"text": "a"}, 5])").find("entry 2"), std::string::npos);
  EXPECT_NE(refused(R"([{"text": "a"}, {"text": )").find("entry 2"), std::string::npos);
  EXPECT_NE(refused(R"([{"text": "a"}] x)").find("entry 2"), std::string::npos);
  std::string many = "[";
  for (int i = 0; i < 200'000; ++i)
    many += fmt::format("{}{{\"text\": \"{},\"}}", i > 0 ? ",\n  " : "", i);
  const std::string found = packed_as("a.json", many + "]");
  EXPECT_TRUE(found.starts_with("200000 0,1,2,3,")) << found.substr(0, 40);
  EXPECT_TRUE(found.ends_with(",199998,199999,"));
}

// A conversation that becomes several documents is not on both sides of what is held out.
TEST_F(PackText, ConversationsAreHeldOutAsAWhole) {
  const fs::path chat =
      put("chat.jinja",
          "{% for m in messages %}{{ m.content }}{{ '?' if loop.last and m.role == 'assistant' }};"
          "{% endfor %}");
  std::string lines;
  for (const char c : std::string("abcdefgh"))
    lines += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{0}\"}}, "
        "{{\"role\": \"assistant\", \"content\": \"{0}1\"}}, "
        "{{\"role\": \"user\", \"content\": \"{0}\"}}, "
        "{{\"role\": \"assistant\", \"content\": \"{0}2\"}}]}}\n",
        c);
  const PackedText packed = pack_text({put("a.jsonl", lines)}, directory_ / "out",
                                      {.valid_ratio = 0.3, .chat_template = chat});
  EXPECT_EQ(packed.documents, 16);
  const std::string train = text_of(packed.train), valid = text_of(packed.valid);
  EXPECT_GT(std::ssize(valid), 20);
  for (const char c : std::string("abcdefgh")) {
    const std::string both = fmt::format("{0};{0}1?;{0};{0}1;{0};{0}2?;", c);
    EXPECT_NE(train.find(both) != train.npos, valid.find(both) != valid.npos) << c;
  }
}

// Lines of many parts of a file, some longer than a part, packed on all cores: all come once, in
// order, and a wrong one is named by its number.
TEST_F(PackText, LongFilesOfLinesKeepTheirOrder) {
  std::string lines, all;
  for (int i = 0; std::ssize(lines) < 30'000'000; ++i) {
    const std::string word = fmt::format("{};", i);
    std::string text = word;
    while (std::ssize(text) < (i % 37 == 0 ? 200'000 : i % 1000)) text += word;
    if (i == 40) text = std::string(20'000'000, 'x');
    all += text;
    lines += "{\"text\": \"" + text + "\"}" + (i % 5 == 0 ? "\r\n\n" : "\n");
  }
  const fs::path path = put("a.jsonl", lines);
  double packed_share = 0.0;
  const auto progress = [&](double share) {
    EXPECT_GE(share, packed_share);
    packed_share = share;
  };
  const PackedText packed = pack_text({path, put("b", "end")}, directory_ / "out",
                                      {.valid_ratio = 0.0, .progress = progress});
  EXPECT_EQ(packed_share, 1.0);
  EXPECT_EQ(text_of(packed.train), all + "end");
  EXPECT_EQ(std::ssize(documents_of(packed.train)), packed.documents);

  const std::int64_t number = 1 + std::ranges::count(lines, '\n');
  put("a.jsonl", lines + "{\"body\": 1}");
  try {
    pack_text({path}, directory_ / "out", {});
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what())
                    .starts_with(fmt::format("{}, line {}: has no text", path.string(), number)))
        << error.what();
  }
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Packs in a process of its own. @return its largest resident set beside what it began with
std::int64_t memory_of(const std::function<void()>& pack) {
  const auto peak = [](int who) {
    rusage usage{};
    ::getrusage(who, &usage);
    return std::int64_t{usage.ru_maxrss} << 10;
  };
  const std::int64_t before = peak(RUSAGE_SELF);
  const pid_t child = ::fork();
  if (child == 0) {
    pack();
    ::_exit(peak(RUSAGE_SELF) - before < (std::int64_t{255} << 20)
                ? int((peak(RUSAGE_SELF) - before) >> 20)
                : 255);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  return std::int64_t{WEXITSTATUS(status)} << 20;
}

// Memory does not grow with the text, nor with a file, and any number of threads makes the same
// files. 130 MB of text would be 520 MB of tokens in memory, one file of 60 MB alone 300 MB.
TEST_F(PackText, TokensGoToTheDiskAsTheyCome) {
  std::string lines;
  for (int i = 0; std::ssize(lines) < 20'000'000; ++i)
    lines += fmt::format("{{\"text\": \"{}\"}}\n", std::string(std::size_t(i * 37 % 5000), 'x'));
  std::vector<fs::path> files;
  for (int i = 0; i < 3; ++i) files.push_back(put(fmt::format("{}.jsonl", i), lines));
  for (int i = 0; i < 3; ++i)
    files.push_back(put(fmt::format("{}.txt", i), sample_text(3'000'000)));
  files.push_back(put("long.txt", sample_text(60'000'000)));
  const std::int64_t memory =
      memory_of([&] { pack_text(files, directory_ / "2", {.threads = 2}); });
  EXPECT_LT(memory, std::int64_t{240} << 20);
  for (const int threads : {1, 5}) {
    const PackedText packed = pack_text(files, directory_ / "out", {.threads = threads});
    EXPECT_TRUE(bytes_of(packed.train) == bytes_of(directory_ / "2" / "train.tok"));
    EXPECT_TRUE(bytes_of(packed.valid) == bytes_of(directory_ / "2" / "valid.tok"));
  }
}

TEST_F(PackText, EveryByteGoesToOneSideInOrder) {
  const std::string a = sample_text(1000), b = sample_text(77), c = sample_text(5001);
  const std::string all = a + b + c;
  const std::vector<fs::path> files = {put("z", a), put("empty", ""), put("b", b), put("c", c)};
  for (const double ratio : {0.0, 0.05, 0.1, 1.0 / 3.0, 0.5, 0.9}) {
    const PackedText packed =
        pack_text(files, directory_ / "out", {.valid_ratio = ratio, .block_tokens = 64});
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

TEST_F(PackText, DirectoriesAreWalkedInNameOrder) {
  put("b.txt", "2");
  put("a/y.txt", "1");
  put("a/x.txt", "0");
  put("c.txt", "3");
  put(".hidden", "no");
  put(".git/d.txt", "no");
  fs::create_directory_symlink(directory_ / "text", directory_ / "text" / "loop");
  const PackedText packed =
      pack_text({directory_ / "text"}, directory_ / "out", {.valid_ratio = 0.0, .block_tokens = 4});
  EXPECT_EQ(text_of(packed.train), "0123");
  EXPECT_EQ(packed.valid_tokens, 0);
}

TEST_F(PackText, FilesOfDirectoriesThatAreNoTextAreLeftOut) {
  const std::string binary(
      "\x7f"
      "ELF\0\1",
      6);
  put("a.txt", "01");
  put("b.bin", binary);
  put("c/d.pyc", "\xa7\r" + binary);
  put("c/e.txt", "23");
  const PackedText packed =
      pack_text({directory_ / "text"}, directory_ / "out", {.valid_ratio = 0.0, .block_tokens = 4});
  EXPECT_EQ(text_of(packed.train), "0123");
  EXPECT_EQ(packed.left_out, 2);
  EXPECT_TRUE(packed.no_text.empty());
  const PackedText named = pack_text({directory_ / "text" / "b.bin"}, directory_ / "out",
                                     {.valid_ratio = 0.0, .block_tokens = 4});
  EXPECT_EQ(text_of(named.train), binary);
  EXPECT_EQ(named.left_out, 0);
  EXPECT_EQ(named.no_text, std::vector{directory_ / "text" / "b.bin"});
}

// The name or the first line says that lines are JSON. A field that is given is never forgotten.
TEST_F(PackText, LinesOfJsonHaveAnyName) {
  const auto pack = [&](const std::vector<fs::path>& files, std::optional<std::string> field) {
    return pack_text(files, directory_ / "out", {.valid_ratio = 0.0, .field = std::move(field)});
  };
  const auto packed = [&](const std::string& name, const std::string& text,
                          std::optional<std::string> field) {
    const PackedText made = pack({put(name, text)}, std::move(field));
    return text_of(made.train) + (made.raw_json.empty() ? "" : " raw");
  };
  const std::string lines = "\xef\xbb\xbf{\"body\": \"ab\"}\r\n\n{\"body\": \"c\"}";
  for (const char* name : {"a.json", "a.ndjson", "a.JSONL", "a.Json", "a.txt", "a"})
    EXPECT_EQ(packed(name, lines, "body"), "abc") << name;
  EXPECT_EQ(packed("a", "{\"prompt\": \"a\", \"completion\": \"b\"}", {}), "ab");
  const std::string list = "[{\"body\": \"ab\"}]", other = "{\"text\": \"ab\"}\n";
  EXPECT_EQ(packed("a.json", list, "body"), "ab");
  EXPECT_EQ(packed("a.json", "[\"body\"]", {}), "[\"body\"] raw");
  EXPECT_THROW(packed("a.json", list, {}), Error);
  EXPECT_EQ(packed("a.txt", lines, {}), lines);
  EXPECT_THROW(packed("a.json", lines, {}), Error);
  EXPECT_THROW(packed("a.json", other, "body"), Error);
  EXPECT_THROW(packed("a.txt", other, "body"), Error);
  EXPECT_THROW(packed("a.txt", "plain", "text"), Error);

  // Sources that are JSON lie in directories, beside lines of JSON.
  fs::remove_all(directory_ / "text");
  put("a.json", list);
  put("b.json", "{\"key\": 1}\n");
  put("c.json", lines);
  const PackedText walked = pack({directory_ / "text"}, "body");
  EXPECT_EQ(text_of(walked.train), "ab{\"key\": 1}\nabc");
  EXPECT_TRUE(walked.raw_json.empty());
}

/// A text as a compressing program writes it.
std::string compressed(const std::string& text, const char* format) {
  std::string made(text.size() + 4096, '\0');
  std::size_t size = 0;
  archive* const writer = archive_write_new();
  archive_write_add_filter_by_name(writer, format);
  archive_write_set_format_raw(writer);
  archive_write_set_bytes_in_last_block(writer, 1);
  archive_write_open_memory(writer, made.data(), made.size(), &size);
  archive_entry* const entry = archive_entry_new();
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_write_header(writer, entry);
  archive_write_data(writer, text.data(), text.size());
  archive_entry_free(entry);
  archive_write_free(writer);
  made.resize(size);
  return made;
}

// Texts and lines, in one part or in two behind each other; more than is read at once.
TEST_F(PackText, CompressedFilesAreDecompressed) {
  std::string text, lines;
  for (int i = 0; text.size() < 1'200'000; ++i) {
    const std::string word = fmt::format("{} ", i);
    text += word;
    lines += "{\"text\": \"" + word + "\"}\n";
  }
  const auto packed = [&](const std::string& name, const std::string& bytes) {
    const PackedText made = pack_text({put(name, bytes)}, directory_ / "out", {.valid_ratio = 0.0});
    EXPECT_TRUE(made.no_text.empty());
    return text_of(made.train);
  };
  for (const char* format : {"gzip", "zstd", "bzip2", "xz"}) {
    const std::string whole = compressed(text, format);
    EXPECT_LT(whole.size(), text.size() / 2);
    EXPECT_TRUE(packed("a.txt." + std::string(format), whole) == text) << format;
    EXPECT_TRUE(packed("b.gz", whole + whole) == text + text) << format;
    EXPECT_TRUE(packed("c.jsonl.zst", compressed(lines, format)) == text) << format;
    EXPECT_THROW(packed("d.txt.gz", whole.substr(0, whole.size() / 2)), Error) << format;
  }
  const std::string binary = compressed(std::string("MZ\0\1", 4), "gzip");
  EXPECT_EQ(
      pack_text({put("e.gz", binary)}, directory_ / "out", {.valid_ratio = 0.0}).no_text.size(),
      1u);
}

const fs::path gpt2 = fs::path(BRUME_REGRESSION_DIR) / "data/tokenizers/gpt2.json";

// What the tokenizer makes of each document, its end after it.
TEST_F(PackText, DocumentsBecomeTokens) {
  const std::vector<std::string> texts = {"The quick brown fox\n", "jumps <|end|> over", "\xff"};
  const std::vector<fs::path> files = {put("a", texts[0]), put("empty", ""), put("b", texts[1]),
                                       put("c", texts[2])};
  const PackedText packed = pack_text(
      files, directory_ / "out", {.valid_ratio = 0.0, .tokenizer = gpt2, .end = "<|endoftext|>"});
  std::vector<std::int32_t> expected;
  tokenizer::Tokenizer tokenizer(gpt2);
  for (const std::string& text : texts) {
    tokenizer.encode(text, expected);
    expected.push_back(0);
  }
  const data::TokenFile file(packed.train);
  std::vector<std::int32_t> tokens(std::size_t(file.size()));
  file.read(0, tokens);
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(file.vocab_size(), 902);
  EXPECT_EQ(packed.documents, 3);
  EXPECT_EQ(packed.bytes, 20 + 18 + 1);
  EXPECT_EQ(packed.train_tokens, std::ssize(expected));
}

/// Words, numbers, marks and blank lines in several scripts, in no order that returns.
std::string mixed_text(std::size_t size) {
  const std::vector<std::string> parts = {
      "cloud",   "the",          "Drop",    "I'll",
      "don't",   "12345",        "7",       "3.14",
      "x+=1",    "(a)",          "<|end|>", "\u00e9t\u00e9",
      "e\u0301", "\u6c34\u6ef4", "\u3001",  "\u0421\u043d\u0435\u0433",
      "\u2014",  "\u00a0",       "...",     "A"};
  const std::vector<std::string> gaps = {" ",   " ",    " ", " ",  "\n",     "  ",
                                         " \n", "\n\n", "",  "\t", "\n    ", "\r\n"};
  std::string text;
  for (std::uint32_t random = 1; text.size() < size;) {
    random = random * 1664525 + 1013904223;
    text += parts[(random >> 8) % parts.size()] + gaps[(random >> 20) % gaps.size()];
  }
  return text;
}

// A text that is read in several pieces has the tokens that it has as a whole, one begin and one
// end.
TEST_F(PackText, APieceHasTheTokensOfTheWhole) {
  const std::string text = mixed_text(2'200'000);
  const fs::path path = put("a.txt", text);
  for (const char* name :
       {"gpt2.json", "llama2.json", "gemma.json", "bpe.model", "unigram.model"}) {
    const fs::path of = gpt2.parent_path() / name;
    std::vector<std::int32_t> expected;
    tokenizer::Tokenizer tokenizer(of);
    tokenizer.encode(text, expected);
    const std::vector<TokenDocument> found = read_documents(path, {.tokenizer = of});
    ASSERT_EQ(found.size(), 1u) << name;
    EXPECT_EQ(found[0].tokens.size(), expected.size()) << name;
    EXPECT_TRUE(found[0].tokens == expected) << name;
    EXPECT_EQ(found[0].bytes, std::ssize(text));
  }
  const PackedText packed = pack_text(
      {path, path}, directory_ / "out",
      {.valid_ratio = 0.0, .tokenizer = gpt2, .begin = "<|endoftext|>", .end = "<|endoftext|>"});
  std::vector<std::int32_t> tokens(std::size_t(packed.train_tokens));
  data::TokenFile(packed.train).read(0, tokens);
  EXPECT_EQ(std::ranges::count(tokens, 0), 4);
  EXPECT_EQ(packed.documents, 2);
  EXPECT_EQ(documents_of(packed.train).size(), 2u);
}

// Without a tokenizer bytes are tokens, whatever they stand for.
TEST_F(PackText, FilesThatAreNoUtf8AreNamed) {
  const std::vector<fs::path> files = {put("a", "caf\xc3\xa9 \xef\xbf\xbd"), put("b", "caf\xe9"),
                                       put("c", "cr\xe8me")};
  const PackOptions how{.valid_ratio = 0.0, .tokenizer = gpt2};
  EXPECT_EQ(pack_text(files, directory_ / "out", how).replaced, (std::vector{files[1], files[2]}));
  EXPECT_TRUE(pack_text(files, directory_ / "out", {}).replaced.empty());
  EXPECT_THROW(pack_text({put("d.jsonl", "{\"text\": \"caf\xe9\"}")}, directory_ / "out", how),
               Error);
}

// Parts that each read to the line's end took 40 times as long for 64 MiB as for 8 MiB.
TEST_F(PackText, OneLongLineTakesTimeInProportion) {
  const auto spent = [&](std::size_t mib) {
    const fs::path path = put("a.jsonl", "{\"text\": \"" + std::string(mib << 20, 'x') + "\"}\n");
    const std::clock_t begin = std::clock();
    pack_text({path}, directory_ / "out", {});
    return double(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  // A machine that others use may be slow for one of them.
  const auto times_as_long = [&] {
    const double few = spent(8);
    return spent(64) / few;
  };
  double least = times_as_long();
  for (int i = 0; i < 3 && least >= 16.0; ++i) least = std::min(least, times_as_long());
  EXPECT_LT(least, 16.0);
}

TEST_F(PackText, LinesOfJsonAreDocuments) {
  const fs::path lines = put("a.jsonl",
                             "{\"text\": \"one\\n\", \"other\": 1}\r\n\n"
                             "{\"other\": \"no\", \"text\": \"\\u00e9\"}");
  const PackedText packed = pack_text({lines}, directory_ / "out", {.valid_ratio = 0.0});
  EXPECT_EQ(text_of(packed.train), "one\n\xc3\xa9");
  EXPECT_EQ(packed.documents, 2);
  const auto refused = [&](const std::string& text, const std::string& field) {
    const fs::path path = put("b.jsonl", text);
    try {
      pack_text({path}, directory_ / "out", {.field = field});
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      return std::string(error.what()).substr(path.string().size());
    }
    return std::string();
  };
  EXPECT_EQ(refused("{\"text\": \"a\"}\n{\"text\": 1}\n", "text"),
            ", line 2: has no text in the field 'text', no conversation, and no prompt with its "
            "completion: name another field with --field");
  EXPECT_EQ(refused("{\"text\": \"a\"}", "body"),
            ", line 1: has no text in the field 'body', no conversation, and no prompt with its "
            "completion: name another field with --field");
  EXPECT_TRUE(refused("{\"text\": \"a\"}\nno", "text").starts_with(", line 2:1:"));
}

/// Text of each document, with marks around what is to be learned.
std::vector<std::string> marked_documents(const fs::path& path) {
  const std::string text = text_of(path);
  std::vector<std::string> all;
  for (const data::Document& one : documents_of(path))
    all.push_back(text.substr(std::size_t(one.first), std::size_t(one.answer - one.first)) + "[" +
                  text.substr(std::size_t(one.answer), std::size_t(one.end - one.answer)) + "]");
  return all;
}

constexpr const char* pair_template =
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}";

// Texts and messages, with a prompt or with one that both answers begin with.
TEST_F(PackText, PairsBecomeTwoDocuments) {
  const fs::path chat = put("chat.jinja", pair_template);
  const auto packed = [&](const std::string& line) {
    const PackedText all = pack_text({put("a.jsonl", line + "\n")}, directory_ / "out",
                                     {.valid_ratio = 0.0, .chat_template = chat});
    EXPECT_TRUE(all.pairs);
    EXPECT_TRUE(data::TokenFile(all.train).has_pairs());
    EXPECT_EQ(data::TokenFile(all.train).num_pairs(), 1);
    return marked_documents(all.train);
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(packed(R"({"prompt": "2+2=", "chosen": "4", "rejected": "22", "score": 1})"),
            Texts({"2+2=[4]", "2+2=[22]"}));
  EXPECT_EQ(packed(R"({"chosen": "The sky is blue", "rejected": "The sky is green"})"),
            Texts({"The sky is[ blue]", "The sky is[ green]"}));
  EXPECT_EQ(packed(R"({"chosen": "ab", "rejected": "abc"})"), Texts({"a[b]", "a[bc]"}));
  EXPECT_EQ(packed(R"({"prompt": "", "chosen": "x\u00e9", "rejected": "x\u00e8"})"),
            Texts({"[x\xc3\xa9]", "[x\xc3\xa8]"}));
  EXPECT_EQ(packed(R"({"chosen": "x\u00e9", "rejected": "x\u00e8"})"),
            Texts({"x[\xc3\xa9]", "x[\xc3\xa8]"}));
  const Texts talked{"u:hi;a:[yes;]", "u:hi;a:[no;]"};
  const auto says = [](const char* role, const char* content) {
    return fmt::format(R"({{"role": "{}", "content": "{}"}})", role, content);
  };
  const std::string hi = says("user", "hi"), yes = says("assistant", "yes"),
                    no = says("assistant", "no");
  EXPECT_EQ(
      packed(fmt::format(R"({{"prompt": [{}], "chosen": [{}], "rejected": [{}]}})", hi, yes, no)),
      talked);
  EXPECT_EQ(packed(fmt::format(R"({{"chosen": [{0}, {1}], "rejected": [{0}, {2}]}})", hi, yes, no)),
            talked);
  EXPECT_EQ(packed(fmt::format(R"({{"prompt": "hi", "messages": [{0}, {1}], )"
                               R"("chosen": [{0}, {1}], "rejected": [{0}, {2}]}})",
                               hi, yes, no)),
            talked);
  EXPECT_EQ(packed(fmt::format(R"({{"system": "be", "prompt": [{}], "chosen": [{}], )"
                               R"("rejected": [{}, {}, {}]}})",
                               hi, yes, no, hi, yes)),
            Texts({"s:be;u:hi;a:[yes;]", "s:be;u:hi;a:[no;u:hi;a:yes;]"}));
}

TEST_F(PackText, PairsStayTogether) {
  std::string lines;
  for (const char c : std::string("pqrst"))
    lines +=
        fmt::format("{{\"prompt\": \"{0}\", \"chosen\": \"{0}{0}\", \"rejected\": \"x\"}}\n", c);
  lines += "{\"prompt\": \"y\", \"chosen\": \"\", \"rejected\": \"x\"}\n";
  const PackedText packed = pack_text({put("a.jsonl", lines)}, directory_ / "out",
                                      {.valid_ratio = 0.4, .block_tokens = 2});
  EXPECT_EQ(packed.documents, 10);
  EXPECT_EQ(packed.unanswered, 1);
  EXPECT_EQ(data::TokenFile(packed.train).num_pairs() + data::TokenFile(packed.valid).num_pairs(),
            5);
  for (const fs::path& file : {packed.train, packed.valid}) {
    const std::vector<std::string> all = marked_documents(file);
    ASSERT_FALSE(all.empty());
    for (std::size_t i = 0; i < all.size(); i += 2) {
      EXPECT_EQ(all[i].front(), all[i + 1].front());
      EXPECT_EQ(all[i + 1].substr(1), "[x]");
    }
  }
}

TEST_F(PackText, DamagedPairsAreRefused) {
  const fs::path chat = put("chat.jinja", pair_template);
  const std::string good = R"({"prompt": "a", "chosen": "b", "rejected": "c"})";
  const auto refused = [&](const std::string& line) {
    const fs::path path = put("b.jsonl", good + "\n" + line + "\n");
    return test::refusal([&] { pack_text({path}, directory_ / "out", {.chat_template = chat}); });
  };
  const char* const together = "line 2: 'chosen' and 'rejected' must be there together";
  for (const char* line :
       {R"({"prompt": "a", "chosen": "b"})", R"({"prompt": "a", "rejected": "b"})",
        R"({"prompt": "a", "chosen": "b", "rejected": 1})",
        R"({"chosen": "b", "rejected": [{"role": "user", "content": "b"}]})",
        R"({"chosen": [{"content": "b"}], "rejected": [{"content": "b"}]})",
        R"({"chosen": [], "rejected": []})", R"({"chosen": null, "rejected": "c"})"})
    EXPECT_NE(refused(line).find(together), std::string::npos) << line << "\n" << refused(line);
  EXPECT_NE(refused(R"({"prompt": 1, "chosen": "b", "rejected": "c"})")
                .find("line 2: 'prompt' must be a text"),
            std::string::npos);
  const char* const one = R"([{"role": "assistant", "content": "b"}])";
  EXPECT_NE(refused(fmt::format(R"({{"chosen": {0}, "rejected": {0}}})", one))
                .find("line 2: 'chosen' and 'rejected' must begin with the same messages"),
            std::string::npos);
  EXPECT_NE(refused(R"({"prompt": [{"role": "user", "content": "a"}, 7], "chosen": )" +
                    std::string(one) + R"(, "rejected": )" + one + "}")
                .find("line 2: each message must be an object"),
            std::string::npos);
  EXPECT_NE(refused(good.substr(0, 20)).find("line 2:1:"), std::string::npos);
  EXPECT_NE(
      refused(R"({"prompt": "a", "completion": "b"})").find("pack pairs and other text apart"),
      std::string::npos);
  EXPECT_NE(test::refusal([&] { read_documents(put("c.jsonl", good), {}); }).find("holds pairs"),
            std::string::npos);
}

TEST_F(PackText, AnEndThatIsNoTokenIsRefused) {
  const std::vector<fs::path> files = {put("a", "text")};
  EXPECT_THROW(pack_text(files, directory_ / "out", {.tokenizer = gpt2, .end = "</s>"}), Error);
  EXPECT_THROW(pack_text(files, directory_ / "out", {.end = "<|endoftext|>"}), Error);
}

TEST_F(PackText, WhatCannotBePackedIsRefused) {
  const auto refused = [&](const std::vector<fs::path>& files, double ratio, const fs::path& out) {
    try {
      pack_text(files, out, {.valid_ratio = ratio});
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
