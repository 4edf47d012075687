#include "io/metrics_log.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "own_folder.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr Yardstick yardstick{.devices = 4, .flops_per_token = 3e6, .peak_flops_per_s = 4e12};

Row row(std::int64_t step) {
  Row row;
  row.metrics.step = step;
  row.metrics.loss = 5.0 - double(step) / 16.0;
  row.metrics.grad_norm = 1.5;
  row.metrics.lr = 1e-3;
  row.metrics.iteration_s = 0.25;
  row.tokens_per_s = 2e5;
  row.peak_bytes = {1000, 3000, 2000, 0};
  return row;
}

/// An event as TensorBoard reads it.
struct Event {
  std::int64_t step = 0;
  std::string version;
  bool starts = false;
  std::vector<std::pair<std::string, float>> values;
};

/// Reads protocol buffers.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  bool more() const { return !bytes_.empty(); }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = std::uint8_t(take(1)[0]);
      value |= std::uint64_t(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) throw std::runtime_error("cut");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <typename Number>
  Number fixed() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

 private:
  std::string_view bytes_;
};

/// Bit by bit, as the polynomial says it.
std::uint32_t plain_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool carry = ((crc ^ std::uint32_t(std::uint8_t(byte)) >> bit) & 1) != 0;
      crc = crc >> 1 ^ (carry ? 0x82F63B78u : 0u);
    }
  return ~crc;
}

std::string_view checked(Reader& in, std::size_t count) {
  const std::string_view bytes = in.take(count);
  const std::uint32_t crc = plain_crc32c(bytes);
  EXPECT_EQ(in.fixed<std::uint32_t>(), (crc >> 15 | crc << 17) + 0xA282EAD8u);
  return bytes;
}

Event parse(std::string_view record) {
  Event event;
  for (Reader in(record); in.more();) switch (in.varint()) {
      case 1 << 3 | 1: EXPECT_GT(in.fixed<double>(), 1.7e9); break;
      case 2 << 3 | 0: event.step = std::int64_t(in.varint()); break;
      case 3 << 3 | 2: event.version = in.take(in.varint()); break;
      case 7 << 3 | 2: event.starts = in.take(in.varint()) == "\x08\x01"; break;
      case 5 << 3 | 2:
        for (Reader values(in.take(in.varint())); values.more();) {
          EXPECT_EQ(values.varint(), 1u << 3 | 2u);
          Reader value(values.take(values.varint()));
          EXPECT_EQ(value.varint(), 1u << 3 | 2u);
          const std::string tag(value.take(value.varint()));
          EXPECT_EQ(value.varint(), 2u << 3 | 5u);
          event.values.emplace_back(tag, value.fixed<float>());
        }
        break;
      default: ADD_FAILURE() << "a field that no event of ours has"; return event;
    }
  return event;
}

class MetricsLogTest : public ::testing::Test {
 protected:
  MetricsLog begin(std::int64_t resumed_step, bool tensorboard = false) const {
    RunDescription description;
    description.run = "0123456789abcdef";
    description.version = "1.2.3";
    description.ranks = 4;
    return {directory_, description, yardstick, resumed_step, tensorboard};
  }
  fs::path file() const { return directory_ / "metrics.jsonl"; }
  std::string content(const fs::path& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<json> lines() const {
    std::vector<json> lines;
    std::ifstream in(file());
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }
  /// "0 start, 1, 2, 2 valid"
  std::string told() const {
    std::string told;
    for (const json& line : lines())
      told += (told.empty() ? "" : ", ") + line.at("step").dump() +
              (line.contains("event")        ? " start"
               : line.contains("valid_loss") ? " valid"
                                             : "");
    return told;
  }
  /// Of all files; those of one process and second are one file.
  std::vector<Event> events() const {
    std::vector<fs::path> names;
    for (const auto& entry : fs::directory_iterator(directory_ / "tensorboard"))
      names.push_back(entry.path());
    std::ranges::sort(names);
    std::vector<Event> events;
    for (const fs::path& name : names) {
      const std::string bytes = content(name);
      for (Reader in(bytes); in.more();) {
        const std::string_view length = checked(in, 8);
        events.push_back(parse(checked(in, Reader(length).fixed<std::uint64_t>())));
      }
    }
    return events;
  }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
};

TEST_F(MetricsLogTest, ALineSaysWhatAStepDid) {
  {
    MetricsLog log = begin(0);
    Row first = row(0);
    first.metrics.skipped = true;
    first.metrics.grad_norm = std::numeric_limits<double>::infinity();
    log.add(first);
    log.add(row(1));
    log.add(EvaluationRow{2, 4.75});
  }
  const std::vector<json> lines = this->lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].at("event"), "start");
  EXPECT_EQ(lines[0].at("run"), "0123456789abcdef");
  EXPECT_EQ(lines[0].at("version"), "1.2.3");
  EXPECT_EQ(lines[1].at("skipped"), true);
  EXPECT_TRUE(lines[1].at("grad_norm").is_null());
  const json& second = lines[2];
  EXPECT_EQ(second.at("step"), 2);
  EXPECT_EQ(second.at("loss"), 5.0 - 1.0 / 16.0);
  EXPECT_EQ(second.at("tokens_per_s_per_device"), 5e4);
  EXPECT_EQ(second.at("tflops_per_device"), 0.15);
  EXPECT_EQ(second.at("mfu"), 0.15);
  EXPECT_EQ(second.at("peak_resident_bytes"), 3000.0);
  EXPECT_FALSE(second.contains("skipped"));
  EXPECT_EQ(lines[3].at("valid_loss"), 4.75);
}

TEST_F(MetricsLogTest, SamplesAreReadBack) {
  const SampleRow whole{.step = 2,
                        .index = 1,
                        .prompt = "a \"b\"\n",
                        .text = "c\t\u00e9",
                        .finish = "stop",
                        .tokens = 3};
  SampleRow part = whole;
  part.text += '\xff';
  SampleRow later = whole;
  later.step = 3;
  {
    MetricsLog log = begin(0);
    log.add(whole);
    log.add(part);
    log.add(later);
    log.rewind(2);
  }
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_EQ(lines()[1].at("event"), "sample");
  EXPECT_EQ(lines()[1].at("finish_reason"), "stop");
  const std::vector<SampleRow> found = samples(directory_);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], whole);
  part.text = whole.text + "\ufffd";
  EXPECT_EQ(found[1], part);
  EXPECT_EQ(io::events(directory_).size(), 1u);  // the start
}

TEST_F(MetricsLogTest, TextsFitALine) {
  EXPECT_EQ(quoted("ab\n", 6), R"("ab\n")");
  EXPECT_EQ(quoted("ab\n", 5), R"(""...)");
  EXPECT_EQ(quoted("abcdef", 7), R"("ab"...)");
  EXPECT_EQ(quoted("a\u00e9\u00e9\u00e9", 8), "\"a\u00e9\"...");
  EXPECT_EQ(quoted("\x1b[2J", 40), R"("\u001b[2J")");
  EXPECT_EQ(quoted("\xc2\x9b\x32J\xc3\xa9", 40), "\"\\u009b2J\u00e9\"");
  SampleRow row{.step = 1, .index = 0, .prompt = "", .text = {}, .finish = "length", .tokens = 1};
  row.prompt = row.text = std::string(1 << 20, '\x01');
  EXPECT_LT(json_line(row).size(), std::size_t{1} << 20);
}

TEST_F(MetricsLogTest, GoesOnBehindTheStepThatARunResumesFrom) {
  {
    MetricsLog log = begin(0);
    for (std::int64_t step = 0; step < 5; ++step) log.add(row(step));
    log.add(EvaluationRow{5, 4.5});
  }
  {
    MetricsLog log = begin(3);
    log.add(row(3));
  }
  EXPECT_EQ(told(), "0 start, 1, 2, 3, 3 start, 4");
}

// A kill may cut a line; power that fails may leave zeros.
TEST_F(MetricsLogTest, GoesOnBehindTheLastWholeLine) {
  {
    MetricsLog log = begin(0);
    for (std::int64_t step = 0; step < 3; ++step) log.add(row(step));
  }
  const std::string whole = content(file());
  for (const std::string& rest :
       {whole.substr(0, whole.size() - 9), whole + std::string(100, '\0'), whole + "{}\n",
        whole + "[3]\n{\"step\":3}\n", whole + std::string(3 << 20, 'x') + "\n"}) {
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << rest;
    begin(3).add(row(3));
    EXPECT_EQ(told(), rest.size() < whole.size() ? "0 start, 1, 2, 3 start, 4"
                                                 : "0 start, 1, 2, 3, 3 start, 4");
  }
}

TEST_F(MetricsLogTest, LongRunsResume) {
  std::ofstream out(file());
  for (std::int64_t step = 0; step < 20000; ++step) out << json_line(row(step), yardstick);
  out.close();
  begin(19999).add(row(19999));
  const std::vector<json> lines = this->lines();
  ASSERT_EQ(lines.size(), 20001u);
  EXPECT_EQ(lines[19998].at("step"), 19999);
  EXPECT_EQ(lines[19999].at("event"), "start");
  EXPECT_EQ(lines[20000].at("step"), 20000);
}

TEST_F(MetricsLogTest, ForgetsWhatARollbackUndid) {
  MetricsLog log = begin(0);
  for (std::int64_t step = 0; step < 4; ++step) log.add(row(step));
  log.rewind(2);
  log.add(row(2));
  EXPECT_EQ(told(), "0 start, 1, 2, 3");
}

// A record that finds no room is left out whole, and what comes later is written.
TEST_F(MetricsLogTest, AFullDiskLeavesOutWholeLines) {
  MetricsLog log = begin(0);
  log.add(row(0));
  const auto bytes = rlim_t(fs::file_size(file()));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{.rlim_cur = bytes + 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  log.add(row(1));
  log.add(row(2));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  log.add(row(3));
  EXPECT_EQ(told(), "0 start, 1, 4");
}

TEST_F(MetricsLogTest, RefusesWhatItCannotOpen) {
  fs::create_directory(file());
  EXPECT_THROW(begin(0), Error);
}

TEST_F(MetricsLogTest, ALinkStaysAndItsTargetIsContinued) {
  fs::create_symlink("elsewhere", file());
  begin(0).add(row(0));
  begin(1).add(row(1));
  EXPECT_EQ(told(), "0 start, 1, 1 start, 2");
  EXPECT_TRUE(fs::is_symlink(file()));
  EXPECT_TRUE(fs::is_regular_file(directory_ / "elsewhere"));
}

TEST_F(MetricsLogTest, TensorBoardsFilesSayTheSame) {
  {
    MetricsLog log = begin(0, true);
    for (std::int64_t step = 0; step < 300; ++step) log.add(row(step));
    log.add(EvaluationRow{300, 4.75});
    log.rewind(200);
  }
  begin(200, true).add(row(200));
  const std::vector<Event> all = events();
  ASSERT_EQ(all.size(), 1u + 300u + 1u + 1u + 3u);
  EXPECT_EQ(all[0].version, "brain.Event:2");
  EXPECT_EQ(all[200].step, 200);
  const std::vector<Scalar> wanted = scalars(row(199), yardstick);
  ASSERT_EQ(all[200].values.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(all[200].values[i].first, wanted[i].name);
    EXPECT_EQ(all[200].values[i].second, float(wanted[i].value));
  }
  EXPECT_EQ(all[301].values[0].first, "valid_loss");
  EXPECT_TRUE(all[302].starts);
  EXPECT_EQ(all[302].step, 201);
  EXPECT_EQ(all[303].version, "brain.Event:2");
  EXPECT_TRUE(all[304].starts);
  EXPECT_EQ(all[305].step, 201);
}

}  // namespace
}  // namespace brume::io
