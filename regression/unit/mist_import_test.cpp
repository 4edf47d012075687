#include "interop/mist.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "refusal.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using test::refusal;

/// A file that goes with the test.
class Written {
 public:
  explicit Written(const std::string& text)
      : path_(fs::temp_directory_path() / ("mist_import." + std::to_string(::getpid()))) {
    std::ofstream(path_) << text;
  }
  ~Written() { fs::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// --- operator times -----------------------------------------------------------------------------

const std::string product = R"({"op": "mist.modules.fused_dense.fused_dense_func", "source": "a",
  "args": {"x": {"shape": [2, 32, 64]}, "weight": {"shape": [192, 64]},
           "process_group": {"process_group_world_size": 4, "rank": 0}},
  "fwd_mean_s": 1e-3, "bwd_mean_s": 2e-3})";

MistProfile profile_of(const std::string& entries, const std::string& database = "",
                       const std::string& machine = "") {
  const Written file("{\"entries\": [" + entries + "]}");
  return read_mist_profile(file.path(), database, machine);
}

TEST(MistProfile, AProduct) {
  const hardware::Profile profile = profile_of(product).profile;
  ASSERT_EQ(profile.operators.size(), 1u);
  const hardware::OperatorRow& row = profile.operators[0];
  EXPECT_EQ(row.kind, "matmul");
  EXPECT_EQ(row.dims, (std::vector<std::int64_t>{64, 192, 64}));
  EXPECT_EQ(row.group, 4);
  EXPECT_EQ(row.forward_s, 1e-3);
  EXPECT_EQ(row.backward_s, 2e-3);
  EXPECT_DOUBLE_EQ(profile.flops_per_s, 2.0 * 64 * 192 * 64 / 1e-3);
}

TEST(MistProfile, WhatIsLeftOut) {
  const MistProfile read =
      profile_of(product + "," + product + "," + replaced(product, "1e-3", "1e5") + "," +
                 replaced(product, "fused_dense_func", "new_func"));
  EXPECT_EQ(read.profile.operators.size(), 1u);
  EXPECT_EQ(read.repeated, 1);
  EXPECT_EQ(read.failed, 1);
  EXPECT_EQ(read.unknown, (std::vector<std::string>{"mist.modules.fused_dense.new_func"}));
}

TEST(MistProfile, OneDatabaseAtATime) {
  const std::string two = product + "," + replaced(product, R"("a")", R"("b")");
  EXPECT_NE(refusal([&] { profile_of(two); }).find("--database: a, b"), std::string::npos);
  EXPECT_EQ(profile_of(two, "b").profile.operators.size(), 1u);
  EXPECT_NE(refusal([&] { profile_of(two, "c"); }).find("database 'c'"), std::string::npos);
}

TEST(MistProfile, TakesATemplate) {
  std::string links = "4.5, 0, 3.0, 1e-4", slowdowns = "1.5";
  for (int i = 2; i < 16; ++i) links += ", 4.5, 0";
  for (int i = 1; i < 28; ++i) slowdowns += ", 1.5";
  const auto read = [&](const std::string& name, const std::string& count) {
    const Written file("{\"entries\": [" + product +
                       "], \"hardware_specs\": {\"templates\": {\"l4\": {" +
                       "\"num_gpus_per_node\": " + count + ", \"gpu_gpu_comm_params\": [" + links +
                       "], \"cpu_gpu_comm_params\": [5.5, 0], \"gpu_cpu_comm_params\": [6.5, 0], " +
                       "\"interference_model_params\": [" + slowdowns + "]}}}}");
    return read_mist_profile(file.path(), "", name).profile;
  };
  const hardware::Profile profile = read("l4", "8");
  EXPECT_EQ(profile.key.ranks_per_node, 8);
  EXPECT_EQ(profile.transfers.size(), 3u);
  EXPECT_EQ(profile.slowdowns, std::vector<double>(28, 1.5));
  EXPECT_NE(refusal([&] { read("l5", "8"); }).find("no hardware template 'l5', only l4"),
            std::string::npos);
  EXPECT_NE(refusal([&] { read("l4", "\"8\""); }).find("'num_gpus_per_node'"), std::string::npos);
}

TEST(MistProfile, RefusesWhatIsNone) {
  for (const auto& [from, to, says] : std::vector<std::array<std::string, 3>>{
           {"[2, 32, 64]", "[2, -1, 64]", "'x' must be an integer from 0"},
           {"[2, 32, 64]", "[2, 3.5, 64]", "'x' must be an integer from 0"},
           {"[2, 32, 64]", "\"2x32\"", "dimensions"},
           {"[2, 32, 64]", "[]", "'x' has no dimension"},
           {"[2, 32, 64]", "[1099511627776, 1099511627776, 64]", "too large"},
           {"[192, 64]", "[192]", "the shape of 'weight' has a wrong number"},
           {"\"weight\"", "\"wait\"", "missing key 'weight'"},
           {"1e-3", "-1e-3", "'fwd_mean_s' must be at least 0"},
           {"1e-3", "\"fast\"", "'fwd_mean_s' must be a number"},
           {"\"bwd_mean_s\"", "\"bwd\"", "missing key 'bwd_mean_s'"},
           {"world_size\": 4", "world_size\": 1e9", "must be an integer"},
           {"\"args\": {", "\"args\": [], \"x\": {", "expected an object"},
           {"{\"op\"", "{\"op\": 3, \"op2\"", "'op' must be a string"},
           {"{\"op\"", "{{\"op\"", "not JSON"}}) {
    const std::string said = refusal([&] { profile_of(replaced(product, from, to)); });
    EXPECT_NE(said.find(says), std::string::npos) << said << " lacks " << says;
  }
  EXPECT_NE(refusal([] { profile_of(""); }).find("'entries' must be a list"), std::string::npos);
  EXPECT_NE(refusal([] { profile_of(product, "", "l4"); }).find("hardware_specs"),
            std::string::npos);
  EXPECT_NE(refusal([] { read_mist_profile("nowhere.json", "", ""); }).find("nowhere.json"),
            std::string::npos);
}

// --- machines -----------------------------------------------------------------------------------

MistMachine some_machine() {
  MistMachine machine{.nodes = 1,
                      .devices_per_node = 4,
                      .links = {},
                      .copy_in = {8, 1e-3},
                      .copy_out = {9, 2e-3},
                      .slowdowns = std::vector<double>(28, 1.0)};
  for (int i = 0; i < 16; ++i) machine.links.insert(machine.links.end(), {4.5, 0.0});
  machine.links[2] = 3.0;
  machine.links[3] = 1e-4;
  machine.slowdowns[16] = 1.5;   // compute beside the network
  machine.slowdowns[27] = 1.25;  // copy out beside copy in
  return machine;
}

// Over two ranks 1 GiB moves as a half: 1 / 3 / 2 s; all-reduce takes 2.1 times as long.
TEST(MistMachine, BecomesTransfers) {
  hardware::Profile profile;
  set_machine(profile, some_machine(), "here");
  EXPECT_EQ(profile.transfers.size(), 3u);  // what nobody measured stays out
  const double gib = 1024.0 * 1024.0 * 1024.0;
  EXPECT_DOUBLE_EQ(hardware::link_time(profile, hardware::LinkKind::all_reduce, 1, 2, gib),
                   2.1 * (1.0 / 6 + 1e-4));
  EXPECT_DOUBLE_EQ(hardware::link_time(profile, hardware::LinkKind::send, 1, 2, gib),
                   1.0 / 3 + 1e-4);
  EXPECT_EQ(hardware::link_time(profile, hardware::LinkKind::all_gather, 1, 1, gib), 0.0);
  EXPECT_DOUBLE_EQ(hardware::copy_time(profile, hardware::CopyKind::copy_out, gib), 1.0 / 9 + 2e-3);
  EXPECT_EQ(profile.interference_model().added[0][1], 0.5);
  EXPECT_EQ(profile.interference_model().added[3][2], 0.25);
}

TEST(MistMachine, RefusesWrongTables) {
  const auto refused = [](auto spoil) {
    MistMachine machine = some_machine();
    spoil(machine);
    hardware::Profile profile;
    return refusal([&] { set_machine(profile, machine, "here"); });
  };
  EXPECT_EQ(refused([](MistMachine& m) { m.links.pop_back(); }),
            "here: 'gpu_gpu_comm_params' must have 32 numbers, found 31");
  EXPECT_NE(refused([](MistMachine& m) { m.copy_in[0] = 0; }).find("above 0"), std::string::npos);
  EXPECT_NE(refused([](MistMachine& m) { m.copy_out[1] = -1; }).find("at least 0"),
            std::string::npos);
  EXPECT_NE(refused([](MistMachine& m) { m.slowdowns[3] = 0; }).find("0.001"), std::string::npos);
}

// --- configurations -----------------------------------------------------------------------------

std::string quick_test() {
  std::ifstream file(BRUME_REGRESSION_DIR "/decks/mist-small-base.yaml");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

MistConfiguration configuration(const std::string& text) {
  const Written file(text);
  return read_mist_configuration(file.path());
}

TEST(MistConfiguration, TheQuickTest) {
  const MistConfiguration read = configuration(quick_test());
  EXPECT_EQ(read.deck.model.family, "gpt");
  EXPECT_EQ(read.deck.model.num_layers, 24);
  EXPECT_EQ(read.deck.training.global_batch, 32);
  EXPECT_EQ(read.deck.cluster.memory_gib, 22.488);
  EXPECT_EQ(read.deck.search.tp, std::vector<int>{1});
  EXPECT_EQ(read.deck.search.zero_levels, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(read.deck.search.weight_offload.size(), 6u);
  EXPECT_EQ(read.deck.search.act_offload.size(), 8u);
  EXPECT_FALSE(read.deck.search.recompute_all);
  EXPECT_TRUE(read.deck.analysis.plain_attention);
  EXPECT_EQ(read.deck.analysis.ends, "dp");
  ASSERT_TRUE(read.plan.has_value());
  EXPECT_EQ(read.plan->microbatches, 2);
  EXPECT_EQ(read.plan->stages[0].zero_level, 1);
  EXPECT_EQ(read.plan->stages[0].ckpt_layers, 24);
  EXPECT_TRUE(read.notes.empty());
}

TEST(MistConfiguration, SearchSpace) {
  std::string text = quick_test();
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"zero_2_and_3_enabled: true", "zero_2_and_3_enabled: false"},
           {"enabled: ftrue", "enabled: false"},
           {"state_offloading_enabled: true", "state_offloading_enabled: no"},
           {"disable_tp_tuning: true", "fixed_ao_ratio: 0.5"},
           {"strategy:\n  enabled: true", "strategy:\n  enabled: false"},
           {"uniform-device-pp-mip", "uniform-pp"}})
    text = replaced(text, from, to);
  const MistConfiguration read = configuration(text);
  EXPECT_EQ(read.deck.search.zero_levels, std::vector<int>{1});
  EXPECT_TRUE(read.deck.search.recompute_all);
  EXPECT_EQ(read.deck.search.optim_offload, std::vector<double>{0.0});
  EXPECT_EQ(read.deck.search.act_offload, std::vector<double>{0.5});
  EXPECT_TRUE(read.deck.search.tp.empty());
  EXPECT_FALSE(read.plan.has_value());
  EXPECT_EQ(read.notes.size(), 1u);
}

TEST(MistConfiguration, JsonWithFlagsAsWords) {
  const MistConfiguration read = configuration(
      replaced(quick_test(), "[[8, 2, 1, 0, 0, 1,", "[[8.0, 2.0, 1, false, true, true,"));
  EXPECT_EQ(read.plan->stages[0].zero_level, 2);
}

TEST(MistConfiguration, RefusesWhatMistWouldNotCount) {
  for (const auto& [from, to, says] : std::vector<std::array<std::string, 3>>{
           {"gpt2-1.3b", "bert-1.3b", "'model.name' must begin with gpt"},
           {"hidden_size: 2048", "hidden_size: two", "'model.hidden_size' must be a number"},
           {"hidden_size: 2048", "hidden_size: 2048.5", "must be an integer"},
           {"hidden_size: 2048", "hidden_size: ${size}", "give the resolved configuration"},
           {"hidden_size: 2048", "hidden_size: .nan", "must be from 1"},
           {"  hidden_size: 2048\n", "", "'model.hidden_size' is missing"},
           {"hidden_size: 2048", "hidden_size: 2048\n  hidden_size: 2048", "twice"},
           {"num_heads_kv: null", "num_heads_kv: 4", "'model.num_heads_kv' must equal"},
           {"mlp_type: mlp", "mlp_type: gated_mlp", "'model.mlp_type' must be mlp"},
           {"tie_word_embeddings: false", "tie_word_embeddings: true", "what is counted"},
           {"training: {", "defaults: [model]\ntraining: {", "Hydra"},
           {"num_hidden_layers: 24", "num_hidden_layers: 25", "the model has 25"},
           {"layer_partitions: [24]", "layer_partitions: [12, 12]", "one of each a stage"},
           {"checkpointing: [24]", "checkpointing: [25]", "must be from 0 to 24"},
           {"[[1, 2]]", "[[1]]", "nodes and devices on each"},
           {"[[8, 2, 1, 0, 0, 1, 0.0,", "[[8, 2, 1, 0, 0, 1,", "must have 10 numbers"},
           {"[[8, 2, 1, 0, 0, 1,", "[[8, 2, 1, 1, 0, 1,", "shards weights without gradients"},
           {"[[8, 2, 1, 0, 0, 1, 0.0,", "[[8, 2, 1, 0, 0, 1, 1.5,", "must be from 0 to 1"},
           {"[[8, 2, 1,", "[[4, 2, 1,", "must be global_batch = 32"},
           {"array: [8, 2, 1,", "array: [8, 1, 2,", "must spread embedding and head"},
           {"memory_capacity: 22.488", "memory_capacity: 0", "must be from 0.001"},
           {"training: {", "training: {[", "not YAML"}}) {
    const std::string said = refusal([&] { configuration(replaced(quick_test(), from, to)); });
    EXPECT_NE(said.find(says), std::string::npos) << said << " lacks " << says;
  }
  EXPECT_NE(refusal([] { configuration("[1, 2]"); }).find("must be a table"), std::string::npos);
  EXPECT_NE(refusal([] { configuration(""); }).find("must be a table"), std::string::npos);
  EXPECT_NE(refusal([] { configuration(std::string(100000, '[')); }).find("not YAML"),
            std::string::npos);
}

}  // namespace
}  // namespace brume::interop
