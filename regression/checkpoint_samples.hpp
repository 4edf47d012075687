/// @file Small checkpoints of known values, without an engine: for tests that damage, fill and
/// kill.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "io/checkpoint.hpp"
#include "own_folder.hpp"

namespace brume::io {

namespace fs = std::filesystem;

inline constexpr int num_ranks = 2;
inline constexpr std::int64_t rows = 40, cols = 30;

/// Element of the state after `step` steps; exact in float.
inline float value(std::int64_t step, std::int64_t kind, std::int64_t element) {
  return float(step * 4096 + kind * 2000 + element);
}

/// A rank's memory: some rows of a matrix and of its moments.
struct Memory {
  Memory(std::int64_t first_row, std::int64_t num_rows) {
    for (const char* kind : {"weight", "m", "v"}) {
      values.emplace_back(std::size_t(num_rows * cols), -1.0f);
      slabs.push_back({.name = "table",
                       .kind = kind,
                       .global_shape = {rows, cols},
                       .offset = {first_row, 0},
                       .shape = {num_rows, cols},
                       .first = 0,
                       .elements = num_rows * cols,
                       .data = values.back().data(),
                       .owned = true});
    }
  }

  void fill(std::int64_t step) {
    for (std::size_t kind = 0; kind < slabs.size(); ++kind)
      for (std::int64_t i = 0; i < slabs[kind].elements; ++i)
        values[kind][std::size_t(i)] =
            value(step, std::int64_t(kind), slabs[kind].offset[0] * cols + i);
  }

  bool holds(std::int64_t step) const {
    Memory other(slabs[0].offset[0], slabs[0].shape[0]);
    other.fill(step);
    return values == other.values;
  }

  std::vector<std::vector<float>> values;
  std::vector<engine::Slab> slabs;
};

/// A weight of one rank.
inline engine::Slab table_of(std::vector<float>& values) {
  const auto elements = std::int64_t(values.size());
  return {.name = "table",
          .kind = "weight",
          .global_shape = {elements},
          .offset = {0},
          .shape = {elements},
          .elements = elements,
          .data = values.data(),
          .owned = true};
}

inline CheckpointInfo info_of(std::int64_t step) {
  CheckpointInfo info;
  info.step = step;
  info.deck_text = "[training]\nsteps = 100\n";
  info.model_text = "gpt";
  return info;
}

inline void save(const fs::path& directory, std::vector<std::int64_t> steps,
                 CheckpointInfo base = {}, bool copies = true, Retention retention = {},
                 std::map<std::int64_t, double> losses = {}) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory, world, copies ? std::int64_t{1} << 40 : 0, retention);
    Memory memory(world.rank() * rows / num_ranks, rows / num_ranks);
    for (const std::int64_t step : steps) {
      memory.fill(step);
      CheckpointInfo info = base.deck_text.empty() ? info_of(step) : base;
      info.step = step;
      if (losses.contains(step)) info.valid_loss = losses.at(step);
      writer.start(info, memory.slabs);
      memory.fill(-1);  // training goes on: what is written is the snapshot
    }
    writer.finish();
  });
}

/// The newest whole checkpoint, found by two ranks together.
inline std::optional<CheckpointInfo> find(const fs::path& directory) {
  std::optional<CheckpointInfo> info;
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    const std::optional<CheckpointInfo> found = find_checkpoint(world, directory);
    if (world.rank() == 0) info = found;
  });
  return info;
}

inline CheckpointInfo open(const fs::path& checkpoint) {
  CheckpointInfo info;
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    const CheckpointInfo opened = open_checkpoint(world, checkpoint);
    if (world.rank() == 0) info = opened;
  });
  return info;
}

/// The step of the newest checkpoint whose content is right; -1 when there is none.
inline std::int64_t newest(const fs::path& directory) {
  const std::optional<CheckpointInfo> info = find(directory);
  if (!info) return -1;
  Memory memory(0, rows);
  load_slabs(*info, memory.slabs);
  EXPECT_TRUE(memory.holds(info->step)) << info->step;
  return info->step;
}

inline std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.insert(entry.path().filename().string());
  return names;
}

inline std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// Files of this process may have at most so many bytes: the way a full disk fails, at a byte of
/// our choice.
class FileLimit {
 public:
  explicit FileLimit(std::size_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit mine{bytes, limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &mine);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, before_);
  }

 private:
  rlimit limit_{};
  void (*before_)(int);
};

/// Checkpoints in a run directory of its own, removed at the end.
class CheckpointFault : public ::testing::Test {
 protected:
  fs::path checkpoints() const { return directory_ / "checkpoints"; }
  fs::path step(int number) const { return checkpoints() / ("step-" + std::to_string(number)); }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
};

}  // namespace brume::io
