#include "io/trace.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace brume::io {
namespace {

using nlohmann::json;
using schedule::Activity, schedule::Channel;

RankTimeline timeline(int rank) {
  return {.rank = rank,
          .tasks = {{.label = "forward \"layers.0\" \\ mlp"},
                    {.label = "all_gather",
                     .channel = Channel::collective_dp,
                     .activity = Activity::collective_dp,
                     .buffer = "layers.0.weights",
                     .bytes = 4096},
                    {.label = "skipped", .activity = Activity::updating}},
          .times = {{0.0, 1.0 / 3.0}, {0.25, 0.5}, {0.5, 0.5}}};
}

json written(const std::vector<RankTimeline>& measured,
             const std::vector<RankTimeline>& predicted) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("brume-trace-" + std::to_string(::getpid()) + ".json");
  write_trace(path, measured, predicted);
  std::ifstream in(path);
  json trace = json::parse(in);
  std::filesystem::remove(path);
  return trace;
}

// 3 measured ranks and 2 predicted ones are 5 processes, each with a named row per channel.
TEST(Trace, HasOneRowPerRankAndChannel) {
  const json trace = written({timeline(0), timeline(1), timeline(2)}, {timeline(0), timeline(1)});
  std::set<std::string> processes;
  std::set<std::pair<int, std::string>> rows;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name") processes.insert(event.at("args").at("name"));
    if (event.at("name") != "thread_name") continue;
    EXPECT_TRUE(rows.emplace(event.at("pid"), event.at("args").at("name")).second);
  }
  EXPECT_EQ(processes,
            (std::set<std::string>{"measured rank 0", "measured rank 1", "measured rank 2",
                                   "predicted rank 0", "predicted rank 1"}));
  EXPECT_EQ(rows.size(), std::size_t(5 * schedule::num_channels));
}

// A task begins where the one before it ends, to the last digit.
TEST(Trace, RoundingLetsNoTasksOverlap) {
  RankTimeline row{.rank = 0, .tasks = {}, .times = {}};
  double at_s = 1e-7;
  for (int i = 0; i < 1000; ++i) {
    const double end_s = at_s + 1e-6 / 3.0 + 1e-10 * i;
    row.tasks.push_back({.label = "task", .channel = Channel::h2d, .activity = Activity::copying});
    row.times.push_back({at_s, end_s});
    at_s = end_s;
  }
  std::int64_t end_ns = -1;
  const auto ns = [](const json& us) { return std::llround(us.get<double>() * 1e3); };
  const json trace = written({row}, {});
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    if (end_ns >= 0) {
      EXPECT_EQ(ns(event.at("ts")), end_ns);
    }
    end_ns = ns(event.at("ts")) + ns(event.at("dur"));
  }
  EXPECT_NEAR(double(end_ns), at_s * 1e9, 0.6);
}

TEST(Trace, EventsAreTasksInMicroseconds) {
  const json trace = written({timeline(4)}, {});
  std::vector<json> tasks;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") tasks.push_back(event);
  ASSERT_EQ(tasks.size(), 2u);  // the third one did not run
  EXPECT_EQ(tasks[0].at("name"), timeline(4).tasks[0].label);
  EXPECT_EQ(tasks[0].at("tid"), int(Channel::compute));
  EXPECT_NEAR(tasks[0].at("dur"), 1e6 / 3.0, 1e-3);
  EXPECT_EQ(tasks[1].at("tid"), int(Channel::collective_dp));
  EXPECT_NEAR(tasks[1].at("ts"), 250'000.0, 1e-3);
  EXPECT_EQ(tasks[0].at("args"), (json{{"activity", "computing"}}));
  EXPECT_EQ(tasks[1].at("args"),
            (json{{"activity", "dp"}, {"of", "layers.0.weights"}, {"bytes", 4096}}));
}

TEST(Trace, WithoutTimelinesIsStillJson) { EXPECT_TRUE(written({}, {}).at("traceEvents").empty()); }

TEST(Trace, FileThatCannotBeWrittenIsAStorageError) {
  try {
    write_trace("/proc/no-such-directory/trace.json", {}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::storage);
  }
}

TEST(Trace, PackedTimelineComesBackExactly) {
  const RankTimeline before = timeline(7);
  const RankTimeline after = unpack(pack(before));
  EXPECT_EQ(after.rank, before.rank);
  EXPECT_EQ(after.tasks, before.tasks);
  for (std::size_t i = 0; i < before.times.size(); ++i) {
    EXPECT_EQ(after.times[i].start_s, before.times[i].start_s);
    EXPECT_EQ(after.times[i].end_s, before.times[i].end_s);
  }
}

TEST(Trace, DamagedTimelineIsRefused) {
  EXPECT_THROW(unpack("{"), Error);
  EXPECT_THROW(unpack(R"({"rank":0,"tasks":[["a",99,0,"",0,0,1]]})"), Error);
  EXPECT_THROW(unpack(R"({"rank":0,"tasks":[["a",0,99,"",0,0,1]]})"), Error);
  EXPECT_THROW(unpack(R"({"rank":0,"tasks":[["a",0]]})"), Error);
}

}  // namespace
}  // namespace brume::io
