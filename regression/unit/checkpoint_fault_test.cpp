#include <fcntl.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "checkpoint_samples.hpp"
#include "device/memory.hpp"
#include "io/checkpoint.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"

namespace {

/// Transfers past the system's cache that were refused, as some file systems do after they have
/// taken the flag; -1: they are not refused.
std::atomic<int> refused = -1;

bool refuses(int file) {
  if (refused < 0 || (::fcntl(file, F_GETFL) & O_DIRECT) == 0) return false;
  ++refused;
  errno = EINVAL;
  return true;
}

/// Notes which threads read which files, as long as it lives.
class Watch {
 public:
  Watch() { watch_ = this; }
  ~Watch() { watch_ = nullptr; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static void note(int file) {
    Watch* const watch = watch_;
    struct stat status = {};
    if (watch == nullptr || ::fstat(file, &status) != 0) return;
    const std::lock_guard lock(watch->mutex_);
    watch->readers_[status.st_ino].insert(std::this_thread::get_id());
  }

  /// The one thread that has read a file.
  std::thread::id reader(const std::filesystem::path& path) const {
    struct stat status = {};
    ::stat(path.c_str(), &status);
    const auto found = readers_.find(status.st_ino);
    if (found == readers_.end() || found->second.size() != 1) {
      ADD_FAILURE() << path << " was not read by one thread";
      return {};
    }
    return *found->second.begin();
  }

 private:
  static inline std::atomic<Watch*> watch_ = nullptr;
  std::mutex mutex_;
  std::map<ino_t, std::set<std::thread::id>> readers_;
};

}  // namespace

extern "C" ssize_t write(int file, const void* data, std::size_t bytes) {
  return refuses(file) ? -1 : ::syscall(SYS_write, file, data, bytes);
}
extern "C" ssize_t pread(int file, void* data, std::size_t bytes, off_t at) {
  Watch::note(file);
  return refuses(file) ? -1 : ::syscall(SYS_pread64, file, data, bytes, at);
}

namespace brume::io {
namespace {

/// Gives a changed file of a checkpoint hashes that fit.
void reseal(const fs::path& checkpoint, const std::string& name) {
  const auto hash = [](const std::string& bytes) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  };
  nlohmann::json manifest = nlohmann::json::parse(content(checkpoint / "manifest.json"));
  for (nlohmann::json& file : manifest.at("files"))
    if (file.at("name") == name) {
      const std::string bytes = content(checkpoint / name);
      file["bytes"] = bytes.size();
      file["xxh3_128"] = hash(bytes);
    }
  manifest.erase("manifest_xxh3_128");
  manifest["manifest_xxh3_128"] = hash(manifest.dump());
  put(checkpoint / "manifest.json", manifest.dump());
}

TEST_F(CheckpointFault, WrittenFromWhereValuesLieTheFilesAreTheSame) {
  const auto files = [&] {
    return content(step(20) / "rank-0.h5") + content(step(20) / "rank-1.h5");
  };
  save(directory_, {10, 20});
  const std::string copied = files();
  save(directory_, {10, 20}, {}, false);
  EXPECT_EQ(newest(directory_), 20);
  EXPECT_EQ(files(), copied);
}

constexpr std::int64_t large_elements = (std::int64_t{12} << 20) + 5;  // 48 MiB

/// One rank writes step 10.
void save_large(const fs::path& directory, std::vector<float>& values, bool copies) {
  comm::run_local(1, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory, world, copies ? std::int64_t{1} << 40 : 0);
    writer.start(info_of(10), {table_of(values)});
    writer.finish();
  });
}

/// What is read of it.
std::vector<float> load_large(const fs::path& directory) {
  std::vector<float> read(large_elements, -1.0f);
  std::vector<engine::Slab> slabs{table_of(read)};
  load_slabs(find(directory).value(), slabs);
  return read;
}

std::vector<float> large_values() {
  std::vector<float> values(large_elements);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

/// Bytes of a file that the system's cache holds.
std::int64_t cached_bytes(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY));
  const std::size_t bytes = fs::file_size(path), page = 4096;
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  EXPECT_EQ(::mincore(mapped, bytes, pages.data()), 0);
  ::munmap(mapped, bytes);
  return std::ranges::count_if(pages, [](unsigned char there) { return (there & 1) != 0; }) *
         std::int64_t(page);
}

/// Whether files in a folder can be opened so that they pass the system's cache by.
bool has_direct_files(const fs::path& folder) {
  return Descriptor(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT, 0600)).get() >= 0;
}

TEST_F(CheckpointFault, LeavesTheCacheAndItsTimeToTheTraining) {
  struct statfs system = {};
  ::statfs(directory_.c_str(), &system);
  if (system.f_type == TMPFS_MAGIC || !has_direct_files(directory_))
    GTEST_SKIP() << "this file system has nothing but a cache";
  std::vector<float> values = large_values();
  for (const bool copies : {false, true}) {
    save_large(directory_, values, copies);
    EXPECT_LE(cached_bytes(step(10) / "rank-0.h5"), 8 << 20);
  }
  EXPECT_EQ(load_large(directory_), values);
}

TEST_F(CheckpointFault, GoesThroughTheCacheWhereAFileSystemRefusesToPassItBy) {
  if (!has_direct_files(directory_)) GTEST_SKIP() << "this file system does not take the flag";
  std::vector<float> values = large_values();
  refused = 0;
  save_large(directory_, values, true);
  EXPECT_EQ(refused.exchange(-1), 2);  // writing, and reading back
  EXPECT_EQ(load_large(directory_), values);
}

/// The peak of this process while `work` runs, above what it held before [bytes].
template <typename Work>
std::int64_t growth(Work&& work) {
  device::release_unused();
  const std::int64_t before = device::peak_resident_bytes();
  work();
  return device::peak_resident_bytes() - before;
}

TEST_F(CheckpointFault, TakesLittleMemoryForLargeTensors) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer adds memory to what is touched";
#endif
  std::vector<float> values = large_values();
  const std::int64_t writing = growth([&] { save_large(directory_, values, false); });
  EXPECT_LE(writing, 16 << 20);

  std::vector<float> read(large_elements, -1.0f);
  constexpr std::int64_t half = large_elements / 2;
  std::vector<engine::Slab> halves{table_of(read), table_of(read)};
  halves[0].elements = halves[1].first = half;
  halves[1].elements = large_elements - half;
  halves[1].data += half;
  const std::int64_t reading = growth([&] { load_slabs(find(directory_).value(), halves); });
  EXPECT_LE(reading, 16 << 20);
  EXPECT_EQ(read, values);
}

/// A checkpoint of many ranks, whose files are empty, with so many slabs each.
std::int64_t put_manifest(const fs::path& checkpoint, int ranks, int slabs) {
  const auto hash = [](const std::string& bytes) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  };
  std::string list, text = R"({"data":"","deck":"","files":[)";
  for (int n = 0; n < slabs; ++n)
    list += fmt::format(R"({}["layers.{}.mlp.weight","weight",[8192,8192],[0,0],[8192,8192],0,8])",
                        n > 0 ? "," : "", n);
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format(R"({}{{"bytes":0,"name":"rank-{}.h5","slabs":[{}],"xxh3_128":"{}"}})",
                        rank > 0 ? "," : "", rank, list, hash(""));
    put(checkpoint / fmt::format("rank-{}.h5", rank), "");
  }
  text += R"(],"filetype":"brume checkpoint",)";
  const std::string rest = fmt::format(
      R"("model":"gpt","plan":"","profile":"","ranks":{},"step":10,"version":[1,1]}})", ranks);
  put(checkpoint / "manifest.json",
      text + fmt::format(R"("manifest_xxh3_128":"{}",)", hash(text + rest)) + rest);
  return std::int64_t(text.size());
}

// Each rank of a node reads a manifest, in which all ranks' slabs are.
TEST_F(CheckpointFault, AManifestTakesAboutAsMuchMemoryAsItsText) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer adds memory to what is touched";
#endif
  save(directory_, {10});
  const std::int64_t bytes = put_manifest(step(10), 256, 384);
  ASSERT_GT(bytes, 6 << 20);
  CheckpointInfo info;
  EXPECT_LE(growth([&] { info = open(step(10)); }), 2 * bytes);
  EXPECT_EQ(info.ranks, 256);
}

TEST_F(CheckpointFault, KeepsTwoGenerations) {
  save(directory_, {10, 20, 30, 40});
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"step-30", "step-40"}));
  EXPECT_EQ(newest(directory_), 40);
}

TEST_F(CheckpointFault, KeepsMilestonesForEver) {
  save(directory_, {10, 20, 30, 40, 50}, {}, true, {.last = 1, .every = 20});
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"step-20", "step-40", "step-50"}));
}

// Also across jobs, the later of which only reads the losses of the earlier one's.
TEST_F(CheckpointFault, KeepsTheBestByValidation) {
  const Retention retention{.last = 1, .best = true};
  const std::map<std::int64_t, double> losses{{10, 3.0}, {20, 2.0}, {30, 2.5}, {40, 2.25}};
  save(directory_, {10, 20, 30}, {}, true, retention, losses);
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"step-20", "step-30"}));
  save(directory_, {40, 50}, {}, true, retention, losses);
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"step-20", "step-50"}));
  save(directory_, {60}, {}, true, retention, {{60, 1.5}});
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"step-60"}));
}

// JSON cannot carry such a loss. The weights are whole, and no loss is less than one that is
// finite.
TEST_F(CheckpointFault, ALossThatIsNotFiniteLeavesTheCheckpointWhole) {
  const double infinity = std::numeric_limits<double>::infinity();
  save(directory_, {10, 20, 30, 40}, {}, true, {.last = 1, .best = true},
       {{10, 3.0}, {20, NAN}, {30, -infinity}, {40, infinity}});
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"step-10", "step-40"}));
  EXPECT_EQ(newest(directory_), 40);
  EXPECT_EQ(content(step(40) / "manifest.json").find("valid_loss"), std::string::npos);
}

// Older programs wrote null.
TEST_F(CheckpointFault, ALossOfNullIsNone) {
  save(directory_, {10});
  nlohmann::json manifest = nlohmann::json::parse(content(step(10) / "manifest.json"));
  manifest["valid_loss"] = nullptr;
  put(step(10) / "manifest.json", manifest.dump());
  reseal(step(10), "rank-0.h5");
  EXPECT_EQ(newest(directory_), 10);
  EXPECT_EQ(find(directory_).value().valid_loss, std::nullopt);
}

// The damaged one does not count as a generation, so the one before it stays.
TEST_F(CheckpointFault, RetentionCountsWholeGenerationsOnly) {
  save(directory_, {10, 20});
  put(step(20) / "rank-1.h5", "damaged");
  save(directory_, {30});
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"step-10", "step-30"}));
}

TEST_F(CheckpointFault, NoCheckpointIsNoError) {
  EXPECT_EQ(newest(directory_), -1);
  EXPECT_EQ(newest(directory_ / "missing"), -1);
}

// A flip in a space between JSON tokens may be no damage; then all values must be right.
TEST_F(CheckpointFault, FlippedBitsFallBackToTheGenerationBefore) {
  save(directory_, {10, 20});
  const std::vector<fs::path> files = {step(20) / "rank-0.h5", step(20) / "rank-1.h5",
                                       step(20) / "manifest.json"};
  std::mt19937 random(17);
  int detected = 0;
  for (int i = 0; i < 300; ++i) {
    const fs::path& file = files[std::size_t(i) % files.size()];
    const std::string whole = content(file);
    std::string damaged = whole;
    char& victim = damaged[random() % damaged.size()];
    victim = char(victim ^ (1 << random() % 8));
    put(file, damaged);
    const std::int64_t found = newest(directory_);
    if (file.extension() == ".h5") {
      EXPECT_EQ(found, 10);
      EXPECT_THROW(open(step(20)), Error);
    }
    EXPECT_TRUE(found == 10 || found == 20);
    detected += found == 10;
    put(file, whole);
  }
  EXPECT_GE(detected, 250);
  EXPECT_EQ(newest(directory_), 20);
}

TEST_F(CheckpointFault, CutFilesFallBack) {
  save(directory_, {10, 20});
  std::mt19937 random(23);
  for (int i = 0; i < 100; ++i) {
    const fs::path file = step(20) / (i % 2 == 0 ? "rank-1.h5" : "manifest.json");
    const std::string whole = content(file);
    // Without its last character, a line feed, the manifest is whole.
    put(file, whole.substr(0, i < 2 ? 0 : random() % (whole.size() - 1)));
    EXPECT_EQ(newest(directory_), 10);
    put(file, whole);
  }
}

// They would be read, and linked to, wherever they lie.
TEST_F(CheckpointFault, NamesOfOtherFilesAreRefused) {
  for (const char* name :
       {"../rank-1.h5", "/etc/passwd", "frozen-.h5", "rank-1.h5/..", "frozen-1.h5x"}) {
    save(directory_, {10});
    fs::copy_file(step(10) / "rank-1.h5", checkpoints() / "rank-1.h5",
                  fs::copy_options::overwrite_existing);
    nlohmann::json manifest = nlohmann::json::parse(content(step(10) / "manifest.json"));
    manifest.at("files").at(1).at("name") = name;
    put(step(10) / "manifest.json", manifest.dump());
    reseal(step(10), name);
    const std::string said = test::refusal([&] { open(step(10)); }, Failure::storage);
    EXPECT_NE(said.find("which no checkpoint has"), std::string::npos) << said;
  }
}

// JSON calls itself for each level when it writes, and so ends the process when they are many.
TEST_F(CheckpointFault, DeepManifestsFallBack) {
  save(directory_, {10, 20});
  const std::string levels(300'000, '['), ends(300'000, ']');
  for (const std::string& damage : {levels + ends, levels})
    for (const char* begin : {"", R"({"manifest_xxh3_128": "0", "a": )"}) {
      put(step(20) / "manifest.json", begin + damage + (*begin != '\0' ? "}" : ""));
      EXPECT_EQ(newest(directory_), 10);
    }
}

// A file that a rank wrote wrongly has a hash that fits.
TEST_F(CheckpointFault, DeepGroupsInARankFileAreNotWalkedOver) {
  save(directory_, {10});
  const fs::path path = step(10) / "rank-0.h5";
  const hid_t opened = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  hid_t group = H5Gopen2(opened, "/", H5P_DEFAULT);
  for (int depth = 0; depth < 20'000; ++depth) {
    const hid_t next = H5Gcreate2(group, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(group);
    group = next;
  }
  H5Gclose(group);
  H5Fclose(opened);
  reseal(step(10), "rank-0.h5");
  EXPECT_EQ(newest(directory_), 10);
}

TEST_F(CheckpointFault, MissingFilesFallBack) {
  save(directory_, {10, 20});
  fs::remove(step(20) / "rank-1.h5");
  EXPECT_EQ(newest(directory_), 10);
}

// A start from nothing must be asked for.
TEST_F(CheckpointFault, WhereNoCheckpointIsWholeARunDoesNotBeginAnew) {
  save(directory_, {10, 20});
  fs::remove(step(20) / "rank-1.h5");
  fs::remove(step(10) / "manifest.json");
  const std::string said = test::refusal([&] { find(directory_); }, Failure::storage);
  EXPECT_NE(said.find("no checkpoint can be used"), std::string::npos) << said;
}

TEST_F(CheckpointFault, SwappedFilesFallBack) {
  save(directory_, {10, 20});
  fs::rename(step(20) / "rank-0.h5", step(20) / "aside");
  fs::rename(step(20) / "rank-1.h5", step(20) / "rank-0.h5");
  fs::rename(step(20) / "aside", step(20) / "rank-1.h5");
  EXPECT_EQ(newest(directory_), 10);
}

TEST_F(CheckpointFault, FilesOfAnotherStepFallBack) {
  save(directory_, {10, 20});
  fs::copy_file(step(10) / "rank-0.h5", step(20) / "rank-0.h5",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(newest(directory_), 10);
  fs::copy_file(step(10) / "rank-1.h5", step(20) / "rank-1.h5",
                fs::copy_options::overwrite_existing);
  fs::copy_file(step(10) / "manifest.json", step(20) / "manifest.json",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(newest(directory_), 10);
}

TEST_F(CheckpointFault, LinksInPlaceOfFilesAreNotFollowed) {
  save(directory_, {10, 20});
  fs::rename(step(20) / "rank-0.h5", directory_ / "elsewhere.h5");
  fs::create_symlink(directory_ / "elsewhere.h5", step(20) / "rank-0.h5");
  EXPECT_EQ(newest(directory_), 10);
}

// A job that goes on removes the checkpoint that another one reads.
TEST_F(CheckpointFault, AReaderThatHoldsItsFilesOutlivesThem) {
  save(directory_, {10});
  const CheckpointInfo info = find(directory_).value();
  CheckpointReader reader(info);
  reader.hold();
  fs::remove_all(step(10));
  Memory all(0, rows);
  reader.fill(all.slabs);
  EXPECT_TRUE(all.holds(10));
  const std::string said = test::refusal([&] { CheckpointReader again(info); }, Failure::storage);
  EXPECT_NE(said.find("cannot be opened: No such file"), std::string::npos) << said;
}

/// Writes step 30 and keeps so many, after it was told that a checkpoint is whole.
void save_after(const fs::path& directory, const CheckpointInfo& trusted, int last) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory, world, std::int64_t{1} << 40, {.last = last});
    writer.trust(trusted);
    Memory memory(world.rank() * rows / num_ranks, rows / num_ranks);
    memory.fill(30);
    writer.start(info_of(30), memory.slabs);
    writer.finish();
  });
}

// Reading it once more would show the damage.
TEST_F(CheckpointFault, WhatAJobResumesFromIsNotReadAgain) {
  save(directory_, {10, 20});
  const CheckpointInfo info = find(directory_).value();
  fs::create_directory(directory_ / "other");
  fs::copy(checkpoints(), directory_ / "other/checkpoints", fs::copy_options::recursive);
  put(step(20) / "rank-1.h5", "damaged");
  save_after(directory_, info, 2);
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"step-20", "step-30"}));
  // That of another folder says nothing of this one's.
  put(directory_ / "other/checkpoints/step-20/rank-1.h5", "damaged");
  save_after(directory_ / "other", info, 2);
  EXPECT_EQ(names_in(directory_ / "other/checkpoints"),
            (std::set<std::string>{"step-10", "step-30"}));
}

// One rank alone would need as many times as long.
TEST_F(CheckpointFault, OlderGenerationsAreCheckedByAllRanks) {
  save(directory_, {10, 20});
  const Watch watch;
  save_after(directory_, info_of(20), 3);
  for (const int number : {10, 20})
    EXPECT_NE(watch.reader(step(number) / "rank-0.h5"), watch.reader(step(number) / "rank-1.h5"));
}

// A tensor that was frozen has no moments: they begin at zero. One without a weight is missing.
TEST_F(CheckpointFault, MissingElementsAreNamed) {
  save(directory_, {10});
  const CheckpointInfo info = find(directory_).value();
  Memory memory(0, rows);
  memory.slabs[1].name = "bias";
  load_slabs(info, memory.slabs);
  EXPECT_EQ(memory.values[1], std::vector<float>(std::size_t(rows * cols), 0.0f));
  memory.slabs[0].name = "bias";
  try {
    load_slabs(info, memory.slabs);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::storage);
    EXPECT_NE(std::string(error.what()).find("holds no weight of bias"), std::string::npos);
  }
}

// A list that lost all of a moment's slabs is not taken for one of a frozen parameter.
TEST_F(CheckpointFault, OneMomentWithoutTheOtherIsRefused) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world);
    Memory memory(world.rank() * 20, 20);
    memory.fill(10);
    memory.slabs.pop_back();
    writer.start(info_of(10), memory.slabs);
    writer.finish();
  });
  Memory all(0, rows);
  try {
    load_slabs(find(directory_).value(), all.slabs);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::storage);
    EXPECT_NE(std::string(error.what()).find("holds m of table, but not v"), std::string::npos);
  }
}

// Rank 1 writes only half of its rows.
TEST_F(CheckpointFault, GapsAreNamed) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world);
    Memory memory(world.rank() * 20, world.rank() == 0 ? 20 : 10);
    memory.fill(10);
    writer.start(info_of(10), memory.slabs);
    writer.finish();
  });
  const CheckpointInfo info = find(directory_).value();
  Memory first(0, 30), all(0, rows);
  load_slabs(info, first.slabs);
  EXPECT_TRUE(first.holds(10));
  EXPECT_THROW(load_slabs(info, all.slabs), Error);
}

// Rows 15 to 24 are there twice, the last ten never: the number of elements alone is right.
TEST_F(CheckpointFault, DoubleElementsAreRefused) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world);
    Memory memory(world.rank() * 15, world.rank() == 0 ? 25 : 15);
    memory.fill(10);
    writer.start(info_of(10), memory.slabs);
    writer.finish();
  });
  const CheckpointInfo info = find(directory_).value();
  Memory all(0, rows);
  EXPECT_THROW(load_slabs(info, all.slabs), Error);
}

TEST_F(CheckpointFault, DamagedCheckpointIsReplaced) {
  save(directory_, {10});
  put(step(10) / "rank-0.h5", "damaged");
  save(directory_, {10});
  EXPECT_EQ(newest(directory_), 10);

  CheckpointInfo other = info_of(10);
  other.deck_text = "another deck";
  save(directory_, {10}, other);
  EXPECT_EQ(find(directory_)->deck_text, "another deck");
  EXPECT_EQ(names_in(checkpoints()), std::set<std::string>{"step-10"});
}

// Same step, same texts, other values: a run that was started anew must not find its predecessor's.
TEST_F(CheckpointFault, CheckpointOfTheSameStepIsReplaced) {
  save(directory_, {5});
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world);
    Memory memory(world.rank() * rows / num_ranks, rows / num_ranks);
    memory.fill(9);
    writer.start(info_of(5), memory.slabs);
    writer.finish();
  });
  Memory loaded(0, rows);
  load_slabs(open(step(5)), loaded.slabs);
  EXPECT_TRUE(loaded.holds(9));
}

TEST_F(CheckpointFault, WhatIsNotContinuedIsSetAside) {
  save(directory_, {5, 10});
  put(directory_ / "run.h5", "metrics");
  EXPECT_EQ(set_aside(directory_, 10), std::nullopt);
  EXPECT_EQ(set_aside(directory_, 5), directory_ / "previous-1");
  EXPECT_EQ(newest(directory_), 5);
  EXPECT_EQ(newest(directory_ / "previous-1"), 10);
  EXPECT_TRUE(fs::exists(directory_ / "run.h5"));
  EXPECT_EQ(set_aside(directory_, std::nullopt), directory_ / "previous-2");
  EXPECT_EQ(newest(directory_), -1);
  EXPECT_EQ(newest(directory_ / "previous-2"), 5);
  EXPECT_EQ(content(directory_ / "previous-2" / "run.h5"), "metrics");
}

// Sites advise a link: checkpoints/ leads to another file system, to which nothing can be renamed.
TEST_F(CheckpointFault, WhatIsSetAsideStaysOnItsFileSystem) {
  const test::OwnFolder scratch("/dev/shm");
  struct stat here = {}, there = {};
  ::stat(directory_.c_str(), &here);
  ::stat(scratch.path().c_str(), &there);
  if (here.st_dev == there.st_dev) GTEST_SKIP() << "there is one file system";
  fs::create_directory_symlink(scratch.path(), checkpoints());
  put(directory_ / "run.h5", "metrics");
  for (const char* previous : {"previous-1", "previous-2"}) {
    save(directory_, {5, 10});
    EXPECT_EQ(set_aside(directory_, std::nullopt), directory_ / previous);
    EXPECT_EQ(newest(directory_), -1);
    EXPECT_EQ(newest(directory_ / previous), 10);
    EXPECT_EQ(names_in(directory_ / previous / "checkpoints"),
              (std::set<std::string>{"step-5", "step-10"}));
  }
  EXPECT_EQ(content(directory_ / "previous-1" / "run.h5"), "metrics");
  // Whoever deletes the folder of the link loses no number.
  fs::remove_all(directory_ / "previous-2");
  save(directory_, {5});
  EXPECT_EQ(set_aside(directory_, std::nullopt), directory_ / "previous-3");
}

TEST_F(CheckpointFault, WhatAnotherRunLeftIsSetAside) {
  CheckpointInfo theirs = info_of(0), mine = info_of(0);
  theirs.run = "theirs";
  mine.run = "mine";
  save(directory_, {5, 10}, theirs);
  save(directory_, {20}, mine, true, {.last = 9});
  put(directory_ / "metrics.jsonl", "{\"step\":0,\"event\":\"start\"}\n");  // of an older version
  EXPECT_EQ(set_aside(directory_, 20, "mine"), std::nullopt);
  put(directory_ / "metrics.jsonl", "{\"step\":0,\"event\":\"start\",\"run\":\"theirs\"}\n");
  EXPECT_EQ(set_aside(directory_, 20, "mine"), directory_ / "previous-1");
  EXPECT_EQ(names_in(directory_ / "checkpoints"), (std::set<std::string>{"step-20"}));
  EXPECT_EQ(names_in(directory_ / "previous-1"),
            (std::set<std::string>{"checkpoints", "metrics.jsonl"}));
  EXPECT_EQ(open(step(20)).run, "mine");
}

TEST_F(CheckpointFault, AJobKnowsItsOwnCheckpoints) {
  EXPECT_FALSE(has_checkpoint(directory_));
  fs::create_directories(directory_ / "checkpoints" / "step-5.tmp");
  EXPECT_FALSE(has_checkpoint(directory_));
  CheckpointInfo info = info_of(0);
  info.job = "7";
  save(directory_, {5}, info);
  save(directory_, {10});
  EXPECT_TRUE(has_checkpoint(directory_));
  EXPECT_TRUE(has_checkpoint_of(directory_, "7"));
  EXPECT_FALSE(has_checkpoint_of(directory_, "8"));
  EXPECT_FALSE(has_checkpoint_of(directory_, ""));
  EXPECT_TRUE(is_in(directory_, open(step(10))));
  EXPECT_FALSE(is_in(directory_ / "other", open(step(10))));
}

/// A checkpoint of step 0 is of weights that a run may begin with.
TEST_F(CheckpointFault, WeightsThatARunBeginsWithStay) {
  save(directory_, {0, 5});
  put(directory_ / "run.h5", "metrics");
  EXPECT_EQ(set_aside(directory_, 0), directory_ / "previous-1");
  EXPECT_EQ(newest(directory_), 0);
  EXPECT_EQ(names_in(directory_ / "previous-1"), (std::set<std::string>{"checkpoints", "run.h5"}));
}

/// Weights alone, whose values are asked for when they are written: moments begin at zero.
TEST_F(CheckpointFault, WeightsWithoutMomentsAreACheckpoint) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world);
    std::vector<engine::Slab> slabs;
    if (world.rank() == 1)  // another rank's file is empty
      slabs.push_back({.name = "table",
                       .kind = "weight",
                       .global_shape = {rows, cols},
                       .offset = {0, 0},
                       .shape = {rows, cols},
                       .elements = rows * cols,
                       .owned = true});
    writer.write(info_of(0), slabs, [](std::size_t n, std::int64_t first, std::span<float> values) {
      EXPECT_EQ(n, 0u);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = value(0, 0, first + std::int64_t(i));
      return values;
    });
  });
  Memory loaded(7, 20);
  load_slabs(open(step(0)), loaded.slabs);
  for (std::int64_t i = 0; i < 20 * cols; ++i) {
    ASSERT_EQ(loaded.values[0][std::size_t(i)], value(0, 0, 7 * cols + i));
    ASSERT_EQ(loaded.values[1][std::size_t(i)], 0.0f);
    ASSERT_EQ(loaded.values[2][std::size_t(i)], 0.0f);
  }
}

TEST_F(CheckpointFault, ASourceThatFailsLeavesNoCheckpoint) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world);
    Memory memory(world.rank() * rows / num_ranks, rows / num_ranks);
    try {
      writer.write(info_of(0), memory.slabs,
                   [&](std::size_t, std::int64_t, std::span<float> values) {
                     require(world.rank() == 0, Failure::input, "the source has ended");
                     return values;
                   });
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
    }
  });
  EXPECT_EQ(newest(directory_), -1);
  EXPECT_EQ(names_in(checkpoints()), std::set<std::string>());
}

}  // namespace
}  // namespace brume::io
