/// @file run.h5: what a run did, step by step, described by itself. Layout in src/io/README.md.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "schedule/program.hpp"

namespace brume::io {

/// Facts that are known before the first step; stored as attributes.
struct RunDescription {
  std::string run;        ///< name of the run, which no other one has; empty: an older file
  std::string deck_text;  ///< resolved deck
  std::string plan_text;
  std::string profile_text;
  std::string version;  ///< version of brume
  int ranks = 1;
  std::string ended;  ///< reason why the job ended before its last step; empty: none so far
  double predicted_iteration_s = 0.0;
  std::vector<std::int64_t> predicted_bytes;  ///< [rank] placed device memory
  std::vector<std::int64_t> host_bytes;       ///< [rank] placed host memory
  std::vector<std::int64_t> copy_bytes;       ///< [rank] held while a checkpoint is written
};

/// A name for a run that begins.
std::string new_run();

/// One step of the whole job, as rank 0 knows it.
struct Row {
  engine::StepMetrics metrics;  ///< rank 0's, with the slowest rank's time and wait for data
  double tokens_per_s = 0.0;
  std::vector<std::int64_t> peak_bytes;  ///< [rank] resident set
  double predicted_s = 0.0;  ///< iteration time of the plan of that step; 0: the description's
};

/// One evaluation on held-out data.
struct EvaluationRow {
  std::int64_t step;
  double loss;
  double accuracy = -1.0;  ///< -1: no pairs, like StepMetrics; not in the file
  double margin = 0.0;
};

/// Rows that change no more, in a file of their own beside run.h5.
struct RunPart {
  std::int64_t first_step;  ///< done before it; names it
  std::int64_t end_step;    ///< done after it
  std::int64_t rows;
  std::int64_t ranks;  ///< width of the peaks

  std::filesystem::path name() const;  ///< "steps/2048.h5"
};

/// The newest rows are kept in memory; the file is rebuilt as an in-memory image and replaced by
/// write, fsync and rename. When there are many, they move to a part, and the file shows both as
/// one. Rank 0 only.
class RunFile {
 public:
  static constexpr std::size_t usual_rows_per_part = 2048;

  /// Goes on with the rows up to `resumed_step` of a file that is there already; 0 starts anew. A
  /// file that is damaged, or that an older version wrote, is set aside with a warning.
  /// Writes the file, so that a directory that cannot be written shows before the first step.
  /// @throws Error(storage) when the directory cannot be made or written
  RunFile(std::filesystem::path directory, RunDescription description, std::int64_t resumed_step,
          std::size_t rows_per_part = usual_rows_per_part);

  /// Written at most every 10 s and in at most a twentieth of the time, and when a part is full; a
  /// failure to write is logged and tried again, because the rows are still here.
  void add(Row row);
  void add(EvaluationRow row);  ///< replaces a row of the same step
  /// Forgets what came after so many steps, or all when a part cannot be read: then what is there
  /// is set aside with a warning. @throws Error(storage)
  void rewind(std::int64_t steps);
  void end(std::string what) { description_.ended = std::move(what); }  ///< see RunDescription
  void write();          ///< now. @throws Error(storage)
  void write_or_warn();  ///< now, e.g. with a checkpoint; where that fails, with a later one

 private:
  void or_begin_anew(const std::function<void()>& read);
  void forget_from(std::int64_t steps);
  void move_to_part();

  std::filesystem::path path_;
  RunDescription description_;
  std::size_t rows_per_part_;
  std::vector<RunPart> parts_;  ///< parts before rows_
  std::vector<Row> rows_;
  std::vector<EvaluationRow> evaluations_;
  std::int64_t next_write_ns_ = 0;  ///< next write on the monotonic clock
};

/// Content of a run.h5.
struct RunContent {
  RunDescription description;
  std::vector<RunPart> parts;
  std::vector<Row> rows;  ///< rows after the parts
  std::vector<EvaluationRow> evaluations;
};

/// Reads a run.h5 back without its parts; refuses a version it does not know. HDF5 sees the file
/// only when the hash at its end fits. @throws Error(input)
RunContent read_run_file(const std::filesystem::path& path);
/// The rows of a part of the run.h5 in `directory`. @throws Error(input)
std::vector<Row> read_part(const std::filesystem::path& directory, const RunPart& part);

}  // namespace brume::io
