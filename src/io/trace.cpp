#include "io/trace.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"

namespace brume::io {
namespace {

using nlohmann::json;

std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// A metadata event: what a process or thread is called, or where it stands.
void add_metadata(std::string& out, const char* what, int process, int thread,
                  const std::string& arguments) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{{}}}}},\n", what,
                 process, thread, arguments);
}

void add_names(std::string& out, const char* kind, int rank, int process) {
  add_metadata(out, "process_name", process, 0, fmt::format("\"name\":\"{} rank {}\"", kind, rank));
  add_metadata(out, "process_sort_index", process, 0, fmt::format("\"sort_index\":{}", process));
  for (int c = 0; c < schedule::num_channels; ++c) {
    const char* name = schedule::name(schedule::Channel(c));
    add_metadata(out, "thread_name", process, c, fmt::format("\"name\":\"{}\"", name));
    add_metadata(out, "thread_sort_index", process, c, fmt::format("\"sort_index\":{}", c));
  }
}

void add_timeline(std::string& out, const RankTimeline& timeline, const char* kind, int process) {
  // Ends are rounded, not lengths: tasks that follow each other never overlap, or viewers drop
  // them.
  const auto ns = [](double time_s) { return std::llround(time_s * 1e9); };
  const auto us = [](long long time_ns) {
    return fmt::format("{}.{:03}", time_ns / 1000, time_ns % 1000);
  };
  add_names(out, kind, timeline.rank, process);
  for (std::size_t task = 0; task < timeline.times.size(); ++task) {
    const schedule::Span& time = timeline.times[task];
    if (!(time.end_s > time.start_s)) continue;
    const long long start = ns(time.start_s), length = ns(time.end_s) - start;
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{},"
                   "\"dur\":{}}},\n",
                   kind, quoted(timeline.labels.at(task)), process, int(timeline.channels.at(task)),
                   us(start), us(length));
  }
}

}  // namespace

void write_trace(const std::filesystem::path& path, std::span<const RankTimeline> measured,
                 std::span<const RankTimeline> predicted) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  // Odd and even process numbers put prediction and measurement of a rank one below the other.
  for (const RankTimeline& timeline : measured)
    add_timeline(out, timeline, "measured", 2 * timeline.rank);
  for (const RankTimeline& timeline : predicted)
    add_timeline(out, timeline, "predicted", 2 * timeline.rank + 1);
  if (out.ends_with(",\n")) out.resize(out.size() - 2);
  out += "\n]}\n";
  write_file(path, out);
}

Trace read_trace(const std::filesystem::path& path) {
  constexpr std::int64_t max_bytes = 256 << 20;
  constexpr double us_per_s = 1e6;
  const Bytes bytes = read_file(path, Failure::input, max_bytes);
  try {
    const json whole = json::parse(as_text(bytes));
    std::map<int, RankTimeline> processes;
    for (const json& event : whole.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      const int process = event.at("pid").get<int>(), channel = event.at("tid").get<int>();
      require(process >= 0 && channel >= 0 && channel < schedule::num_channels, Failure::input,
              "{}: has process {}, thread {}, which no trace of a run has", path.string(), process,
              channel);
      RankTimeline& timeline = processes[process];
      timeline.rank = process / 2;
      timeline.labels.push_back(event.at("name").get<std::string>());
      timeline.channels.push_back(schedule::Channel(channel));
      const double start_s = event.at("ts").get<double>() / us_per_s;
      timeline.times.push_back({start_s, start_s + event.at("dur").get<double>() / us_per_s});
    }
    Trace trace;
    for (auto& [process, timeline] : processes)
      (process % 2 == 0 ? trace.measured : trace.predicted).push_back(std::move(timeline));
    return trace;
  } catch (const json::exception& error) {
    throw Error(Failure::input, "{}: is no trace of a run: {}", path.string(), error.what());
  }
}

std::string pack(const RankTimeline& timeline) {
  json channels = json::array(), times = json::array();
  for (const schedule::Channel channel : timeline.channels) channels.push_back(int(channel));
  for (const schedule::Span& time : timeline.times)
    times.push_back(json::array({time.start_s, time.end_s}));
  return json{{"rank", timeline.rank},
              {"labels", timeline.labels},
              {"channels", std::move(channels)},
              {"times", std::move(times)}}
      .dump();
}

RankTimeline unpack(const std::string& text) {
  try {
    const json object = json::parse(text);
    RankTimeline timeline;
    object.at("rank").get_to(timeline.rank);
    object.at("labels").get_to(timeline.labels);
    for (const json& channel : object.at("channels")) {
      const int number = channel.get<int>();
      require(number >= 0 && number < schedule::num_channels, Failure::bug,
              "a timeline has channel {}", number);
      timeline.channels.push_back(schedule::Channel(number));
    }
    for (const json& time : object.at("times"))
      timeline.times.push_back({time.at(0).get<double>(), time.at(1).get<double>()});
    require(timeline.labels.size() == timeline.times.size() &&
                timeline.channels.size() == timeline.times.size(),
            Failure::bug, "a timeline has {} labels, {} channels and {} times",
            timeline.labels.size(), timeline.channels.size(), timeline.times.size());
    return timeline;
  } catch (const json::exception& error) {
    throw Error(Failure::bug, "a timeline cannot be read: {}", error.what());
  }
}

}  // namespace brume::io
