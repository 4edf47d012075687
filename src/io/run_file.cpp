#include "io/run_file.hpp"

#include <algorithm>
#include <chrono>
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

/// Writes one dataset with its unit and what it means.
template <typename T>
void put(Hdf5Writer& file, const std::string& path, const char* units, const char* description,
         const std::vector<T>& values, const std::vector<hsize_t>& shape) {
  file.dataset(path, values, shape);
  file.attribute(path, "units", std::string(units));
  file.attribute(path, "description", std::string(description));
}

void put_description(Hdf5Writer& file, const RunDescription& d) {
  const std::int64_t ranks = d.ranks;
  file.attribute("/", "filetype", std::string(run_filetype));
  file.attribute("/", "version", run_version);
  file.attribute("/", "brume_version", d.version);
  file.attribute("/", "deck", d.deck_text);
  file.attribute("/", "plan", d.plan_text);
  file.attribute("/", "profile", d.profile_text);
  file.attribute("/", "ranks", std::span(&ranks, 1));
  file.attribute("/", "iteration_predicted_s", d.predicted_iteration_s);
  put(file, "/memory/placed_device_bytes", "B", "[rank] device memory of the placed Program",
      d.predicted_bytes, {d.predicted_bytes.size()});
  put(file, "/memory/placed_host_bytes", "B", "[rank] pinned host memory of the placed Program",
      d.host_bytes, {d.host_bytes.size()});
}

void put_channels(Hdf5Writer& file, std::vector<Row>& rows) {
  std::vector<const char*> names;
  for (int c = 0; c < schedule::num_channels; ++c) names.push_back(name(schedule::Channel(c)));
  for (const ChannelColumn& column : channel_columns) {
    std::vector<double> values;
    for (Row& row : rows) values.insert(values.end(), column.at(row).begin(), column.at(row).end());
    put(file, column.path, column.units, column.description, values, {rows.size(), names.size()});
    file.attribute(column.path, "channels", names);
  }
}

/// Rows may come from plans of different numbers of ranks: the widest counts.
void put_peaks(Hdf5Writer& file, const std::vector<Row>& rows) {
  std::size_t ranks = 0;
  for (const Row& row : rows) ranks = std::max(ranks, row.peak_bytes.size());
  std::vector<std::int64_t> peaks(rows.size() * ranks, 0);
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::ranges::copy(rows[i].peak_bytes, peaks.begin() + std::ptrdiff_t(i * ranks));
  put(file, "/steps/peak_resident_bytes", "B",
      "[step, rank] largest resident set so far; 0: not measured, or no such rank in that step",
      peaks, {rows.size(), ranks});
}

void put_steps(Hdf5Writer& file, std::vector<Row>& rows) {
  std::vector<std::int64_t> steps, skipped;
  for (const Row& row : rows) {
    steps.push_back(row.metrics.step);
    skipped.push_back(row.metrics.skipped);
  }
  put(file, "/steps/step", "1", "number of the step, from 0", steps, {rows.size()});
  put(file, skipped_path, "1", "1: loss or gradient norm is not finite, so there was no update",
      skipped, {rows.size()});
  for (const Column& column : columns) {
    std::vector<double> values;
    for (Row& row : rows) values.push_back(column.at(row));
    put(file, column.path, column.units, column.description, values, {rows.size()});
  }
  put_channels(file, rows);
  put_peaks(file, rows);
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

RunFile::RunFile(fs::path directory, RunDescription description, std::int64_t resumed_step)
    : path_(std::move(directory) / "run.h5"), description_(std::move(description)) {
  make_directory(path_.parent_path());
  std::error_code error;
  if (resumed_step > 0 && fs::exists(path_, error)) {
    RunContent earlier = read_run_file(path_);
    rows_ = std::move(earlier.rows);
    evaluations_ = std::move(earlier.evaluations);
    rewind(resumed_step);
  }
  write();
}

void RunFile::add(Row row) {
  if (row.predicted_s == 0.0) row.predicted_s = description_.predicted_iteration_s;
  rows_.push_back(std::move(row));
  if (now_ns() < next_write_ns_) return;
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
  std::erase_if(rows_, [&](const Row& row) { return row.metrics.step >= steps; });
  std::erase_if(evaluations_, [&](const EvaluationRow& row) { return row.step > steps; });
}

void RunFile::write() {
  constexpr std::int64_t every_ns = 10'000'000'000;
  const std::int64_t start_ns = now_ns();
  next_write_ns_ = start_ns + every_ns;
  Bytes image;
  {
    const std::size_t row_bytes =
        (columns.size() + 2 * schedule::num_channels + 3) * sizeof(double) +
        std::size_t(description_.ranks) * sizeof(std::int64_t);
    Hdf5Writer file((1 << 17) + rows_.size() * row_bytes);
    put_description(file, description_);
    put_steps(file, rows_);
    put_evaluations(file, evaluations_);
    image = file.image();
  }
  replace_file(path_, image);
  const std::int64_t took_ns = now_ns() - start_ns;
  next_write_ns_ = start_ns + std::max(every_ns, 20 * took_ns);
}

}  // namespace brume::io
