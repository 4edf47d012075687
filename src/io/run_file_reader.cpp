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
std::int64_t check_version(const Hdf5Reader& file, const std::string& name) {
  require(file.text("/", "filetype") == run_filetype, Failure::input, "{}: is no run.h5", name);
  const std::vector<std::int64_t> version = file.integers("/", "version");
  require(version.size() == 2 && version[0] == run_version[0], Failure::input,
          "{}: has layout version {}, this program reads {}", name, fmt::join(version, "."),
          run_version[0]);
  return version[1];
}

RunDescription get_description(const Hdf5Reader& file) {
  RunDescription d;
  d.version = file.text("/", "brume_version");
  d.deck_text = file.text("/", "deck");
  d.plan_text = file.text("/", "plan");
  d.profile_text = file.text("/", "profile");
  const std::vector<std::int64_t> ranks = file.integers("/", "ranks");
  require(ranks.size() == 1 && ranks[0] >= 1 && ranks[0] <= std::numeric_limits<int>::max(),
          Failure::input, "run.h5: ranks is no number of ranks");
  d.ranks = int(ranks[0]);
  d.predicted_iteration_s = file.real("/", "iteration_predicted_s");
  file.read("/memory/placed_device_bytes", d.predicted_bytes);
  file.read("/memory/placed_host_bytes", d.host_bytes);
  return d;
}

void get_channels(const Hdf5Reader& file, std::vector<Row>& rows) {
  constexpr hsize_t channels = schedule::num_channels;
  for (const ChannelColumn& column : channel_columns) {
    const auto values = get<double>(file, column.path, {rows.size(), channels});
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(values.data() + i * channels, channels, column.at(rows[i]).begin());
  }
}

void get_peaks(const Hdf5Reader& file, std::vector<Row>& rows) {
  const std::string path = "/steps/peak_resident_bytes";
  const std::vector<hsize_t> shape = file.shape(path);
  const hsize_t ranks = shape.size() == 2 ? shape[1] : 0;
  const auto values = get<std::int64_t>(file, path, {rows.size(), ranks});
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i].peak_bytes.assign(values.data() + i * ranks, values.data() + (i + 1) * ranks);
}

void get_skipped(const Hdf5Reader& file, std::vector<Row>& rows) {
  const auto skipped = get<std::int64_t>(file, skipped_path, {rows.size()});
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].metrics.skipped = skipped[i] != 0;
}

std::vector<Row> get_rows(const Hdf5Reader& file, std::int64_t minor_version) {
  const hsize_t count = length(file, "/steps/step");
  const auto steps = get<std::int64_t>(file, "/steps/step", {count});
  std::vector<Row> rows(count);
  for (std::size_t i = 0; i < count; ++i) rows[i].metrics.step = steps[i];
  for (const Column& column : columns) {
    const auto values = get<double>(file, column.path, {count});
    for (std::size_t i = 0; i < count; ++i) column.at(rows[i]) = values[i];
  }
  if (minor_version >= 1) get_skipped(file, rows);
  get_channels(file, rows);
  get_peaks(file, rows);
  return rows;
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
  constexpr std::int64_t max_bytes = std::int64_t{1} << 34;
  const Hdf5Reader file(read_file(path, Failure::input, max_bytes), path.string(), Failure::input);
  const std::int64_t minor_version = check_version(file, path.string());
  return {get_description(file), get_rows(file, minor_version), get_evaluations(file)};
}

}  // namespace brume::io
