/// @file Timelines for Chrome's tracing page and Perfetto: predicted and measured, one row a rank
/// and channel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "schedule/account.hpp"
#include "schedule/program.hpp"

namespace brume::io {

/// Facts about a task other than its times.
struct TracedTask {
  std::string label;
  schedule::Channel channel = schedule::Channel::compute;
  schedule::Activity activity = schedule::Activity::computing;
  std::string buffer = {};  ///< buffer that it moves, updates or clears; "": none
  std::int64_t bytes = 0;   ///< bytes of that buffer
  bool operator==(const TracedTask&) const = default;
};

/// One iteration of one rank.
struct RankTimeline {
  int rank = 0;
  std::vector<TracedTask> tasks;
  std::vector<schedule::Span> times;  ///< [task]; tasks that did not run have no length
};

/// A rank's tasks with their times.
RankTimeline timeline(const schedule::Program& program, std::vector<schedule::Span> times);

/// Seconds that the tasks of a channel take together.
double busy_s(const RankTimeline& timeline, schedule::Channel channel);

/// Writes a Chrome trace: process "predicted" or "measured" rank R, a thread per channel.
/// @throws Error(storage)
void write_trace(const std::filesystem::path& path, std::span<const RankTimeline> measured,
                 std::span<const RankTimeline> predicted);

struct Trace {
  std::vector<RankTimeline> measured, predicted;
};
inline constexpr std::int64_t max_trace_bytes = 256ll << 20;  ///< largest size that is read
/// Reads what write_trace wrote. Tasks are in no order. @throws Error(input)
Trace read_trace(const std::filesystem::path& path);

/// A timeline as text and back, to gather it from all ranks.
std::string pack(const RankTimeline& timeline);
RankTimeline unpack(const std::string& text);

}  // namespace brume::io
