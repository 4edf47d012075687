// Texts as the reference library makes them: regression/data/chat/make.py wrote cases.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "chat/conversation.hpp"
#include "chat/template.hpp"
#include "own_folder.hpp"

namespace brume::chat {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// A text with marks around its answers.
std::string marked(const std::string& text, const std::vector<Span>& answers, char begin = '\x02',
                   char end = '\x03') {
  std::string made = text;
  for (auto span = answers.rbegin(); span != answers.rend(); ++span) {
    made.insert(span->end, 1, end);
    made.insert(span->begin, 1, begin);
  }
  return made;
}

std::string refusal(const std::string& text, const ordered_json& values = ordered_json::object()) {
  try {
    Template(text, "t").render(values);
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    return error.what();
  }
  ADD_FAILURE() << text.substr(0, 100) << " is not refused";
  return {};
}

TEST(ChatTemplate, MakesTheTextsOfTheReference) {
  std::ifstream file(fs::path(BRUME_REGRESSION_DIR) / "data/chat/cases.json");
  const ordered_json cases = ordered_json::parse(file);
  ASSERT_GT(cases["cases"].size(), 500u);
  for (const ordered_json& one : cases["cases"]) {
    const auto text = one["template"].get<std::string>();
    if (!one.contains("text")) {
      refusal(text, cases["values"]);
      continue;
    }
    try {
      const Rendered made = Template(text, "t").render(cases["values"]);
      EXPECT_EQ(marked(made.text, made.generated), one["text"]) << text;
    } catch (const Error& error) {
      ADD_FAILURE() << text << ": " << error.what();
    }
  }
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(refusal("a\nb\n{% if x %}"), "t:3: expected 'endif', found 'the end of the template'");
  EXPECT_EQ(refusal("a\n{{ x.y }}"), "t:2: 'x' is undefined");
  EXPECT_EQ(refusal("\n\n{{ raise_exception('roles must alternate') }}"),
            "t:3: the template refuses these messages: roles must alternate");
  EXPECT_EQ(refusal("{{ 1 | b }}"), "t:1: the filter 'b' is not supported");
  EXPECT_EQ(refusal("{% block x %}"), "t:1: the tag 'block' is not supported");
  EXPECT_EQ(refusal("{{ 'a"), "t:1: this string has no end");
  EXPECT_EQ(refusal("\n{{ a }"), "t:2: unexpected '}'");
  EXPECT_EQ(refusal("{{ \u201cx\u201d }}"), "t:1: unexpected character '\u201c'");
  EXPECT_EQ(refusal("{{ raise_exception('a\\nb\\x1b[31m') }}"),
            "t:1: the template refuses these messages: a b [31m");
}

// Each would exhaust the stack, the memory or the patience of its reader.
TEST(ChatTemplate, NothingRunsAway) {
  const auto many = [](const std::string& part) {
    std::string all;
    while (all.size() < 500'000) all += part;
    return all;
  };
  refusal("{{ " + many("(") + " }}");
  refusal("{{ " + many("[") + " }}");
  refusal("{{ " + many("not ") + "1 }}");
  refusal("{{ " + many("-") + "x }}");
  refusal("{{ " + many("1 if 1 else ") + "1 }}");
  refusal(many("{% if 1 %}"));
  refusal(many("{% for x in y %}"));
  refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  refusal("{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}");
  refusal(
      "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}");
  // Namespaces may hold each other, in circles and in chains.
  const char* no_end = "{% set n = namespace(x=1) %}{% for i in range(1000) %}";
  for (const char* set :
       {"{% set n.x = n %}", "{% set n.x = [n] %}", "{% set n.x = [n].copy %}",
        "{% set m = namespace(x=n.x) %}{% set n.x = [m] %}", "{% set n.x = loop.changed %}",
        "{% set n.x = loop.changed(loop.changed) %}"})
    EXPECT_EQ(Template(no_end + std::string(set) + "{% endfor %}", "t").render({}).text, "");
  for (const char* set :
       {"{% set n.x = [n.x].copy %}", "{% set n.x = joiner(n.x) %}", "{% set n.x = [loop, n.x] %}"})
    refusal(no_end + std::string(set) + "{% endfor %}");
  refusal(
      "{% set n = namespace(x=[]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor "
      "%}{{ n.x }}");
  refusal(
      "{% set n = namespace(x=[], y=[]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}"
      "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}");
  refusal("{{ range(100000)|unique|list }}");
  refusal(
      "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = '%s%s' % (n.x, n.x) "
      "%}{% endfor %}");
  refusal("{% for i in range(100000) %}{% set x = 'abcdefgh' * 5000000 %}{% endfor %}");
  refusal("{{ ('a' * 60000000)|list }}");
  refusal(
      "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor "
      "%}");
  refusal(
      "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor "
      "%}");
  refusal("{{ 'a' * 1000000000000 }}");
  refusal("{{ [1] * 9223372036854775807 }}");
  refusal("{{ range(1000000000) }}");
  refusal("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
  refusal("{{ 9223372036854775807 + 1 }}");
  refusal("{{ -9223372036854775807 - 2 }}");
  refusal("{{ 9223372036854775808 }}");
  refusal("{{ '%999999999d' % 1 }}");
  refusal("{{ 'a' | indent(99999999999) }}");
  refusal("{{ {} | tojson(indent=2) ~ [[[[1]]]] | tojson(indent=999999999) }}");
  EXPECT_EQ(Template("{{ " + many("1~") + "1 }}", "t").render({}).text.substr(0, 3), "111");
  EXPECT_EQ(Template("{{ x" + many("|string") + " }}", "t").render({{"x", 1}}).text, "1");
  EXPECT_EQ(Template("{{ " + many("1 or ") + "1 }}", "t").render({}).text, "1");
}

// A macro may be called when the block that defined it, and its variables, are gone.
TEST(ChatTemplate, MacrosMayOutliveTheirBlocks) {
  EXPECT_EQ(
      Template(
          "{% set n = namespace(f=1) %}{% for i in [1, 2] %}{% macro f() %}<{{ n is defined }}>"
          "{% endmacro %}{% set n.f = f %}{{ n.f() }}{% endfor %}{{ n.f() }}",
          "t")
          .render({})
          .text,
      "<True><True><True>");
}

class Conversations : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
  }
  std::vector<std::string> texts(const std::string& messages,
                                 const std::string& others = "") const {
    const Writer writer(folder_.path());
    std::vector<std::string> all;
    for (const Conversation& one :
         writer.texts(ordered_json::parse("{\"messages\": " + messages + others + "}"), "w"))
      all.push_back(marked(one.text, one.answers, '[', ']'));
    return all;
  }
  std::string refused(const std::string& line) const {
    try {
      const Writer writer(folder_.path());
      writer.texts(ordered_json::parse(line), "a.jsonl:3");
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  test::OwnFolder folder_;
  const std::string two_turns_ =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])";
};

constexpr const char* plain =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

TEST_F(Conversations, AnswersAreBehindThePromptsBeforeThem) {
  put("chat_template.jinja", plain);
  put("tokenizer_config.json",
      R"({"bos_token": {"content": "^"}, "eos_token": "$", "pad_token": null})");
  EXPECT_EQ(texts(two_turns_),
            (std::vector<std::string>{"^<user>a\n<assistant>[b$\n]<user>c\n<assistant>[d$\n]"}));
  EXPECT_EQ(texts(R"([{"role": "user", "content": "a"}])"),
            (std::vector<std::string>{"^<user>a\n"}));
  EXPECT_EQ(Writer(folder_.path()).end_token(), "$");
  EXPECT_EQ(
      Writer(folder_.path()).prompt({{"messages", {{{"role", "user"}, {"content", "x"}}}}}, "w"),
      "^<user>x\n<assistant>");
}

TEST_F(Conversations, TheTemplateMaySayWhatIsAnAnswer) {
  put("chat_template.jinja",
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ "
      "m.content }}$"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_EQ(texts(two_turns_),
            (std::vector<std::string>{"<user>a<assistant>[b$]<user>c<assistant>[d$]"}));
}

TEST_F(Conversations, AnswersWithoutWeightAreGiven) {
  const std::string first_given =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1}])";
  put("chat_template.jinja", plain);
  EXPECT_EQ(texts(first_given),
            (std::vector<std::string>{"<user>a\n<assistant>b\n<user>c\n<assistant>[d\n]"}));
  const std::string marked =
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ "
      "m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
  put("chat_template.jinja", marked);
  EXPECT_EQ(texts(first_given),
            (std::vector<std::string>{"<user>a<assistant>b<user>c<assistant>[d]"}));
  // As many blocks as answers, but none of the first one and two of the second.
  put("chat_template.jinja",
      "{% for m in messages %}{% if m.role == 'assistant' and m.content == 'd' %}{% generation %}d"
      "{% endgeneration %}{% generation %}e{% endgeneration %}{% endif %}{% endfor %}");
  EXPECT_NE(refused("{\"messages\": " + first_given + "}").find("not one for each answer"),
            std::string::npos);
  put("chat_template.jinja", "{% generation %}all{% endgeneration %}");
  EXPECT_NE(refused("{\"messages\": " + first_given + "}").find("not one for each answer"),
            std::string::npos);
}

// Models that think keep only the thoughts of the last answer.
TEST_F(Conversations, AnswersWrittenInTwoWaysHaveTheirOwnTexts) {
  put("chat_template.jinja",
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}?{% endif "
      "%}"
      "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
  EXPECT_EQ(texts(two_turns_),
            (std::vector<std::string>{"<user>a\n<assistant>[?b\n]",
                                      "<user>a\n<assistant>b\n<user>c\n<assistant>[?d\n]"}));
  // A prompt that goes on otherwise than the answer does: the answer begins where they part.
  put("chat_template.jinja",
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}<assistant>think{% endif %}");
  EXPECT_EQ(texts(two_turns_),
            (std::vector<std::string>{"<user>a\n<assistant>[b\n]<user>c\n<assistant>[d\n]"}));
}

// A template that shows the system message only before the last message of a user.
TEST_F(Conversations, PromptsThatChangeWithTheAnswerAreRefused) {
  put("chat_template.jinja",
      "{% for m in messages %}{% if m.role == 'user' and loop.last %}SYSTEM {% endif %}"
      "{{ m.content }};{% endfor %}");
  EXPECT_NE(refused("{\"messages\": " + two_turns_ + "}")
                .find("a.jsonl:3: the template writes the messages before an answer otherwise"),
            std::string::npos);
}

TEST_F(Conversations, AnswersWithinAnswersAreOne) {
  put("chat_template.jinja",
      "a{% generation %}b{% generation %}c{% endgeneration %}d{% endgeneration %}e");
  EXPECT_EQ(texts(two_turns_), (std::vector<std::string>{"a[bcd]e"}));
}

TEST_F(Conversations, TooManyAnswersAreRefused) {
  put("chat_template.jinja", "{% for m in messages %}{{ m.content }};{% endfor %}");
  std::string messages;
  for (int i = 0; i < 1500; ++i)
    messages += std::string(i == 0 ? "" : ", ") + R"({"role": ")" +
                (i % 2 == 0 ? "user" : "assistant") + R"(", "content": ")" +
                std::string(1000, 'x') + "\"}";
  EXPECT_NE(refused("{\"messages\": [" + messages + "]}").find("has too many answers"),
            std::string::npos);
}

TEST_F(Conversations, ToolsAndVariablesReachTheTemplate) {
  put("tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "{{ x }}d"},
                            {"name": "tool_use", "template": "{{ tools[0].z }}{{ tools | tojson }}"}]})");
  EXPECT_EQ(texts(two_turns_, R"(, "tools": [{"z": 1, "a": 2}])"),
            (std::vector<std::string>{"1[{\"z\": 1, \"a\": 2}]"}));
  EXPECT_EQ(texts(two_turns_, R"(, "chat_template_kwargs": {"x": false})"),
            (std::vector<std::string>{"Falsed"}));
}

TEST_F(Conversations, WrongOnesAreRefusedByName) {
  EXPECT_NE(refused("{}").find("has no chat template, neither"), std::string::npos);
  put("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_NE(refused("{}").find("'chat_template' must be a text or a list"), std::string::npos);
  put("chat_template.jinja", plain);
  EXPECT_EQ(refused(R"({"messages": []})"),
            "a.jsonl:3: 'messages' must be a list that is not empty");
  EXPECT_EQ(refused(R"({"messages": [1]})"),
            "a.jsonl:3: each message must be an object with a 'role'");
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": "a"}], "tools": 3})"),
            "a.jsonl:3: 'tools' must be a list");
  put("chat_template.jinja", "{{ raise_exception('no') }}");
  EXPECT_EQ(
      refused(R"({"messages": [{"role": "user", "content": "a"}]})"),
      "a.jsonl:3: " +
          (folder_.path() / "chat_template:1: the template refuses these messages: no").string());
}

}  // namespace
}  // namespace brume::chat
