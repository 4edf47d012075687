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

/// What a task moves, to be added to its arguments.
std::string amount(const TracedTask& task) {
  if (task.bytes == 0) return "";
  return fmt::format(",\"of\":{},\"bytes\":{}", quoted(task.buffer), task.bytes);
}

/// By its name. Files of older versions say nothing, so the channel has to.
schedule::Activity activity_of(const std::string& name, schedule::Channel channel) {
  for (int a = 0; a < schedule::num_activities; ++a)
    if (name == schedule::name(schedule::Activity(a))) return schedule::Activity(a);
  return schedule::activity(channel);
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
    const TracedTask& of = timeline.tasks.at(task);
    if (!(time.end_s > time.start_s)) continue;
    const long long start = ns(time.start_s), length = ns(time.end_s) - start;
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{},"
                   "\"dur\":{},\"args\":{{\"activity\":\"{}\"{}}}}},\n",
                   kind, quoted(of.label), process, int(of.channel), us(start), us(length),
                   schedule::name(of.activity), amount(of));
  }
}

}  // namespace

void write_trace(const std::filesystem::path& path, std::span<const RankTimeline> measured,
                 std::span<const RankTimeline> predicted) {
  constexpr std::string_view end = ",\n";  // of an event, unless it is the last
  OutputFile file(path);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  // The events of many ranks take more memory than one rank should hold.
  const auto add = [&](const RankTimeline& timeline, const char* kind, int process) {
    add_timeline(out, timeline, kind, process);
    file.write(as_bytes(std::string_view(out).substr(0, out.size() - end.size())));
    out = end;
  };
  // Odd and even process numbers put prediction and measurement of a rank one below the other.
  for (const RankTimeline& timeline : measured) add(timeline, "measured", 2 * timeline.rank);
  for (const RankTimeline& timeline : predicted) add(timeline, "predicted", 2 * timeline.rank + 1);
  if (out == end) out.clear();
  file.write(as_bytes(out + "\n]}\n"));
  file.commit();
}

Trace read_trace(const std::filesystem::path& path) {
  constexpr double us_per_s = 1e6;
  const Bytes bytes = read_file(path, Failure::input, max_trace_bytes);
  try {
    const json whole = json::parse(as_text(bytes));
    std::map<int, RankTimeline> processes;
    for (const json& event : whole.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      const int process = event.at("pid").get<int>(), thread = event.at("tid").get<int>();
      require(process >= 0 && thread >= 0 && thread < schedule::num_channels, Failure::input,
              "{}: has process {}, thread {}, which no trace of a run has", path.string(), process,
              thread);
      RankTimeline& timeline = processes[process];
      timeline.rank = process / 2;
      const json said = event.value("args", json::object());
      const auto channel = schedule::Channel(thread);
      timeline.tasks.push_back({.label = event.at("name").get<std::string>(),
                                .channel = channel,
                                .activity = activity_of(said.value("activity", ""), channel),
                                .buffer = said.value("of", ""),
                                .bytes = said.value("bytes", std::int64_t{0})});
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

RankTimeline timeline(const schedule::Program& program, std::vector<schedule::Span> times) {
  RankTimeline timeline{.rank = program.rank, .tasks = {}, .times = std::move(times)};
  for (const schedule::Task& task : program.tasks) {
    TracedTask& traced = timeline.tasks.emplace_back();
    traced.label = schedule::label(task);
    traced.channel = task.channel;
    traced.activity = schedule::activity(task);
    traced.bytes = schedule::amount_bytes(task);
    if (traced.bytes > 0) traced.buffer = program.buffer(task.operands[0]).name;
  }
  return timeline;
}

double busy_s(const RankTimeline& timeline, schedule::Channel channel) {
  double sum = 0.0;
  for (std::size_t task = 0; task < timeline.times.size(); ++task)
    if (timeline.tasks[task].channel == channel)
      sum += timeline.times[task].end_s - timeline.times[task].start_s;
  return sum;
}

std::string pack(const RankTimeline& timeline) {
  json tasks = json::array();
  for (std::size_t i = 0; i < timeline.tasks.size(); ++i) {
    const TracedTask& task = timeline.tasks[i];
    tasks.push_back(
        json::array({task.label, int(task.channel), int(task.activity), task.buffer, task.bytes,
                     timeline.times.at(i).start_s, timeline.times[i].end_s}));
  }
  return json{{"rank", timeline.rank}, {"tasks", std::move(tasks)}}.dump();
}

RankTimeline unpack(const std::string& text) {
  try {
    const json object = json::parse(text);
    RankTimeline timeline;
    object.at("rank").get_to(timeline.rank);
    for (const json& task : object.at("tasks")) {
      const int channel = task.at(1).get<int>(), activity = task.at(2).get<int>();
      require(channel >= 0 && channel < schedule::num_channels && activity >= 0 &&
                  activity < schedule::num_activities,
              Failure::bug, "a timeline has channel {}, activity {}", channel, activity);
      timeline.tasks.push_back({.label = task.at(0).get<std::string>(),
                                .channel = schedule::Channel(channel),
                                .activity = schedule::Activity(activity),
                                .buffer = task.at(3).get<std::string>(),
                                .bytes = task.at(4).get<std::int64_t>()});
      timeline.times.push_back({task.at(5).get<double>(), task.at(6).get<double>()});
    }
    return timeline;
  } catch (const json::exception& error) {
    throw Error(Failure::bug, "a timeline cannot be read: {}", error.what());
  }
}

}  // namespace brume::io
