#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "files.hpp"
#include "hdf5_file.hpp"
#include "io/run_file.hpp"
#include "run_columns.hpp"

namespace brume::io {
namespace {

/// Reads a dataset and checks its shape. @return values, slowest index first
template <typename T>
std::vector<T> get(const Hdf5Reader& file, const std::string& path,
                   const std::vector<hsize_t>& shape) {
  require(file.shape(path) == shape, Failure::input, "run.h5: {} has shape [{}], expected [{}]",
          path, fmt::join(file.shape(path), ", "), fmt::join(shape, ", "));
  std::vector<T> values;
  file.read(path, values);
  return values;
}

hsize_t length(const Hdf5Reader& file, const std::string& path) {
  const std::vector<hsize_t> shape = file.shape(path);
  require(!shape.empty(), Failure::input, "run.h5: {} has no length", path);
  return shape[0];
}

/// @return the minor version
std::int64_t check_version(const Hdf5Reader& file, const std::string& name, const char* filetype) {
  require(file.text("/", "filetype") == filetype, Failure::input, "{}: is no {} file", name,
          filetype);
  const std::vector<std::int64_t> version = file.integers("/", "version");
  require(version.size() == 2 && version[0] == run_version[0] && version[1] >= oldest_run_minor,
          Failure::input,
          "{}: has layout version {}, this program reads {}.{} and later ones of {}", name,
          fmt::join(version, "."), run_version[0], oldest_run_minor, run_version[0]);
  return version[1];
}

RunDescription get_description(const Hdf5Reader& file, std::int64_t minor) {
  RunDescription d;
  if (file.integers("/", "version")[1] >= named_run_minor) d.run = file.text("/", "run");
  d.version = file.text("/", "brume_version");
  d.deck_text = file.text("/", "deck");
  d.plan_text = file.text("/", "plan");
  d.profile_text = file.text("/", "profile");
  const std::vector<std::int64_t> ranks = file.integers("/", "ranks");
  require(ranks.size() == 1 && ranks[0] >= 1 && ranks[0] <= std::numeric_limits<int>::max(),
          Failure::input, "run.h5: ranks is no number of ranks");
  d.ranks = int(ranks[0]);
  if (minor >= 7) d.ended = file.text("/", "ended");
  d.predicted_iteration_s = file.real("/", "iteration_predicted_s");
  file.read("/memory/placed_device_bytes", d.predicted_bytes);
  file.read("/memory/placed_host_bytes", d.host_bytes);
  file.read(copies_path, d.copy_bytes);
  return d;
}

void get_channels(const Hdf5Reader& file, const std::string& group, std::vector<Row>& rows) {
  for (const ChannelColumn& column : channel_columns) {
    // A program without some of the channels wrote fewer.
    const std::vector<hsize_t> shape = file.shape(group + column.path);
    const hsize_t channels = shape.size() == 2 ? shape[1] : 0;
    require(channels <= schedule::num_channels, Failure::input, "run.h5: {} channels, at most {}",
            channels, schedule::num_channels);
    const auto values = get<double>(file, group + column.path, {rows.size(), channels});
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(values.data() + i * channels, channels, (rows[i].metrics.*column.of).begin());
  }
}

void get_peaks(const Hdf5Reader& file, const std::string& group, std::vector<Row>& rows) {
  const std::string path = group + peaks_path;
  const std::vector<hsize_t> shape = file.shape(path);
  const hsize_t ranks = shape.size() == 2 ? shape[1] : 0;
  const auto values = get<std::int64_t>(file, path, {rows.size(), ranks});
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i].peak_bytes.assign(values.data() + i * ranks, values.data() + (i + 1) * ranks);
}

void get_skipped(const Hdf5Reader& file, const std::string& group, std::vector<Row>& rows) {
  const auto skipped = get<std::int64_t>(file, group + skipped_path, {rows.size()});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].metrics.skipped = skipped[i] != 0;
    rows[i].metrics.nothing_learned = skipped[i] == 2;
  }
}

/// @param group  where "/steps" is
std::vector<Row> get_rows(const Hdf5Reader& file, const std::string& group, std::int64_t minor) {
  const hsize_t count = length(file, group + "/steps/step");
  const auto steps = get<std::int64_t>(file, group + "/steps/step", {count});
  std::vector<Row> rows(count);
  for (std::size_t i = 0; i < count; ++i) rows[i].metrics.step = steps[i] - 1;
  for (const Column& column : columns) {
    if (minor < column.since) continue;
    const auto values = get<double>(file, group + column.path, {count});
    for (std::size_t i = 0; i < count; ++i) column.at(rows[i]) = values[i];
  }
  get_skipped(file, group, rows);
  get_channels(file, group, rows);
  get_peaks(file, group, rows);
  return rows;
}

std::vector<RunPart> get_parts(const Hdf5Reader& file) {
  const auto numbers = get<std::int64_t>(file, parts_path, {length(file, parts_path), 4});
  std::vector<RunPart> parts;
  for (std::size_t i = 0; i < numbers.size(); i += 4) {
    parts.push_back({numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]});
    const RunPart& part = parts.back();
    require(part.first_step >= 0 && part.rows > 0 && part.end_step > part.first_step,
            Failure::input, "run.h5: part {} holds no rows", part.first_step);
  }
  return parts;
}

std::vector<EvaluationRow> get_evaluations(const Hdf5Reader& file) {
  const hsize_t count = length(file, "/evaluations/step");
  const auto steps = get<std::int64_t>(file, "/evaluations/step", {count});
  const auto losses = get<double>(file, "/evaluations/loss", {count});
  std::vector<EvaluationRow> rows;
  for (std::size_t i = 0; i < count; ++i) rows.push_back({steps[i], losses[i]});
  return rows;
}

}  // namespace

RunContent read_run_file(const std::filesystem::path& path) {
  const Hdf5Reader file(path, Failure::input, Checked::by_seal);
  const std::int64_t minor = check_version(file, path.string(), run_filetype);
  RunContent content{.description = get_description(file, minor),
                     .parts = get_parts(file),
                     .rows = {},
                     .evaluations = get_evaluations(file)};
  content.rows = get_rows(file, content.parts.empty() ? "" : recent_group, minor);
  return content;
}

std::vector<Row> read_part(const std::filesystem::path& directory, const RunPart& part) {
  const std::filesystem::path path = directory / part.name();
  const Hdf5Reader file(path, Failure::input, Checked::by_seal);
  const std::int64_t minor = check_version(file, path.string(), part_filetype);
  std::vector<Row> rows = get_rows(file, "", minor);
  require(std::int64_t(rows.size()) == part.rows && rows.front().metrics.step == part.first_step,
          Failure::input, "{}: holds {} steps, run.h5 says {} after step {}", path.string(),
          rows.size(), part.rows, part.first_step);
  return rows;
}

}  // namespace brume::io
