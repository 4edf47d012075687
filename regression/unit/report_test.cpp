#include "report/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "../../src/report/html.hpp"
#include "../../src/report/summary.hpp"
#include "../../src/report/svg.hpp"
#include "base/error.hpp"
#include "io/metrics_log.hpp"
#include "own_folder.hpp"
#include "report/plan_page.hpp"

namespace brume::report {
namespace {

namespace fs = std::filesystem;
using schedule::Channel;

/// Two stages of two ranks each.
plan::Plan two_stages() {
  plan::Stage first{.first_layer = 0,
                    .layers = 3,
                    .nodes = 1,
                    .devices_per_node = 2,
                    .microbatch = 1,
                    .dp = 2,
                    .tp = 1};
  plan::Stage second = first;
  second.first_layer = 3;
  second.layers = 1;
  return {.global_batch = 8, .microbatches = 4, .stages = {first, second}};
}

io::RankTimeline timeline(int rank, const std::vector<std::pair<Channel, schedule::Span>>& tasks) {
  io::RankTimeline timeline{.rank = rank, .tasks = {}, .times = {}};
  for (const auto& [channel, span] : tasks) {
    timeline.tasks.push_back(
        {.label = "task", .channel = channel, .activity = schedule::activity(channel)});
    timeline.times.push_back(span);
  }
  return timeline;
}

class ReportTest : public ::testing::Test {
 protected:
  fs::path write_run(const std::string& name, int steps, bool trace = true) const {
    const fs::path directory = directory_ / name;
    io::RunDescription d;
    d.deck_text = "title = \"<script>alert(1)</script> & more\"\n";
    d.plan_text = plan::text(two_stages());
    d.version = "1.2.3";
    d.ranks = 4;
    d.predicted_iteration_s = 0.1;
    d.predicted_bytes = d.host_bytes = d.copy_bytes = {1 << 20, 1 << 20, 2 << 20, 2 << 20};
    io::RunFile run(directory, d, 0, 256);
    io::MetricsLog log(directory, d, {}, 0, false);
    for (int i = 0; i < steps; ++i) {
      io::Row row;
      row.metrics.step = i;
      row.metrics.loss = 5.0 / (1.0 + 0.01 * i);
      row.metrics.grad_norm = i == 7 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
      row.metrics.skipped = i == 7;
      row.metrics.lr = 1e-3;
      row.metrics.iteration_s = 0.1;
      row.tokens_per_s = 1e4;
      row.peak_bytes = {1 << 26, 1 << 26, 1 << 27, 1 << 26};
      log.add(row);
      run.add(row);
    }
    run.add(io::EvaluationRow{steps, 2.5});
    run.write();
    if (trace) {
      std::vector<io::RankTimeline> all;
      for (int rank = 0; rank < 4; ++rank)
        all.push_back(timeline(rank, {{Channel::compute, {0.0, rank < 2 ? 0.06 : 0.03}},
                                      {Channel::collective_dp, {0.05, 0.08}},
                                      {Channel::p2p_forward, {0.07, 0.09}},
                                      {Channel::h2d, {0.0, 0.1}}}));
      io::write_trace(directory / "trace.json", all, all);
    }
    return directory;
  }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
};

/// Complains of tags that are not closed in order, as a browser never does.
void expect_well_formed(const std::string& page) {
  const std::set<std::string> alone{"meta", "!DOCTYPE"};
  std::vector<std::string> open;
  for (std::size_t at = 0; (at = page.find('<', at)) != page.npos; ++at) {
    const std::size_t end = page.find('>', at);
    ASSERT_NE(end, page.npos);
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name =
        tag.substr(tag.starts_with('/'), tag.find_first_of(" />", 1) - tag.starts_with('/'));
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ(open.back(), name) << page.substr(at > 200 ? at - 200 : 0, 220);
      open.pop_back();
    } else if (!tag.ends_with('/') && !alone.contains(name)) {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++found;
  return found;
}

TEST_F(ReportTest, ReadsWhatRunsWrite) {
  const fs::path directory = write_run("run", 1000);
  { io::MetricsLog resumed(directory, {}, {}, 600, false); }
  const report::Run run = read_run(directory);
  EXPECT_EQ(run.rows.size(), 1000u);
  EXPECT_EQ(run.rows[600].metrics.step, 600);
  ASSERT_EQ(run.events.size(), 2u);
  EXPECT_EQ(run.events[1], (io::Event{600, io::Event::Kind::start, ""}));
  EXPECT_EQ(run.trace.measured.size(), 4u);
  EXPECT_EQ(run.trace.predicted[3].rank, 3);
  EXPECT_NEAR(run.trace.measured[1].times[0].end_s, 0.06, 1e-9);
  const Summary s = summary(run);
  EXPECT_EQ(s.steps, 1000);
  EXPECT_EQ(s.skipped, 1);
  EXPECT_EQ(s.best_valid_loss, 2.5);
  EXPECT_NEAR(s.last_measured_s, 0.1, 1e-9);
  ASSERT_EQ(s.stages.size(), 2u);
  EXPECT_NEAR(s.stages[1].measured[0], 0.03, 1e-9);
}

TEST_F(ReportTest, WithoutStepsThereAreNoNumbers) {
  report::Run run = read_run(write_run("run", 0, false));
  run.description.ended = "step 1: <loss> nan";
  run.evaluations.clear();
  const std::string said = text({&run, 1}, 200);
  EXPECT_NE(said.find("run: ended: step 1: <loss> nan"), std::string::npos) << said;
  EXPECT_EQ(said.find("0.0"), std::string::npos) << said;
  const std::string page = html({&run, 1});
  expect_well_formed(page);
  EXPECT_EQ(count(page, "Ended: step 1: &lt;loss&gt; nan"), 1u);
}

TEST_F(ReportTest, HintsTellWaitsForDataAndBatchesWithoutTargets) {
  report::Run run = read_run(write_run("run", 20, false));
  for (io::Row& row : run.rows) row.metrics.data_s = 0.4 * row.metrics.iteration_s;
  run.rows[7].metrics.nothing_learned = true;
  const std::vector<std::string> all = hints(run, summary(run));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[0].starts_with("40 % of the time steps wait for their batches")) << all[0];
  EXPECT_TRUE(all[1].starts_with("1 step changed no weight, because no token")) << all[1];
}

TEST_F(ReportTest, HintsNameWhatStandsOut) {
  const report::Run run = read_run(write_run("run", 20));
  const std::vector<std::string> all = hints(run, summary(run));
  ASSERT_EQ(all.size(), 3u);
  const auto said = [&](const std::string& words) {
    return std::ranges::any_of(all, [&](const std::string& h) { return h.find(words) != h.npos; });
  };
  EXPECT_TRUE(said("stage 0 computes 100 % longer than the others (60.00 ms against 30.00 ms)"));
  EXPECT_TRUE(said("collectives of data parallelism: 30 % of the last step on stage 1"));
}

TEST_F(ReportTest, HintsSayWhatThePlannerFound) {
  report::Run run = read_run(write_run("run", 20));
  const auto unequal = [&] {
    for (const std::string& hint : hints(run, summary(run)))
      if (hint.starts_with("stage 0 computes")) return hint.substr(hint.find(": ") + 2);
    return std::string();
  };
  EXPECT_EQ(unequal(), "fewer layers there may be faster");  // nobody asked
  run.changes = std::vector<Change>{{"one layer to stage 0", 0.5, 1}};
  EXPECT_EQ(unequal(), "one layer elsewhere would not be faster");
  run.changes->push_back({"one layer to stage 1", 0.041, 0});
  EXPECT_EQ(unequal(), "one layer to stage 1 would give 4.1 %");
  run.changes->insert(run.changes->begin(), Change{"microbatches twice as large", 0.9, -1});
  EXPECT_EQ(hints(run, summary(run))[0],
            "microbatches twice as large would give 90 %, by the times measured");
}

TEST_F(ReportTest, HintsDoubtAProfileThatPredictsOtherTimes) {
  const report::Run run = read_run(write_run("run", 20));
  Summary s = summary(run);
  const auto doubts = [&](double ratio, const std::string& machine) {
    s.measured_s = ratio * s.predicted_s;
    return std::ranges::any_of(hints(run, s), [&](const std::string& hint) {
      return hint.find("the profile may be of another or a " + machine) != hint.npos;
    });
  };
  EXPECT_TRUE(doubts(3.0, "quieter machine"));
  EXPECT_TRUE(doubts(0.3, "busier machine"));
  EXPECT_FALSE(doubts(0.9, ""));
  EXPECT_FALSE(doubts(1.2, ""));
}

TEST_F(ReportTest, MarksResumesAndFaultsOnTheCurves) {
  const fs::path directory = write_run("run", 1000);
  {
    io::MetricsLog resumed(directory, {}, {}, 600, false);
    resumed.add(io::Event{700, io::Event::Kind::straggler, "rank 3 is <slower>"});
    resumed.rewind(650);
    resumed.add(io::Event{650, io::Event::Kind::rollback, "step 660 was not finite"});
    resumed.add(io::Event{800, io::Event::Kind::straggler, "rank 2 is <slower>"});
  }
  const report::Run run = read_run(directory);
  ASSERT_EQ(run.events.size(), 4u);  // the rollback forgot the first straggler
  const std::string page = html({&run, 1});
  expect_well_formed(page);
  EXPECT_EQ(count(page, "<path class=\"mark\""), 6u);         // the resume, on each chart
  EXPECT_EQ(count(page, "<path class=\"mark fault\""), 18u);  // skipped, rollback, straggler
  for (const char* said :
       {"<title>resumed after step 600</title>", "<title>step 650: step 660 was not finite</title>",
        "<title>step 800: rank 2 is &lt;slower&gt;</title>",
        "<title>step 8: not finite, no update</title>"})
    EXPECT_EQ(count(page, said), 6u) << said;
  EXPECT_NE(text({&run, 1}).find("step 800: rank 2 is <slower>"), std::string::npos);
}

TEST_F(ReportTest, ShowsSamplesByPrompt) {
  const fs::path directory = write_run("run", 1000);
  {
    io::MetricsLog log(directory, {}, {}, 0, false);
    for (std::int64_t step = 10; step <= 200; step += 10)
      for (std::int64_t index = 0; index < 2; ++index)
        log.add(io::SampleRow{.step = step,
                              .index = index,
                              .prompt = index == 0 ? "one" : "<two>",
                              .text = std::to_string(step * 1000),
                              .finish = "length",
                              .tokens = 5});
  }
  const report::Run run = read_run(directory);
  ASSERT_EQ(run.samples.size(), 40u);
  const std::string page = html({&run, 1}), said = text({&run, 1});
  expect_well_formed(page);
  EXPECT_EQ(count(page, "&lt;two&gt;"), 10u);
  EXPECT_EQ(count(said, "\"one\""), 10u);
  EXPECT_EQ(count(said, "\"<two>\""), 10u);
  EXPECT_EQ(count(said, "\"200000\""), 2u);  // the last step
  EXPECT_EQ(count(said, "\"10000\""), 0u);
  EXPECT_LT(said.rfind("\"one\""), said.find("\"<two>\""));
}

TEST_F(ReportTest, APageHasAllPicturesAndNothingFromElsewhere) {
  const fs::path one = write_run("run", 500), two = write_run("other <b>", 300, false);
  const std::vector<report::Run> runs{read_run(one), read_run(two)};
  for (const std::size_t num_runs : {1, 2}) {
    const std::string page = html(std::span(runs).first(num_runs));
    expect_well_formed(page);
    EXPECT_EQ(count(page, "<figure>"), 6u);
    EXPECT_EQ(count(page, "<svg class=\"lanes\""), 4u);
    EXPECT_EQ(count(page, "<svg class=\"stages\""), num_runs);
    EXPECT_EQ(count(page, ">step</text>"), 6u);
    EXPECT_EQ(count(page, "</span>rank "), num_runs == 1 ? 4u : 0u);  // memory of each
    for (const char* bad : {"<script", "http", "src=", "url(", "@import", "nan", "inf "})
      EXPECT_EQ(count(page, bad), bad == std::string("http") ? 1u : 0u) << bad;  // http-equiv
    EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt; &amp; more"), page.npos);
  }
  EXPECT_NE(html(runs).find("other &lt;b&gt;"), std::string::npos);
  EXPECT_NE(text(runs).find("last step time of"), std::string::npos);
}

// More ranks than colours: the largest, the middle and the smallest one.
TEST_F(ReportTest, MemoryOfManyRanksIsThreeCurves) {
  report::Run run = read_run(write_run("run", 5));
  run.description.ranks = 9;
  for (io::Row& row : run.rows) row.peak_bytes = {9, 1, 8, 2, 7, 3, 6, 4, 500 << 20};
  const std::string page = html({&run, 1});
  for (const char* name : {"</span>largest rank<", "</span>median<", "</span>smallest<"})
    EXPECT_EQ(count(page, name), 1u) << name;
  EXPECT_EQ(count(page, "</span>rank "), 0u);
  EXPECT_NE(page.find(">500</text>"), page.npos);
}

TEST_F(ReportTest, LongRunsStaySmall) {
  report::Run run = read_run(write_run("run", 10));
  const io::Row row = run.rows[0];
  run.rows.clear();
  for (int i = 0; i < 300000; ++i) {
    run.rows.push_back(row);
    run.rows.back().metrics.step = i;
    run.rows.back().metrics.loss = 2.0 + double(i % 1000 * 919 % 1000) / 1000.0;
  }
  run.rows[200000].metrics.loss = 9.0;  // a spike is never thinned out
  run.trace.measured[0] = run.trace.predicted[0] = {.rank = 0, .tasks = {}, .times = {}};
  for (int i = 0; i < 200000; ++i) {
    run.trace.measured[0].tasks.push_back({.label = "task"});
    run.trace.measured[0].times.push_back({i * 5e-7, i * 5e-7 + 1e-7});
  }
  const std::string page = html({&run, 1});
  EXPECT_LT(page.size(), 2u << 20);
  const std::size_t loss = page.find("<path class=\"line c0\"");
  EXPECT_NE(page.substr(loss, page.find("/>", loss) - loss).find(" 10.0"), page.npos);  // the top
}

// Many ranks write more than a report can take, which is no reason to have none.
TEST_F(ReportTest, ATraceThatIsTooLongIsLeftOut) {
  const fs::path directory = write_run("long", 20);
  fs::resize_file(directory / "trace.json", std::uintmax_t(io::max_trace_bytes) + 1);
  const report::Run run = read_run(directory);
  EXPECT_TRUE(run.trace.measured.empty());
  EXPECT_EQ(run.rows.size(), 20u);
  expect_well_formed(html(std::vector{run}));
}

TEST_F(ReportTest, RefusesWhatIsNoRun) {
  EXPECT_THROW(read_run(directory_), Error);
  const fs::path run = write_run("run", 3);
  for (const char* text : {"", "[]", "{\"traceEvents\":3}",
                           "{\"traceEvents\":[{\"ph\":\"X\",\"pid\":0,\"tid\":99}]}"}) {
    std::ofstream(run / "trace.json", std::ios::trunc) << text;
    EXPECT_THROW(read_run(run), Error) << text;
  }
}

TEST(Pictures, TextsCannotEndTheirElement) {
  EXPECT_EQ(escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
  EXPECT_EQ(escaped(""), "");
}

TEST(Pictures, EachActivityHasAShadeOfItsOwn) {
  std::set<int> shades;
  for (int a = 0; a < schedule::num_activities; ++a) shades.insert(shade_of(schedule::Activity(a)));
  EXPECT_EQ(std::ssize(shades), schedule::num_activities);
  EXPECT_GE(*shades.begin(), 0);
  EXPECT_LT(*shades.rbegin(), num_shades);
}

TEST(Pictures, ABarHasAPartPerSlice) {
  const std::string text = bar({{0, 0.25, "a < b"}, {3, 0.5, "rest"}});
  EXPECT_NE(text.find("width:25.00%"), text.npos);
  EXPECT_NE(text.find("width:50.00%"), text.npos);
  EXPECT_EQ(text.find("a < b"), text.npos);
}

TEST(PlanPage, ShowsEachStageAndRunsNothing) {
  PlanPage page{.title = "<b> & co",
                .plan = two_stages(),
                .account = {},
                .memory = {{{{"weights", 3e9}, {"other", 1e9}}, 8e9},
                           {{{"weights", 1e9}, {"other", 9e9}}, 8e9}},
                .timelines = {},
                .alternatives = {{"the best", 2.0, 4e9, 0.0}, {"another", 2.5, 3e9, 1e9}},
                .without = {{"ZeRO", 2.2}},
                .text = "in <words>"};
  page.account.iteration_s = 2.0;
  page.account.stages.resize(2);
  for (schedule::StageAccount& stage : page.account.stages) stage.seconds[0] = 2.0;
  const auto count = [&](const std::string& what) {
    const std::string text = html(page);
    std::size_t found = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count("<script"), 0u);
  EXPECT_EQ(count("<words>"), 0u);
  EXPECT_EQ(count("<b>"), 0u);
  EXPECT_EQ(count("class=\"bar\""), 4u);  // time and memory of both stages
  EXPECT_EQ(count("class=\"lanes\""), 0u);
  EXPECT_EQ(count("<circle"), 2u);
  EXPECT_EQ(count("width:50.00%"), 0u);
  EXPECT_EQ(count("width:30.00%"), 1u);  // 3 GB beside the 10 GB of the fuller stage
  EXPECT_EQ(count("width:40.00%"), 1u);  // free on the first
  EXPECT_EQ(count("10.0 %"), 1u);        // what ZeRO is worth
  page.timelines = {timeline(0, {{Channel::compute, {0.0, 1.0}}}),
                    timeline(2, {{Channel::compute, {1.0, 2.0}}})};
  page.end_s = 2.0;
  EXPECT_EQ(count("class=\"lanes\""), 2u);
}

}  // namespace
}  // namespace brume::report
