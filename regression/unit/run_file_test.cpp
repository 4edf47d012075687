#include "io/run_file.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "own_folder.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t seal_bytes = 48;

/// With the line that src/io/README.md describes.
std::string sealed(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return bytes + fmt::format("brume xxh3_128 {:016x}{:016x}\n", hash.high64, hash.low64);
}

/// A directory of its own, removed at the end.
class RunFileTest : public ::testing::Test {
 protected:
  fs::path file() const { return directory_ / "run.h5"; }
  std::string content() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const {
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << bytes;
  }
  /// What reading says; it must be an Error(input).
  std::string refused() const {
    try {
      read_run_file(file());
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }
  /// Changes the file by HDF5, then gives it a seal that fits, as a bug in the writer would.
  template <typename Change>
  void edit(Change&& change) const {
    const std::string whole = content();
    put(whole.substr(0, whole.size() - seal_bytes));
    const hid_t opened = H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    change(opened);
    H5Fclose(opened);
    put(sealed(content()));
  }
  /// All that lies in the directory.
  std::set<fs::path> names() const {
    std::set<fs::path> names;
    for (const auto& entry : fs::recursive_directory_iterator(directory_))
      names.insert(entry.path().lexically_relative(directory_));
    return names;
  }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
};

RunDescription description() {
  RunDescription d;
  d.run = "0123456789abcdef";
  d.deck_text = "[model]\nfamily = \"gpt\"  # größe\n";
  d.plan_text = "version = 1\n";
  d.profile_text = std::string(200'000, 'p');  // more than an attribute of fixed length can hold
  d.version = "0.1.0";
  d.ranks = 2;
  d.predicted_iteration_s = 0.75;
  d.predicted_bytes = {1 << 20, 1 << 21};
  d.host_bytes = {0, 4096};
  d.copy_bytes = {8192, 0};
  return d;
}

Row row(std::int64_t step) {
  Row row;
  row.metrics.step = step;
  row.metrics.loss = 1.0 / double(step + 3);
  row.metrics.grad_norm = 0.1 * double(step);
  row.metrics.lr = 3e-4;
  row.metrics.loss_scale = 1024.0;
  row.metrics.skipped = step % 3 == 2;
  row.metrics.nothing_learned = step % 6 == 2;
  row.metrics.iteration_s = 0.5;
  row.metrics.data_s = 0.01 * double(step);
  for (std::size_t c = 0; c < row.metrics.busy_s.size(); ++c) {
    row.metrics.busy_s[c] = double(step) + 0.01 * double(c);
    row.metrics.hidden_s[c] = row.metrics.busy_s[c] / 3.0;
  }
  row.tokens_per_s = 1e5 / 3.0;
  row.peak_bytes = {1000 + step, 2000 + step};
  return row;
}

void expect_equal(const Row& a, const Row& b) {
  EXPECT_EQ(a.metrics.step, b.metrics.step);
  EXPECT_EQ(a.metrics.loss, b.metrics.loss);
  EXPECT_EQ(a.metrics.grad_norm, b.metrics.grad_norm);
  EXPECT_EQ(a.metrics.loss_scale, b.metrics.loss_scale);
  EXPECT_EQ(a.metrics.lr, b.metrics.lr);
  EXPECT_EQ(a.metrics.skipped, b.metrics.skipped);
  EXPECT_EQ(a.metrics.nothing_learned, b.metrics.nothing_learned);
  EXPECT_EQ(a.metrics.iteration_s, b.metrics.iteration_s);
  EXPECT_EQ(a.metrics.data_s, b.metrics.data_s);
  EXPECT_EQ(a.metrics.busy_s, b.metrics.busy_s);
  EXPECT_EQ(a.metrics.hidden_s, b.metrics.hidden_s);
  EXPECT_EQ(a.tokens_per_s, b.tokens_per_s);
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
}

TEST_F(RunFileTest, ALinkStaysAndItsTargetIsContinued) {
  fs::create_symlink("elsewhere.h5", file());
  {
    RunFile first(directory_, description(), 0);
    first.add(row(0));
    first.write();
  }
  RunFile(directory_, description(), 1);
  EXPECT_TRUE(fs::is_symlink(file()));
  EXPECT_EQ(read_run_file(file()).rows.size(), 1u);
}

TEST_F(RunFileTest, AFileOfAnOlderVersionNamesNoRun) {
  RunFile(directory_, description(), 0);
  EXPECT_EQ(read_run_file(file()).description.run, description().run);
  edit([](hid_t opened) {
    const std::int64_t version[] = {1, 6};
    const hid_t attribute = H5Aopen(opened, "version", H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT64, version);
    H5Aclose(attribute);
    H5Adelete(opened, "run");
  });
  EXPECT_EQ(read_run_file(file()).description.run, "");
}

TEST_F(RunFileTest, GivesBackWhatWasWritten) {
  RunFile run(directory_ / "made" / "anew", description(), 0);
  for (int step = 0; step < 7; ++step) run.add(row(step));
  run.add(EvaluationRow{4, 2.5});
  run.add(EvaluationRow{7, 2.25});
  run.end("step 8: loss nan");
  run.write();

  const RunContent content = read_run_file(directory_ / "made" / "anew" / "run.h5");
  EXPECT_EQ(content.description.deck_text, description().deck_text);
  EXPECT_EQ(content.description.plan_text, description().plan_text);
  EXPECT_EQ(content.description.profile_text, description().profile_text);
  EXPECT_EQ(content.description.version, "0.1.0");
  EXPECT_EQ(content.description.ended, "step 8: loss nan");
  EXPECT_EQ(content.description.ranks, 2);
  EXPECT_EQ(content.description.predicted_iteration_s, 0.75);
  EXPECT_EQ(content.description.predicted_bytes, description().predicted_bytes);
  EXPECT_EQ(content.description.copy_bytes, description().copy_bytes);
  EXPECT_EQ(content.description.host_bytes, description().host_bytes);
  ASSERT_EQ(content.rows.size(), 7u);
  for (int step = 0; step < 7; ++step) {
    expect_equal(content.rows[std::size_t(step)], row(step));
    EXPECT_EQ(content.rows[std::size_t(step)].predicted_s, 0.75);
  }
  ASSERT_EQ(content.evaluations.size(), 2u);
  EXPECT_EQ(content.evaluations[1].step, 7);
  EXPECT_EQ(content.evaluations[1].loss, 2.25);
}

TEST_F(RunFileTest, ReadsOlderFiles) {
  {
    RunFile run(directory_, description(), 0);
    run.add(row(1));
    run.write();
  }
  edit([](hid_t file) {
    const hid_t version = H5Aopen(file, "version", H5P_DEFAULT);
    const std::array<std::int64_t, 2> older{1, 6};
    EXPECT_GE(H5Awrite(version, H5T_NATIVE_INT64, older.data()), 0);
    H5Aclose(version);
    EXPECT_GE(H5Adelete(file, "ended"), 0);
    EXPECT_GE(H5Ldelete(file, "/steps/data_s", H5P_DEFAULT), 0);
    for (const char* column : {"/steps/load_factor", "/steps/idle_experts", "/steps/expert_rounds",
                               "/steps/accuracy", "/steps/margin"})
      EXPECT_GE(H5Ldelete(file, column, H5P_DEFAULT), 0);
  });
  const RunContent content = read_run_file(file());
  ASSERT_EQ(content.rows.size(), 1u);
  EXPECT_EQ(content.rows[0].metrics.loss, row(1).metrics.loss);
  EXPECT_EQ(content.rows[0].metrics.data_s, 0.0);
  EXPECT_EQ(content.description.ended, "");
}

TEST_F(RunFileTest, IsThereBeforeTheFirstStep) {
  RunFile run(directory_, description(), 0);
  EXPECT_TRUE(read_run_file(file()).rows.empty());
}

// A checkpoint after 3 steps holds steps 0, 1, 2. The new plan promises another time.
TEST_F(RunFileTest, ResumedRunDropsLaterRows) {
  {
    RunFile run(directory_, description(), 0);
    for (int step = 0; step < 6; ++step) run.add(row(step));
    run.add(EvaluationRow{3, 2.5});
    run.add(EvaluationRow{6, 2.0});
    run.write();
  }
  RunDescription replanned = description();
  replanned.predicted_iteration_s = 0.25;
  RunFile run(directory_, replanned, 3);
  run.add(row(3));
  run.write();

  const RunContent content = read_run_file(file());
  ASSERT_EQ(content.rows.size(), 4u);
  for (int step = 0; step < 4; ++step) expect_equal(content.rows[std::size_t(step)], row(step));
  EXPECT_EQ(content.rows[2].predicted_s, 0.75);
  EXPECT_EQ(content.rows[3].predicted_s, 0.25);
  ASSERT_EQ(content.evaluations.size(), 1u);
  EXPECT_EQ(content.evaluations[0].step, 3);
}

TEST_F(RunFileTest, StartingAnewDropsAllRows) {
  {
    RunFile run(directory_, description(), 0);
    run.add(row(0));
    run.write();
  }
  RunFile run(directory_, description(), 0);
  EXPECT_TRUE(read_run_file(file()).rows.empty());
}

TEST_F(RunFileTest, RewindingForgetsWhatCameLater) {
  RunFile run(directory_, description(), 0);
  for (int step = 0; step < 5; ++step) run.add(row(step));
  run.add(EvaluationRow{2, 2.5});
  run.add(EvaluationRow{4, 2.0});
  run.rewind(2);
  run.add(row(2));
  run.write();
  const RunContent content = read_run_file(file());
  ASSERT_EQ(content.rows.size(), 3u);
  for (int step = 0; step < 3; ++step) expect_equal(content.rows[std::size_t(step)], row(step));
  ASSERT_EQ(content.evaluations.size(), 1u);
  EXPECT_EQ(content.evaluations[0].step, 2);
}

/// All of a dataset as other programs read it.
std::vector<double> plainly_read(const fs::path& file, const char* path) {
  const hid_t opened = H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(opened, path, H5P_DEFAULT);
  const hid_t space = H5Dget_space(set);
  std::vector<double> values(std::size_t(H5Sget_simple_extent_npoints(space)), -1.0);
  EXPECT_GE(H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(opened);
  return values;
}

/// Steps [first, end) by a run of parts of 4 rows, written after each second step.
void add_steps(RunFile& run, int first, int end, std::size_t ranks) {
  for (int step = first; step < end; ++step) {
    Row next = row(step);
    next.peak_bytes.resize(ranks, 3000);
    run.add(std::move(next));
    if (step % 2 == 1) run.write();
  }
  run.write();
}

TEST_F(RunFileTest, ShowsItsPartsAsOne) {
  {
    RunFile run(directory_, description(), 0, 4);
    add_steps(run, 0, 5, 2);
  }
  RunFile run(directory_, description(), 5, 4);  // goes on with more ranks
  add_steps(run, 5, 11, 3);

  const RunContent content = read_run_file(file());
  ASSERT_EQ(content.parts.size(), 2u);
  EXPECT_EQ(content.parts[1].name(), "steps/4.h5");
  ASSERT_EQ(content.rows.size(), 3u);
  expect_equal(read_part(directory_, content.parts[0])[3], row(3));
  const std::vector<double> losses = plainly_read(file(), "/steps/loss");
  const std::vector<double> busy_s = plainly_read(file(), "/steps/busy_s");
  const std::vector<double> peaks = plainly_read(file(), "/steps/peak_resident_bytes");
  ASSERT_EQ(losses.size(), 11u);
  ASSERT_EQ(busy_s.size(), 11u * schedule::num_channels);
  ASSERT_EQ(peaks.size(), 33u);
  for (int step = 0; step < 11; ++step) {
    EXPECT_EQ(losses[std::size_t(step)], row(step).metrics.loss);
    EXPECT_EQ(busy_s[std::size_t(step) * schedule::num_channels + 1], row(step).metrics.busy_s[1]);
    EXPECT_EQ(peaks[std::size_t(step) * 3 + 1], 2000.0 + step);
    EXPECT_EQ(peaks[std::size_t(step) * 3 + 2], step < 5 ? 0.0 : 3000.0);
  }
}

TEST_F(RunFileTest, RewindsIntoAPart) {
  RunFile run(directory_, description(), 0, 4);
  add_steps(run, 0, 10, 2);
  run.rewind(6);
  run.write();
  EXPECT_EQ(plainly_read(file(), "/steps/step"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  run.rewind(2);
  add_steps(run, 2, 5, 2);
  EXPECT_EQ(plainly_read(file(), "/steps/step"), (std::vector<double>{1, 2, 3, 4, 5}));
}

// Metrics are set aside as they are, and the training goes on.
TEST_F(RunFileTest, APartOfOtherStepsIsSetAside) {
  RunFile run(directory_, description(), 0, 4);
  add_steps(run, 0, 10, 2);
  fs::copy_file(directory_ / "steps/0.h5", directory_ / "steps/4.h5",
                fs::copy_options::overwrite_existing);
  RunFile(directory_, description(), 8, 4);
  EXPECT_EQ(read_run_file(file()).parts.size(), 2u);  // no part was needed

  RunFile again(directory_, description(), 6, 4);
  EXPECT_EQ(names(),
            (std::set<fs::path>{"damaged-1", "damaged-1/run.h5", "damaged-1/steps",
                                "damaged-1/steps/0.h5", "damaged-1/steps/4.h5", "run.h5"}));
  add_steps(again, 6, 12, 2);
  EXPECT_EQ(plainly_read(file(), "/steps/step"), (std::vector<double>{7, 8, 9, 10, 11, 12}));
  again.rewind(9);
  EXPECT_EQ(read_run_file(file()).parts.size(), 1u);
}

TEST_F(RunFileTest, APartThatIsDamagedWhileTrainingIsSetAside) {
  RunFile run(directory_, description(), 0, 4);
  add_steps(run, 0, 10, 2);
  std::ofstream(directory_ / "steps/4.h5") << "damaged";
  run.rewind(6);
  add_steps(run, 6, 8, 2);
  EXPECT_EQ(plainly_read(file(), "/steps/step"), (std::vector<double>{7, 8}));
  EXPECT_TRUE(fs::exists(directory_ / "damaged-1/steps/4.h5"));
}

// HDF5 1.10 crashes over some of these bytes. Nothing of a damaged file may reach it.
TEST_F(RunFileTest, EveryDamagedByteIsFoundBeforeHdf5SeesIt) {
  RunDescription small = description();
  small.profile_text.clear();
  {
    RunFile run(directory_, small, 0);
    for (int step = 0; step < 4; ++step) run.add(row(step));
    run.write();
  }
  const std::string whole = content();
  for (std::size_t at = 0; at < whole.size(); at += 1 + at / 100) {
    std::string damaged = whole;
    damaged[at] = char(damaged[at] ^ (1 << at % 8));
    put(damaged);
    EXPECT_NE(refused().find("is damaged"), std::string::npos) << at;
  }
  put(whole.substr(0, whole.size() - seal_bytes));  // as older versions wrote it
  EXPECT_NE(refused().find("no hash at its end"), std::string::npos);
  put(whole);
  EXPECT_EQ(read_run_file(file()).rows.size(), 4u);
}

TEST_F(RunFileTest, ADamagedFileIsSetAsideAndTheRunGoesOn) {
  {
    RunFile run(directory_, description(), 0);
    for (int step = 0; step < 4; ++step) run.add(row(step));
    run.write();
  }
  std::string damaged = content();
  damaged[damaged.size() / 2] = char(damaged[damaged.size() / 2] ^ 1);
  put(damaged);
  for (const int step : {3, 4}) {
    RunFile run(directory_, description(), step);
    run.add(row(step));
    run.write();
    EXPECT_EQ(plainly_read(file(), "/steps/step"), std::vector<double>{double(step + 1)});
    put("damaged again");
  }
  EXPECT_EQ(names(), (std::set<fs::path>{"damaged-1", "damaged-1/run.h5", "damaged-2",
                                         "damaged-2/run.h5", "run.h5"}));
}

// Other programs read the sealed file: what HDF5 knows of ends before the seal.
TEST_F(RunFileTest, TheSealIsALineBehindTheFile) {
  { RunFile run(directory_, description(), 0); }
  const std::string whole = content();
  const std::string line = whole.substr(whole.size() - seal_bytes);
  EXPECT_TRUE(line.starts_with("brume xxh3_128 "));
  EXPECT_EQ(line.back(), '\n');
  const hid_t opened = H5Fopen(file().c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(opened, 0);
  H5Fclose(opened);
}

// A library that walks over all groups calls itself for each of them.
TEST_F(RunFileTest, DeepGroupsAreNotWalkedOver) {
  { RunFile run(directory_, description(), 0); }
  edit([](hid_t opened) {
    hid_t group = H5Gopen2(opened, "/", H5P_DEFAULT);
    for (int depth = 0; depth < 20'000; ++depth) {
      const hid_t next = H5Gcreate2(group, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      H5Gclose(group);
      group = next;
    }
    H5Gclose(group);
  });
  EXPECT_TRUE(read_run_file(file()).rows.empty());
}

TEST_F(RunFileTest, RefusesAnotherVersion) {
  { RunFile run(directory_, description(), 0); }
  edit([](hid_t opened) {
    const hid_t version = H5Aopen(opened, "version", H5P_DEFAULT);
    const std::int64_t next[] = {2, 0};
    EXPECT_GE(H5Awrite(version, H5T_NATIVE_INT64, next), 0);
    H5Aclose(version);
  });
  EXPECT_NE(refused().find("layout version 2.0"), std::string::npos);
}

TEST_F(RunFileTest, RefusesLinksToOtherFiles) {
  for (const char* name : {"/evaluations/loss", "/evaluations"}) {
    { RunFile run(directory_, description(), 0); }
    edit([&](hid_t opened) {
      ASSERT_GE(H5Ldelete(opened, name, H5P_DEFAULT), 0);
      ASSERT_GE(H5Lcreate_external("other.h5", "/", opened, name, H5P_DEFAULT, H5P_DEFAULT), 0);
    });
    EXPECT_NE(refused().find(std::string(name) + " is a link that may lead elsewhere"),
              std::string::npos);
  }
}

TEST_F(RunFileTest, RefusesDataOfOtherFiles) {
  {
    RunFile run(directory_, description(), 0);
    run.add(EvaluationRow{3, 2.5});
    run.write();
  }
  edit([](hid_t opened) {
    ASSERT_GE(H5Ldelete(opened, "/evaluations/loss", H5P_DEFAULT), 0);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(creation, "/etc/passwd", 0, 8);
    const hsize_t length = 1;
    const hid_t space = H5Screate_simple(1, &length, nullptr);
    const hid_t set = H5Dcreate2(opened, "/evaluations/loss", H5T_IEEE_F64LE, space, H5P_DEFAULT,
                                 creation, H5P_DEFAULT);
    ASSERT_GE(set, 0);
    H5Dclose(set);
    H5Sclose(space);
    H5Pclose(creation);
  });
  EXPECT_NE(refused().find("is external, virtual"), std::string::npos);
}

TEST_F(RunFileTest, WhatIsNoRunFileIsAnInputError) {
  EXPECT_THROW(read_run_file(directory_ / "missing.h5"), Error);
  for (const char* text : {"no HDF5 at all", ""}) {
    put(text);
    EXPECT_NE(refused().find("no hash at its end"), std::string::npos);
  }
  put(sealed("no HDF5 at all, but with a hash"));
  EXPECT_NE(refused().find("the file cannot be read"), std::string::npos);
}

// Every length of a cut file is refused; none crashes.
TEST_F(RunFileTest, RefusesCutFiles) {
  { RunFile run(directory_, description(), 0); }
  std::ifstream in(file(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    std::ofstream(file(), std::ios::binary | std::ios::trunc)
        << whole.substr(0, random() % whole.size());
    EXPECT_THROW(read_run_file(file()), Error);
  }
}

/// @param in_the_way  name in the message
void expect_storage_error(const fs::path& directory, const std::string& in_the_way) {
  try {
    RunFile run(directory, description(), 0);
    FAIL() << directory;
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::storage);
    EXPECT_NE(std::string(error.what()).find("/" + in_the_way + ":"), std::string::npos)
        << error.what();
  }
}

TEST_F(RunFileTest, DirectoryThatCannotBeWrittenIsAStorageError) {
  std::ofstream(directory_ / "a-file") << "in the way";
  expect_storage_error(directory_ / "a-file", "a-file");
  expect_storage_error(directory_ / "a-file" / "run", "a-file");
  fs::create_directory_symlink("nowhere", directory_ / "dangling");
  expect_storage_error(directory_ / "dangling", "dangling");
  if (::geteuid() == 0) return;  // no permission stops root
  fs::create_directory(directory_ / "locked");
  ::chmod((directory_ / "locked").c_str(), 0500);
  expect_storage_error(directory_ / "locked", "locked");
}

TEST_F(RunFileTest, LeavesNothingButTheFile) {
  {
    RunFile run(directory_, description(), 0);
    run.add(row(0));
    run.write();
  }
  EXPECT_EQ(names(), (std::set<fs::path>{"run.h5"}));
}

/// From now on the system gives this process nothing but `left` bytes in small blocks.
void take_all_memory_but(std::size_t left) {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlimit limit{pages * 4096 + (8 << 20), RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &limit);
  struct Block {
    Block* next;
    std::size_t bytes;
  };
  Block* taken = nullptr;
  for (std::size_t bytes = 1 << 16; bytes >= sizeof(Block);
       bytes = bytes > 1024 ? bytes / 2 : bytes - sizeof(Block))
    while (void* const memory = std::malloc(bytes))
      taken = new (memory) Block{std::exchange(taken, nullptr), bytes};
  for (std::size_t given = 0; taken != nullptr && given < left;) {
    given += taken->bytes;
    std::free(std::exchange(taken, taken->next));
  }
}

/// How a child process ends that does `work` and then exits.
template <typename Work>
int status_of_child(Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      std::exit(int(error_of(error).failure()));
    }
    std::exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// HDF5 crashes, or ends the process, where the C library gives it nothing.
TEST_F(RunFileTest, HoweverLittleMemoryIsLeftItsLackIsSaid) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have an allocator of their own";
#endif
  for (std::size_t left = 1 << 12; left <= 1 << 22; left += left / 4) {
    const int status = status_of_child([&] {
      take_all_memory_but(left);
      const RunFile file(directory_, description(), 0);
    });
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == int(Failure::resource))
        << left << " bytes: status " << status;
  }
}

// There it crashes over what a lack of memory has left, after the reason has been said.
TEST_F(RunFileTest, Hdf5IsNotCalledAtTheEndOfTheProcess) {
  const int status = status_of_child([&] {
    const RunFile file(directory_, description(), 0);
    const auto called = [](hid_t, void*) -> herr_t { ::_exit(1); };
    H5Pcreate(H5Pcreate_class(H5P_ROOT, "told of its end", nullptr, nullptr, nullptr, nullptr,
                              called, nullptr));
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace brume::io
