/// @file metrics.jsonl and TensorBoard's event files: what a run does, while it does it. Layout in
/// src/io/README.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/run_file.hpp"

namespace brume::io {

class AppendedFile;
class EventFile;

/// Measured to predicted time of an iteration, beyond which whoever shows both gives a reason.
inline constexpr double slow_ratio = 1.25, fast_ratio = 0.8;

/// Units of a run's speed.
struct Yardstick {
  int devices = 1;
  double flops_per_token = 0.0;   ///< model FLOPs
  double peak_flops_per_s = 0.0;  ///< peak of all devices together; 0: unknown

  double flops_per_s(double tokens_per_s) const { return tokens_per_s * flops_per_token; }
  /// Model FLOPs utilisation, a share of the peak; 0: not known.
  double mfu(double tokens_per_s) const {
    return peak_flops_per_s > 0.0 ? flops_per_s(tokens_per_s) / peak_flops_per_s : 0.0;
  }
};

/// A number of a step under the name that it has in metrics.jsonl and in TensorBoard.
struct Scalar {
  const char* name;
  double value;
};
std::vector<Scalar> scalars(const Row& row, const Yardstick& yardstick);
std::vector<Scalar> scalars(const EvaluationRow& row);

/// The answer to a prompt while the model is trained.
struct SampleRow {
  std::int64_t step;   ///< steps done before
  std::int64_t index;  ///< number of the prompt, from 0
  std::string prompt;
  std::string text;
  std::string finish;  ///< end, stop or length; error: the logits were not finite
  std::int64_t tokens;

  bool operator==(const SampleRow&) const = default;
};

/// The beginning of a prompt or an answer on one line: a JSON string of at most so many columns,
/// followed by dots if it is not all.
std::string quoted(std::string_view text, std::size_t columns);

/// Lines of metrics.jsonl, one JSON object each, with the end of the line. Of long texts of a
/// sample a line has the beginning.
std::string json_line(const Row& row, const Yardstick& yardstick);
std::string json_line(const EvaluationRow& row);
std::string json_line(const SampleRow& row);

/// Events of a run other than its steps.
struct Event {
  enum class Kind { start, rollback, straggler };
  std::int64_t step;  ///< steps done by then
  Kind kind;
  std::string text;  ///< text for people

  bool operator==(const Event&) const = default;
};

/// The events that metrics.jsonl of a run directory tells of, in its order; none where it is not
/// there or cannot be read.
std::vector<Event> events(const std::filesystem::path& directory);
/// The same of samples.
std::vector<SampleRow> samples(const std::filesystem::path& directory);

/// Appends a line for each step, evaluation, sample and event, and where asked the numbers to
/// TensorBoard's files. A kill cuts the last line at most; the next job goes on behind the lines
/// up to the step that it resumes from. What cannot be written is left out with one warning:
/// run.h5 has it all. Rank 0 only.
class MetricsLog {
 public:
  /// @throws Error(storage) when the files cannot be opened
  MetricsLog(const std::filesystem::path& directory, const RunDescription& description,
             const Yardstick& yardstick, std::int64_t resumed_step, bool tensorboard);
  ~MetricsLog();

  void add(const Row& row);
  void add(const EvaluationRow& row);
  void add(const SampleRow& row);
  void add(const Event& event);
  /// Forgets what came after so many steps.
  void rewind(std::int64_t steps);

 private:
  void open_at(std::int64_t steps);
  template <typename Write>
  void or_warn(Write&& write);

  std::filesystem::path path_;  ///< path of the lines
  Yardstick yardstick_;
  std::unique_ptr<AppendedFile> lines_;
  std::unique_ptr<EventFile> events_;  ///< none where not asked for
  bool warned_ = false;
};

}  // namespace brume::io
