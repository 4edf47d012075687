/// @file Tasks of all ranks joined where they meet: a transfer's partners start and end together.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "schedule/program.hpp"

namespace brume::schedule {

/// A task of one rank.
struct Member {
  int program;  ///< which of the Programs
  int task;
};

/// Every task belongs to one activity: alone, or with its partners on other ranks.
struct Activities {
  /// Matches the n-th collective of a group on a channel, and the n-th message between two ranks.
  /// Where Programs are one of each stage, collectives are joined by those who are there. Of a
  /// microbatch's message from one stage to another the n-th parts of both representatives are
  /// joined, and others stand alone. The first part takes as long as all parts of the one with
  /// more, and others no time: a stage goes on when its last rank has its part.
  ///
  /// @throws Error(bug) when Programs are neither of all ranks nor of one rank a stage
  Activities(std::span<const Program> programs, const plan::Plan& plan);

  std::vector<std::vector<Member>> members;  ///< [activity]
  std::vector<std::vector<Member>> timed;    ///< [activity] tasks whose times add up to its time
  std::vector<std::vector<int>> of;          ///< [program][task] activity
  std::vector<std::string> unmatched;  ///< transfers without partner, or of other kind or size
};

/// Which activities may start: each member is the first of its channel and all it waits for is
/// done.
class Readiness {
 public:
  Readiness(std::span<const Program> programs, const Activities& activities);

  std::vector<int> start();                  ///< activities that may start at once
  std::vector<int> finish(int activity);     ///< marks it done; activities that may start now
  std::vector<std::string> blocked() const;  ///< the first task of each channel that never started

 private:
  void look(int program, int channel, std::vector<int>& started);

  std::span<const Program> programs_;
  const Activities& activities_;
  std::vector<std::array<std::vector<int>, num_channels>> queue_;  ///< [program][channel] tasks
  std::vector<std::array<std::size_t, num_channels>> next_;        ///< first task that is not done
  std::vector<std::vector<char>> done_;                            ///< [program][task]
  std::vector<std::vector<char>> announced_;  ///< [program][task] counted as ready
  std::vector<int> ready_;                    ///< [activity] members ready
};

}  // namespace brume::schedule
