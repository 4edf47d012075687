#include "deck/deck.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "base/error.hpp"
#include "deck/machine.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"

namespace brume::deck {
namespace {

const std::string smallest = R"([model]
num_layers  = 2
hidden_size = 64
num_heads   = 4
seq_len     = 32
vocab_size  = 256

[training]
steps        = 10
global_batch = 8

[data]
train = "data/train.tok"

[cluster]
memory_gib      = 0.5
host_memory_gib = 1
)";

std::string refused(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, "a.toml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(Deck, TheSmallestDeckGetsItsDefaults) {
  const Deck deck = parse(smallest, "a.toml");
  EXPECT_EQ(deck.model.num_layers, 2);
  EXPECT_EQ(deck.model.ffn_size, 4 * 64);
  EXPECT_EQ(deck.training.optimizer.beta2, 0.95);
  EXPECT_EQ(deck.cluster.devices_per_node, 1);
  EXPECT_EQ(deck.search.zero_levels, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(deck.output.directory, "runs/run");
}

TEST(Deck, EachRequiredKeyIsMissed) {
  for (const char* key : {"num_layers", "hidden_size", "num_heads", "seq_len", "vocab_size",
                          "global_batch", "train", "memory_gib", "host_memory_gib"}) {
    std::string text = smallest;
    const std::size_t start = text.find(std::string("\n") + key + " ") + 1;
    text.erase(start, text.find('\n', start) + 1 - start);
    EXPECT_NE(refused(text).find(std::string("'") + key + "'"), std::string::npos) << key;
  }
  EXPECT_EQ(refused(""),
            "a.toml: table 'training': missing key 'global_batch': sequences per step, over all "
            "devices; Megatron-LM: --global-batch-size");
}

TEST(Deck, WithoutMemoryItIsTheDevices) {
  std::string text = smallest;
  const std::size_t start = text.find("memory_gib");
  text.erase(start, text.find('\n', start) + 1 - start);
  const MemoryAtHand device{.node_gib = 8.0, .device_gib = 79.25};
  EXPECT_EQ(parse(text, "a.toml", {}, device).cluster.memory_gib, 79.25);
  EXPECT_EQ(parse(text, "a.toml", {"cluster.memory_gib=3"}, device).cluster.memory_gib, 3.0);
  EXPECT_EQ(parse(smallest, "a.toml", {}, device).cluster.memory_gib, 0.5);
  EXPECT_EQ(parse(text, "a.toml", {"cluster.profile=l4"}, device).cluster.memory_gib, 79.25);
  EXPECT_THROW(parse(text, "a.toml"), Error);
}

// On hosts the ranks of a node share what it gives; for another machine nobody knows it.
TEST(Deck, WithoutMemoryItIsAPartOfTheNodes) {
  std::string text = smallest;
  for (const char* key : {"\nmemory_gib", "\nhost_memory_gib"}) {
    const std::size_t start = text.find(key) + 1;
    text.erase(start, text.find('\n', start) + 1 - start);
  }
  const MemoryAtHand host{.node_gib = 8.0};
  const ClusterKeys four = parse(text, "a.toml", {"cluster.devices_per_node=4"}, host).cluster;
  EXPECT_EQ(four.memory_gib, 2.0);
  EXPECT_EQ(four.host_memory_gib, 8.0);
  const ClusterKeys given =
      parse(text, "a.toml", {"cluster.memory_gib=3", "cluster.host_memory_gib=0"}, host).cluster;
  EXPECT_EQ(given.memory_gib, 3.0);
  EXPECT_EQ(given.host_memory_gib, 0.0);
  EXPECT_THROW(parse(text, "a.toml", {"cluster.profile=l4"}, host), Error);
  EXPECT_EQ(parse(text, "a.toml", {"cluster.machine=dgx-h100"}, host).cluster.memory_gib,
            parse(text, "a.toml", {"cluster.machine=dgx-h100"}).cluster.memory_gib);
}

// Biases are a GPT's; a configuration file may stand for the sizes, and the deck remembers which
// keys it gave itself.
TEST(Deck, WhatFollowsFromTheFamily) {
  EXPECT_TRUE(parse(smallest, "a.toml").model.qkv_bias);
  const Deck llama = parse(smallest, "a.toml", {"model.family=llama", "model.qkv_bias=true"});
  EXPECT_TRUE(llama.model.qkv_bias);
  EXPECT_FALSE(llama.model.linear_bias);
  EXPECT_EQ(parse(smallest, "a.toml", {"model.vocab_size=128256"}).model.vocab_size, 128256);

  std::string text = smallest;
  text.replace(text.find("num_layers"), text.find("[training]") - text.find("num_layers"),
               "config = \"config.json\"\nseq_len = 32\n");
  const Deck deck = parse(text, "a.toml");
  EXPECT_EQ(deck.model.num_layers, 0);
  EXPECT_EQ(deck.model.given, (std::vector<std::string>{"config", "seq_len"}));
  for (const std::string key : {"num_layers", "hidden_size", "num_heads", "seq_len", "vocab_size"})
    EXPECT_EQ(refused(text, {"model." + key + "=0"}),
              "--set model." + key + "=0: 'model." + key + "' must be at least 1, found 0");
}

TEST(Deck, OverridesApplyInOrder) {
  const Deck deck = parse(smallest, "a.toml",
                          {"training.steps=3", "training.steps=4", "training.optimizer.lr=1e-2",
                           "search.dp=[2]", "output.directory=runs/b"});
  EXPECT_EQ(deck.training.steps, 4);
  EXPECT_EQ(deck.training.optimizer.lr, 1e-2);
  EXPECT_EQ(deck.search.dp, (std::vector<int>{2}));
  EXPECT_EQ(deck.output.directory, "runs/b");
}

TEST(Deck, AStringThatTomlReadsAsSomethingElseIsToldItsQuotes) {
  for (const char* value : {"2024", "1.5", "true", "2024-11-28"}) {
    const std::string said = refused(smallest, {fmt::format("output.directory={}", value)});
    EXPECT_NE(said.find(fmt::format("Write --set 'output.directory=\"{}\"'", value)), said.npos)
        << said;
    EXPECT_EQ(
        parse(smallest, "a.toml", {fmt::format("output.directory=\"{}\"", value)}).output.directory,
        value);
  }
  EXPECT_NE(
      refused(smallest + "[output]\ndirectory = 2024\n").find("found 2024. Write it in quotes"),
      std::string::npos);
  EXPECT_EQ(refused(smallest, {"output.directory=[1]"}).find("quotes"), std::string::npos);
}

// A folder "~" would be made in the working directory.
TEST(Deck, PathsThatOnlyAShellExpandsAreRefused) {
  const test::OwnFolder folder;
  const std::string file = folder / "a.toml";
  std::ofstream(file) << smallest + "[output]\ndirectory = \"~/run\"\n";
  const std::string said = test::refusal([&] { load(file); });
  EXPECT_TRUE(said.starts_with(file + ":19:13: 'output.directory' has a word")) << said;
  std::ofstream(file) << smallest + "[output]\ndirectory = \"a~/5$/$1\"\n";
  EXPECT_EQ(load(file).output.directory, "a~/5$/$1");
  for (const char* line :
       {"model.weights=~", "data.valid=/data/$USER/valid.tok", "data.train=${HOME}/train.tok",
        "data.files=[\"a.tok\", \"~me/b.tok\"]", "cluster.scratch=$TMPDIR",
        "cluster.profile=~/p.toml", "model.config=/x/$_y/config.json"})
    EXPECT_NE(refused(smallest, {line}).find("only a shell expands"), std::string::npos) << line;
  // The deck of a run that was begun by an older version.
  EXPECT_EQ(parse(smallest + "[output]\ndirectory = \"~/run\"\n", "checkpoint").output.directory,
            "~/run");
}

TEST(Deck, KeysAreCheckedTogether) {
  EXPECT_EQ(refused(smallest, {"model.num_heads=5"}),
            "--set model.num_heads=5: 'model.num_heads' must divide hidden_size = 64 unless "
            "head_dim is given, found 5");
  EXPECT_EQ(parse(smallest, "a.toml", {"model.num_heads=5", "model.head_dim=8"}).model.num_heads,
            5);
  EXPECT_EQ(refused(smallest, {"model.hidden_size=30"}),
            "a.toml:4:15: 'model.num_heads' must divide hidden_size = 30 unless head_dim is given, "
            "found 4");
  EXPECT_EQ(refused(smallest, {"model.vocab_size=0"}),
            "--set model.vocab_size=0: 'model.vocab_size' must be at least 1, found 0");
  EXPECT_EQ(
      refused(smallest, {"training.optimizer.warmup_steps=11"}),
      "--set training.optimizer.warmup_steps=11: 'training.optimizer.warmup_steps' must be at "
      "most steps = 10 less decay_steps = 0, found 11");
  for (const char* length : {"training.steps=0", "training.tokens=1e6", "training.epochs=2"})
    EXPECT_NE(refused(smallest, {length}).find("one of steps, tokens and epochs must be above 0"),
              std::string::npos)
        << length;
  EXPECT_EQ(parse(smallest, "a.toml", {"training.steps=0", "training.epochs=0.5"}).training.epochs,
            0.5);
  EXPECT_NE(refused(smallest, {"training.optimizer.decay_steps=2"}).find("schedule = \"wsd\""),
            std::string::npos);
  EXPECT_NE(refused(smallest, {"training.optimizer.beta1=1"}).find("must be below 1"),
            std::string::npos);
  EXPECT_NE(refused(smallest, {"training.optimizer.beta2=1"}).find("must be below 1"),
            std::string::npos);
  EXPECT_NE(refused(smallest, {"training.samples.every=5"})
                .find("'training.samples.prompts' must name a file of prompts"),
            std::string::npos);
  EXPECT_NE(refused(smallest + "[training.samples]\nprompts = \"a\"\nevery = -1\n")
                .find("a.toml:20:9: 'training.samples.every' must be an integer >= 0 (steps)"),
            std::string::npos);
  EXPECT_NE(refused(smallest, {"data.train="}).find("must name a file"), std::string::npos);
  EXPECT_NE(refused(smallest, {"data.files=[\"a.tok\"]"}).find("left out beside data.files"),
            std::string::npos);
  EXPECT_NE(refused(smallest, {"data.train=", "data.files=[\"a.tok\"]", "data.mixture=[1.0, 2.0]"})
                .find("must be one a file, found 2 for 1"),
            std::string::npos);
  const Deck mixed = parse(smallest, "a.toml",
                           {"data.train=", "data.files=[\"a.tok\", \"b.tok\"]",
                            "data.mixture=[0.7, 0.3]", "data.documents=isolate"});
  EXPECT_EQ(mixed.data.files, (std::vector<std::string>{"a.tok", "b.tok"}));
  EXPECT_TRUE(mixed.model.isolated);
  EXPECT_NE(refused(smallest, {"output.directory="}).find("must name a directory"),
            std::string::npos);
}

// What does not execute can be asked for only where it is counted as Mist does.
TEST(Deck, MistsKeysNeedMistsConventions) {
  for (const char* key :
       {"search.recompute_all=true", "analysis.ends=dp", "analysis.plain_attention=true"}) {
    EXPECT_NE(refused(smallest, {key}).find("--set"), std::string::npos) << key;
    EXPECT_NO_THROW(
        parse(smallest, "a.toml", {key, "analysis.conventions=mist", "cluster.profile=l4"}))
        << key;
  }
  EXPECT_NE(refused(smallest, {"analysis.conventions=mist"}).find("cluster.profile"),
            std::string::npos);
}

TEST(Deck, BoundsHold) {
  for (const char* wrong :
       {"model.vocab_size=2147483648", "model.family=bert", "model.dropout=0.1",
        "training.precision=fp4", "training.optimizer.name=adam",
        "training.optimizer.min_lr_ratio=1.5", "training.optimizer.beta1=-0.1",
        "training.optimizer.lr=-1", "search.zero_levels=[4]", "search.stages=[0]", "search.dp=[-1]",
        "search.optim_offload=[1.5]", "search.act_offload=[-0.5]", "cluster.memory_gib=0",
        "cluster.nodes=0", "training.seed=-1", "data.order=random", "output.log_every=0",
        "training.steps=ten"})
    EXPECT_TRUE(refused(smallest, {wrong}).starts_with(std::string("--set ") + wrong)) << wrong;
}

TEST(Deck, TheResolvedDeckReadsBackTheSame) {
  const Deck deck =
      parse(smallest, "a.toml",
            {"search.act_offload=[0.1, 0.30000000000000004]", "data.valid=\"a \\\"b\\\"\""});
  for (const bool with_help : {false, true}) {
    const std::string text = schema().write(deck, with_help);
    const Deck back = parse(text, "b.toml");
    EXPECT_EQ(schema().write(back, with_help), text);
    EXPECT_EQ(back.search.act_offload, deck.search.act_offload);
    EXPECT_EQ(back.data.valid, "a \"b\"");
    EXPECT_EQ(back.model.ffn_size, 256);
  }
}

TEST(Deck, EveryKeySaysWhatItIs) {
  const std::string text = schema().write(Deck{}, true);
  std::istringstream lines(text);
  std::size_t keys = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.empty() || line.find("  # ") != std::string::npos) << line;
    keys += line.find(" = ") != std::string::npos;
  }
  EXPECT_GE(schema().help().size(), keys);  // a table that may be left out is not written
}

// `machine` and `nodes` are enough; what is given wins.
TEST(Deck, AMachineByNameGivesWhatItIs) {
  const std::string named = smallest.substr(0, smallest.find("[cluster]")) +
                            "[cluster]\nmachine = \"dgx-h100\"\nnodes = 4\n";
  const ClusterKeys cluster = parse(named, "a.toml").cluster;
  const MachineKeys machine = load_machine("dgx-h100");
  EXPECT_EQ(cluster.nodes, 4);
  EXPECT_EQ(cluster.devices_per_node, 8);
  EXPECT_EQ(cluster.memory_gib, machine.memory_gib);
  EXPECT_EQ(cluster.host_memory_gib, machine.host_memory_gib);
  EXPECT_EQ(parse(named, "a.toml", {"cluster.memory_gib=60"}).cluster.memory_gib, 60);
  EXPECT_EQ(parse(named + "devices_per_node = 4\n", "a.toml").cluster.devices_per_node, 4);
  EXPECT_NE(refused(named, {"cluster.machine=dgx-h10"}).find("did you mean 'dgx-h100'?"),
            std::string::npos);
  EXPECT_NE(refused(smallest, {"cluster.network=8x400g"}).find("no machine"), std::string::npos);
}

TEST(Deck, GroupsOfParametersAreReadAndWrittenBack) {
  const std::string text = smallest + R"(
[[training.optimizer.groups]]
pattern  = "layers.*.bias"
lr_scale = 0.5

[[training.optimizer.groups]]
pattern      = "embedding.*"
weight_decay = 0.0

[[training.optimizer.groups]]
pattern = "layers.0.*"
frozen  = true
)";
  const Deck deck = parse(text, "a.toml", {"training.optimizer.groups.0.lr_scale=0.25"});
  const auto& groups = deck.training.optimizer.groups;
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].pattern, "layers.*.bias");
  EXPECT_EQ(groups[0].lr_scale, 0.25);
  EXPECT_LT(groups[0].weight_decay, 0.0) << "that of all others";
  EXPECT_EQ(groups[1].lr_scale, 1.0);
  EXPECT_EQ(groups[1].weight_decay, 0.0);
  EXPECT_FALSE(groups[1].frozen);
  EXPECT_TRUE(groups[2].frozen);
  EXPECT_EQ(deck.model.groups.size(), 3u) << "which the model asks for what is frozen";
  const std::string written = schema().write(deck);
  EXPECT_EQ(schema().write(parse(written, "b.toml")), written);
  EXPECT_NE(refused(text, {"training.optimizer.groups.1.weight_decay=-2"}).find("weight_decay"),
            std::string::npos);
  EXPECT_NE(refused(text, {"training.optimizer.groups.0.frozen=true"})
                .find("what is frozen has neither lr_scale nor weight_decay, but 'layers.*.bias'"),
            std::string::npos);
}

TEST(Deck, GroupsMayBeMachines) {
  const std::string head = smallest.substr(0, smallest.find("[cluster]"));
  const std::string groups =
      "[[cluster.groups]]\nname = \"a\"\nmachine = \"dgx-h100\"\nnodes = 2\n"
      "[[cluster.groups]]\nname = \"b\"\nmachine = \"dgx-a100-80\"\n";
  const auto read = parse(head + groups, "a.toml").cluster.all_groups();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1].devices_per_node, 8);
  EXPECT_EQ(read[0].memory_gib, load_machine("dgx-h100").memory_gib);
  EXPECT_NE(
      refused(head + "[cluster]\nmachine = \"dgx-h100\"\n" + groups).find("belongs into each"),
      std::string::npos);
}

const std::string grouped = smallest.substr(0, smallest.find("[cluster]")) + R"([[cluster.groups]]
name             = "fast"
devices_per_node = 8
memory_gib       = 40
host_memory_gib  = 200
profile          = "a100-40"

[[cluster.groups]]
name             = "slow"
nodes            = 2
devices_per_node = 4
memory_gib       = 22
host_memory_gib  = 100
profile          = "l4"

[[cluster.links]]
between   = ["fast", "slow"]
gib_per_s = 1.5
latency_s = 2e-5
)";

TEST(Deck, GroupsAreReadAndWrittenBack) {
  const Deck deck =
      parse(grouped, "a.toml", {"cluster.groups.slow.nodes=3", "cluster.groups.0.memory_gib=36"});
  ASSERT_EQ(deck.cluster.all_groups().size(), 2u);
  EXPECT_EQ(deck.cluster.groups[0].memory_gib, 36);
  EXPECT_EQ(deck.cluster.groups[1].nodes, 3);
  EXPECT_EQ(deck.cluster.links[0].latency_s, 2e-5);
  const std::string text = schema().write(deck);
  EXPECT_EQ(schema().write(parse(text, "b.toml")), text);
  // Without groups there is one, of the keys of [cluster].
  const Deck one = parse(smallest, "a.toml");
  ASSERT_EQ(one.cluster.all_groups().size(), 1u);
  EXPECT_EQ(one.cluster.all_groups()[0].memory_gib, 0.5);
  EXPECT_EQ(parse(grouped, "a.toml", {}, {.device_gib = 79.0}).cluster.groups[0].memory_gib, 40);
}

TEST(Deck, GroupsThatCannotBeAreNamedWithTheirLine) {
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text = grouped;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const auto line_of = [](const std::string& text, const std::string& what) {
    const auto lines = std::ranges::count(text.substr(0, text.find(what)), '\n') + 1;
    return "a.toml:" + std::to_string(lines) + ":";
  };
  const auto expect = [&](const std::string& text, const std::string& at, const std::string& says) {
    const std::string message = refused(text);
    EXPECT_TRUE(message.starts_with(line_of(text, at))) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
  };
  expect(changed("name             = \"slow\"", "name = \"fast\""), "name = \"fast\"",
         "must differ from other groups' names");
  expect(changed("profile          = \"l4\"", ""),
         "[[cluster.groups]]\nname             = \"slow\"", "needs a profile");
  expect(changed("[\"fast\", \"slow\"]", "[\"fast\", \"other\"]"), "[\"fast\", \"other\"]",
         "names 'other', which is no group");
  expect(changed("[\"fast\", \"slow\"]", "[\"fast\"]"), "[\"fast\"]", "must name two groups");
  expect(changed("memory_gib       = 22\n", ""), "[[cluster.groups]]\nname             = \"slow\"",
         "missing key 'memory_gib'");
  expect(changed("gib_per_s = 1.5", "gib_per_s = 0"), "gib_per_s = 0",
         "must be a number in 1e-06..1000000");
  expect(changed("[[cluster.groups]]", "[cluster]\nmemory_gib = 3\n[[cluster.groups]]"),
         "memory_gib = 3", "belongs into each of [[cluster.groups]]");
  EXPECT_NE(refused(grouped, {"analysis.conventions=mist"}).find("must be one group"),
            std::string::npos);
  EXPECT_NE(refused(grouped, {"cluster.groups.other.nodes=3"}).find("no"), std::string::npos);
}

TEST(Deck, TheQuickStartIsValid) {
  const auto inputs = std::filesystem::path(BRUME_REGRESSION_DIR) / "../inputs";
  const Deck deck = load((inputs / "quickstart.toml").string(), {"training.steps=20"});
  EXPECT_EQ(deck.training.steps, 20);
  EXPECT_EQ(deck.model.ffn_size, 768);
}

/// Changes, drops, doubles or moves a few bytes.
std::string mutated(std::string text, std::mt19937& random) {
  static const std::string special = "[]{}=\"'#.,\n\\\r\t_-+eEiftnxob0:TZ\xff\xc3\x80";
  for (unsigned n = 1 + random() % 4; n > 0 && !text.empty(); --n) {
    const std::size_t at = random() % text.size();
    switch (random() % 5) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text[at] = special[random() % special.size()]; break;
      case 2: text.erase(at, 1 + random() % 8); break;
      case 3: text.insert(at, 1, special[random() % special.size()]); break;
      default: text.insert(at, text.substr(random() % text.size(), random() % 24)); break;
    }
  }
  return text;
}

TEST(Deck, NoDamagedTextDoesMoreThanFail) {
  std::mt19937 random(20240229);
  const std::string whole = schema().write(parse(smallest, "a.toml"), true);
  int refusals = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::string text = mutated(round % 2 == 0 ? whole : smallest, random);
    try {
      const Deck deck = parse(text, "a.toml");
      EXPECT_NO_THROW(parse(schema().write(deck), "b.toml")) << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 1000);
  EXPECT_LT(refusals, 5900);
}

}  // namespace
}  // namespace brume::deck
