#include "io/run_file.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "files.hpp"
#include "hdf5_file.hpp"
#include "run_columns.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

std::int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Says a dataset's unit and what it means.
void describe(Hdf5Writer& file, const std::string& path, const char* units,
              const char* description) {
  file.attribute(path, "units", std::string(units));
  file.attribute(path, "description", std::string(description));
}

template <typename T>
void put(Hdf5Writer& file, const std::string& path, const char* units, const char* description,
         const std::vector<T>& values, const std::vector<hsize_t>& shape) {
  file.dataset(path, values, shape);
  describe(file, path, units, description);
}

std::size_t widest(const std::vector<Row>& rows) {
  std::size_t ranks = 0;
  for (const Row& row : rows) ranks = std::max(ranks, row.peak_bytes.size());
  return ranks;
}

void put_description(Hdf5Writer& file, const RunDescription& d) {
  const std::int64_t ranks = d.ranks;
  file.attribute("/", "filetype", std::string(run_filetype));
  file.attribute("/", "version", run_version);
  file.attribute("/", "run", d.run);
  file.attribute("/", "brume_version", d.version);
  file.attribute("/", "deck", d.deck_text);
  file.attribute("/", "plan", d.plan_text);
  file.attribute("/", "profile", d.profile_text);
  file.attribute("/", "ranks", std::span(&ranks, 1));
  file.attribute("/", "iteration_predicted_s", d.predicted_iteration_s);
  file.attribute("/", "ended", d.ended);
  put(file, "/memory/placed_device_bytes", "B", "[rank] device memory of the placed Program",
      d.predicted_bytes, {d.predicted_bytes.size()});
  put(file, "/memory/placed_host_bytes", "B", "[rank] pinned host memory of the placed Program",
      d.host_bytes, {d.host_bytes.size()});
  put(file, copies_path, "B", "[rank] copy of weights and optimizer state that a checkpoint takes",
      d.copy_bytes, {d.copy_bytes.size()});
}

/// Puts datasets of one row a step: into a part, or where there are parts as those of all of them.
class RowsWriter {
 public:
  RowsWriter(Hdf5Writer& file, std::vector<Row>& rows, const std::vector<RunPart>& parts = {})
      : file_(file), rows_(rows), parts_(parts) {}

  void put_all() {
    put<std::int64_t>("/steps/step", "1", "number of the step, from 1",
                      [](const Row& row) { return row.metrics.step + 1; });
    put<std::int64_t>(
        skipped_path, "1",
        "there was no update; 1: loss or gradient norm is not finite; 2: no token of "
        "the batch is to be learned",
        [](const Row& row) { return row.metrics.skipped + row.metrics.nothing_learned; });
    for (const Column& column : columns)
      put<double>(column.path, column.units, column.description,
                  [&](Row& row) { return column.at(row); });
    for (const ChannelColumn& column : channel_columns) put_channels(column);
    put_peaks();
  }

 private:
  template <typename T, typename Value>
  void put(const char* path, const char* units, const char* description, Value&& value) {
    std::vector<T> values;
    for (Row& row : rows_) values.push_back(T(value(row)));
    put_rows(path, units, description, values, {});
  }

  void put_channels(const ChannelColumn& column) {
    std::vector<const char*> names;
    for (int c = 0; c < schedule::num_channels; ++c) names.push_back(name(schedule::Channel(c)));
    std::vector<double> values;
    for (const Row& row : rows_)
      values.insert(values.end(), (row.metrics.*column.of).begin(), (row.metrics.*column.of).end());
    put_rows(column.path, column.units, column.description, values,
             std::vector<hsize_t>(parts_.size() + 1, names.size()));
    file_.attribute(column.path, "channels", names);
  }

  /// Rows may come from plans of different numbers of ranks: the widest counts.
  void put_peaks() {
    std::vector<hsize_t> widths;
    for (const RunPart& part : parts_) widths.push_back(hsize_t(part.ranks));
    widths.push_back(hsize_t(widest(rows_)));
    const std::size_t ranks = widths.back();
    std::vector<std::int64_t> peaks(rows_.size() * ranks, 0);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      std::ranges::copy(rows_[i].peak_bytes, peaks.begin() + std::ptrdiff_t(i * ranks));
    put_rows(peaks_path, "B",
             "[step, rank] largest resident set so far; 0: not measured, or no such rank in that "
             "step",
             peaks, widths);
  }

  /// @param widths  of the parts' rows, then of `values`; none when a row is one value
  template <typename T>
  void put_rows(const std::string& path, const char* units, const char* description,
                const std::vector<T>& values, const std::vector<hsize_t>& widths) {
    std::vector<hsize_t> shape{rows_.size()};
    if (!widths.empty()) shape.push_back(widths.back());
    if (parts_.empty()) return io::put(file_, path, units, description, values, shape);
    io::put(file_, recent_group + path, units, description, values, shape);
    std::vector<Hdf5Writer::Source> sources;
    for (const RunPart& part : parts_)
      sources.push_back({part.name().string(), path, {hsize_t(part.rows)}});
    sources.push_back({".", recent_group + path, {rows_.size()}});
    for (std::size_t i = 0; i < widths.size(); ++i) sources[i].shape.push_back(widths[i]);
    file_.concatenation<T>(path, sources);
    describe(file_, path, units, description);
  }

  Hdf5Writer& file_;
  std::vector<Row>& rows_;
  const std::vector<RunPart>& parts_;
};

void put_parts(Hdf5Writer& file, const std::vector<RunPart>& parts) {
  std::vector<std::int64_t> numbers;
  for (const RunPart& part : parts)
    numbers.insert(numbers.end(), {part.first_step, part.end_step, part.rows, part.ranks});
  put(file, parts_path, "1", "[part] steps done before it and after it, rows, ranks", numbers,
      {parts.size(), 4});
}

void put_evaluations(Hdf5Writer& file, const std::vector<EvaluationRow>& rows) {
  std::vector<std::int64_t> steps;
  std::vector<double> losses;
  for (const EvaluationRow& row : rows) {
    steps.push_back(row.step);
    losses.push_back(row.loss);
  }
  put(file, "/evaluations/step", "1", "steps done before the evaluation", steps, {rows.size()});
  put(file, "/evaluations/loss", "nat/token", "mean over the target tokens of held-out data",
      losses, {rows.size()});
}

}  // namespace

std::string new_run() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

fs::path RunPart::name() const { return fs::path("steps") / fmt::format("{}.h5", first_step); }

RunFile::RunFile(fs::path directory, RunDescription description, std::int64_t resumed_step,
                 std::size_t rows_per_part)
    : path_(std::move(directory) / "run.h5"),
      description_(std::move(description)),
      rows_per_part_(rows_per_part) {
  make_directory(path_.parent_path());
  std::error_code error;
  if (resumed_step > 0 && fs::exists(fs::symlink_status(path_, error)))
    or_begin_anew([&] {
      RunContent earlier = read_run_file(path_);
      parts_ = std::move(earlier.parts);
      rows_ = std::move(earlier.rows);
      evaluations_ = std::move(earlier.evaluations);
      forget_from(resumed_step);
    });
  write();
}

void RunFile::add(Row row) {
  if (row.predicted_s == 0.0) row.predicted_s = description_.predicted_iteration_s;
  rows_.push_back(std::move(row));
  if (now_ns() >= next_write_ns_ || rows_.size() % rows_per_part_ == 0) write_or_warn();
}

void RunFile::write_or_warn() {
  try {
    write();
  } catch (const Error& failure) {
    log::warn("metrics stay in memory until the next try: {}", failure.what());
  }
}

void RunFile::add(EvaluationRow row) {
  std::erase_if(evaluations_, [&](const EvaluationRow& old) { return old.step == row.step; });
  evaluations_.push_back(row);
}

void RunFile::rewind(std::int64_t steps) {
  or_begin_anew([&] { forget_from(steps); });
}

/// Metrics are not worth a training: when those that are there cannot be read, they are set aside.
void RunFile::or_begin_anew(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    std::vector<fs::path> damaged;
    std::error_code missing;
    for (const char* name : {"run.h5", "steps"})
      if (fs::exists(fs::symlink_status(path_.parent_path() / name, missing)))
        damaged.emplace_back(name);
    const fs::path folder = set_aside(path_.parent_path(), "damaged", damaged);
    parts_.clear();
    rows_.clear();
    evaluations_.clear();
    log::warn("{}; earlier metrics are now in {}, and a new run.h5 begins here", error.what(),
              folder.string());
  }
}

/// @throws Error(input) when a part cannot be read
void RunFile::forget_from(std::int64_t steps) {
  while (!parts_.empty() && parts_.back().end_step > steps) {
    rows_ = read_part(path_.parent_path(), parts_.back());
    parts_.pop_back();
  }
  std::erase_if(rows_, [&](const Row& row) { return row.metrics.step >= steps; });
  std::erase_if(evaluations_, [&](const EvaluationRow& row) { return row.step > steps; });
}

/// Writes rows to a part. The file still shows them as its own until it is written again.
void RunFile::move_to_part() {
  const RunPart part{.first_step = rows_.front().metrics.step,
                     .end_step = rows_.back().metrics.step + 1,
                     .rows = std::int64_t(rows_.size()),
                     .ranks = std::int64_t(widest(rows_))};
  Bytes image;
  {
    Hdf5Writer file;
    file.attribute("/", "filetype", std::string(part_filetype));
    file.attribute("/", "version", run_version);
    RowsWriter(file, rows_).put_all();
    image = file.image();
  }
  seal(image);
  make_directory((path_.parent_path() / part.name()).parent_path());
  write_file(path_.parent_path() / part.name(), image);
  parts_.push_back(part);
  rows_.clear();
}

void RunFile::write() {
  constexpr std::int64_t every_ns = 10'000'000'000;
  const std::int64_t start_ns = now_ns();
  next_write_ns_ = start_ns + every_ns;
  if (rows_.size() >= rows_per_part_) move_to_part();
  Bytes image;
  {
    Hdf5Writer file;
    put_description(file, description_);
    put_parts(file, parts_);
    RowsWriter(file, rows_, parts_).put_all();
    put_evaluations(file, evaluations_);
    image = file.image();
  }
  seal(image);
  write_file(path_, image);
  const std::int64_t took_ns = now_ns() - start_ns;
  next_write_ns_ = start_ns + std::max(every_ns, 20 * took_ns);
}

}  // namespace brume::io
