/// @file Timelines for Chrome's tracing page and Perfetto: predicted and measured, one row a rank
/// and channel.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "schedule/program.hpp"

namespace brume::io {

/// One iteration of one rank.
struct RankTimeline {
  int rank;
  std::vector<std::string> labels;          ///< [task]
  std::vector<schedule::Channel> channels;  ///< [task]
  std::vector<schedule::Span> times;        ///< [task]; tasks that did not run have no length
};

/// Writes a Chrome trace: process "predicted" or "measured" rank R, a thread per channel.
/// @throws Error(storage)
void write_trace(const std::filesystem::path& path, std::span<const RankTimeline> measured,
                 std::span<const RankTimeline> predicted);

struct Trace {
  std::vector<RankTimeline> measured, predicted;
};
/// Reads what write_trace wrote. Tasks are in no order. @throws Error(input)
Trace read_trace(const std::filesystem::path& path);

/// A timeline as text and back, to gather it from all ranks.
std::string pack(const RankTimeline& timeline);
RankTimeline unpack(const std::string& text);

}  // namespace brume::io
