#include "profiler/profiler.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "../../src/profiler/chain.hpp"
#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"
#include "mpi_main.hpp"

namespace brume::profiler {
namespace {

const model::Config tiny{.num_layers = 2,
                         .hidden_size = 64,
                         .num_heads = 4,
                         .ffn_size = 256,
                         .seq_len = 32,
                         .vocab_size = 96};
const Shapes few{.splits = {{1, 1}, {1, 8}, {2, 1}, {2, 8}}, .groups = {2}, .scratch = "."};

const hardware::Cluster cluster =
    hardware::NodeGroup{.nodes = 1, .devices_per_node = 2, .memory_bytes = std::int64_t{64} << 20};

/// Measured once, by whichever test is first; on all ranks alike.
const hardware::Profile& profile() {
  static const hardware::Profile measured =
      measure(world(), key(world(), world().size(), 1, tiny, few), cluster, tiny, few);
  return measured;
}

std::vector<std::int64_t> dims_at(const model::Operator& op, int microbatch, int tp) {
  const auto values = model::Split{.tp = tp, .microbatch = microbatch}.values();
  std::vector<std::int64_t> dims;
  for (const model::Expr& dim : op.dims) dims.push_back(std::llround(dim.evaluate(values)));
  return dims;
}

/// The row with this name, or one of zeros.
hardware::OperatorRow row_of(const std::string& kind, const std::vector<std::int64_t>& dims) {
  for (const hardware::OperatorRow& row : profile().operators)
    if (row.kind == kind && row.dims == dims) return row;
  return {};
}

bool is_time(double seconds) { return std::isfinite(seconds) && seconds > 0.0 && seconds < 10.0; }

TEST(Profiler, AllRanksHoldTheSameText) {
  const std::string mine = hardware::profile_schema().write(profile());
  for (const std::string& text : world().gather(mine)) EXPECT_EQ(text, mine);
  EXPECT_NE(profile().origin.find("2 ranks"), std::string::npos);
}

TEST(Profiler, EveryOperatorOfEverySegmentIsMeasured) {
  using model::OperatorKind, model::SegmentKind;
  for (SegmentKind kind :
       {SegmentKind::embedding, SegmentKind::attention, SegmentKind::mlp, SegmentKind::head})
    for (const Split& split : few.splits)
      for (const model::Operator& op : model::segment(tiny, kind, split.division()).operators) {
        if (model::is_exchange(op.kind)) continue;
        const auto row = row_of(model::name(op.kind), dims_at(op, split.microbatch, split.tp));
        EXPECT_TRUE(is_time(row.forward_s))
            << op.name << " b " << split.microbatch << " tp " << split.tp;
        const bool fused =
            op.kind == OperatorKind::cross_entropy || op.kind == OperatorKind::residual;
        EXPECT_TRUE(fused ? row.backward_s == 0.0 : is_time(row.backward_s)) << op.name;
      }
}

TEST(Profiler, NoOperatorHasTwoRows) {
  std::set<std::pair<std::string, std::vector<std::int64_t>>> rows;
  for (const hardware::OperatorRow& row : profile().operators)
    EXPECT_TRUE(rows.emplace(row.kind, row.dims).second) << row.kind;
}

TEST(Profiler, LargerMicrobatchesTakeLonger) {
  // [b T, C] x [C, F]: 8 times the work takes longer, however noisy the machine is.
  const auto one = row_of("matmul", {32, 256, 64}), eight = row_of("matmul", {256, 256, 64});
  EXPECT_GT(eight.forward_s, one.forward_s);
  EXPECT_GT(eight.backward_s, one.backward_s);
  EXPECT_GT(row_of("attention", {8, 32, 4, 16}).forward_s,
            row_of("attention", {1, 32, 4, 16}).forward_s);
}

TEST(Profiler, AdamWIsMeasuredUpToTheLargestBlock) {
  const std::int64_t elements = model::layout(model::blocks(tiny)[1], 1, 0, 1).elements;
  const auto whole = row_of("adamw", {elements}), part = row_of("adamw", {elements / 64 / 16 * 16});
  EXPECT_TRUE(is_time(whole.forward_s));
  int rows = 0;
  for (const hardware::OperatorRow& row : profile().operators) rows += row.kind == "adamw";
  EXPECT_EQ(rows, 3);
  EXPECT_LT(part.forward_s, whole.forward_s);
}

TEST(Profiler, EveryKindOfLinkIsMeasuredAtSeveralSizes) {
  const std::int64_t block_bytes = 4 * model::layout(model::blocks(tiny)[1], 1, 0, 1).elements;
  std::map<hardware::LinkKind, std::vector<hardware::LinkRow>> kinds;
  for (const hardware::LinkRow& row : profile().links) {
    EXPECT_EQ(row.nodes, 1);
    EXPECT_EQ(row.ranks_per_node, 2);
    EXPECT_TRUE(is_time(row.time_s)) << name(row.kind) << ' ' << row.bytes;
    kinds[row.kind].push_back(row);
  }
  EXPECT_EQ(kinds.size(), 4u);
  for (const auto kind : {hardware::LinkKind::all_reduce, hardware::LinkKind::reduce_scatter,
                          hardware::LinkKind::all_gather}) {
    EXPECT_EQ(kinds[kind].size(), 5u) << name(kind);
    EXPECT_EQ(kinds[kind].back().bytes, block_bytes) << name(kind);
  }
  EXPECT_EQ(kinds[hardware::LinkKind::send].size(), 4u);
  EXPECT_EQ(kinds[hardware::LinkKind::send].back().bytes, 8 * 32 * 64 * 4);  // b T C floats
}

TEST(Profiler, WaitsAreMeasuredForEveryGroupOfANode) {
  ASSERT_EQ(profile().waits.size(), 1u);
  EXPECT_EQ(profile().waits[0].ranks, 2);
  EXPECT_GT(profile().waits[0].share, 0.0);  // no two calls take equally long
  EXPECT_LE(profile().waits[0].share,
            1.0);  // of two ranks the slowest takes at most twice the mean
}

TEST(Profiler, CopiesAreMeasuredBothWays) {
  std::map<std::string, int> kinds;
  for (const hardware::CopyRow& row : profile().copies) {
    EXPECT_TRUE(is_time(row.time_s)) << name(row.kind) << ' ' << row.bytes;
    ++kinds[name(row.kind)];
  }
  EXPECT_EQ(kinds, (std::map<std::string, int>{
                       {"copy_in", 4}, {"copy_out", 4}, {"disk_read", 3}, {"disk_write", 3}}));
}

TEST(Profiler, RatesAreThoseOfAComputer) {
  EXPECT_GT(profile().flops_per_s, 1e8);
  EXPECT_LT(profile().flops_per_s, 1e14);
  EXPECT_GT(profile().bytes_per_s, 1e8);
  EXPECT_LT(profile().bytes_per_s, 1e13);
  EXPECT_GT(profile().task_overhead_s, 1e-8);
  EXPECT_LT(profile().task_overhead_s, 1e-2);
}

TEST(Profiler, InterferenceIsATableOfNonNegativeNumbers) {
  const hardware::Interference model = profile().interference_model();
  double sum = 0.0;
  for (int q = 0; q < hardware::num_resources; ++q) {
    EXPECT_EQ(model.added[q][q], 0.0);
    for (int j = 0; j < hardware::num_resources; ++j) {
      EXPECT_GE(model.added[q][j], 0.0);
      EXPECT_TRUE(std::isfinite(model.added[q][j]));
      sum += model.added[q][j];
    }
  }
  EXPECT_GT(sum, 0.0);  // all of it uses the same memory
}

TEST(ProfilerKey, IsTheSameOnAllRanksAndNamesWhatMatters) {
  const hardware::ProfileKey mine = key(world(), 2, 1, tiny, few);
  for (const std::string& text : world().gather(std::to_string(hash(mine))))
    EXPECT_EQ(text, std::to_string(hash(mine)));
  EXPECT_EQ(mine.model,
            "gpt C64 H4 F256 T32 V96 tied; tp 1: b 1 8; tp 2: b 1 8; groups 2; disk '.'");
  Shapes in_memory = few;
  in_memory.scratch.reset();
  EXPECT_EQ(key(world(), 2, 1, tiny, in_memory).model,
            "gpt C64 H4 F256 T32 V96 tied; tp 1: b 1 8; tp 2: b 1 8; groups 2");
  EXPECT_NE(mine.processor.find("cores"), std::string::npos);
  const char* const products = device::on_device() ? "cuBLASLt" : "oneDNN";
  for (const char* package : {products, "Kokkos", "MPI", "timed"})
    EXPECT_NE(mine.packages.find(package), std::string::npos) << package;
  EXPECT_EQ(mine.packages.find("threads"), std::string::npos) << mine.packages;
  EXPECT_NE(mine.binding.find("2 ranks"), std::string::npos);
}

class NarrowProfile : public ::testing::TestWithParam<model::Precision> {};

TEST_P(NarrowProfile, HasItsOwnKeyAndEveryOperator) {
  model::Config narrow = tiny;
  narrow.precision = GetParam();
  const Shapes one{.splits = {{}}, .groups = {}};
  const hardware::ProfileKey own = key(world(), 2, 1, narrow, one);
  EXPECT_NE(hash(own), hash(key(world(), 2, 1, tiny, one)));
  const hardware::Profile measured = measure(world(), own, cluster, narrow, one);
  for (model::SegmentKind kind : model::segment_kinds(narrow))
    for (const model::Operator& op : model::segment(narrow, kind).operators)
      EXPECT_TRUE(std::ranges::any_of(measured.operators, [&](const auto& row) {
        return row.kind == model::name(op.kind) && row.dims == dims_at(op, 1, 1) &&
               is_time(row.forward_s);
      })) << op.name;
}

INSTANTIATE_TEST_SUITE_P(Profiler, NarrowProfile,
                         ::testing::Values(model::Precision::bf16, model::Precision::fp16));

// A limit below what an operator touches leaves its row out, and the rest is still measured.
TEST(Profiler, WhatNoPlanCanHoldIsNotMeasured) {
  hardware::Cluster small = cluster;
  small.groups[0].memory_bytes =
      4 * (256 * 64 + 64 * 256 + 256 * 256) - 1;  // the widest product at b = 8
  const Shapes large{.splits = {{1, 8}}, .groups = {}};
  const hardware::Profile measured =
      measure(world(), key(world(), world().size(), 1, tiny, large), small, tiny, large);
  const auto has = [&](const std::vector<std::int64_t>& dims) {
    return std::ranges::any_of(measured.operators,
                               [&](const auto& row) { return row.dims == dims; });
  };
  EXPECT_FALSE(has({256, 256, 64}));
  EXPECT_TRUE(has({256, 64, 64}));
}

// --- the bench ----------------------------------------------------------------------------------

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(ProfilerBench, TheSlowestRankCountsOnAllRanks) {
  Bench bench(world(), world().size(), 1);
  const double time_s =
      bench.seconds("sleep", [] { sleep_ms(world().rank() == 1 ? 20 : 1); }).value();
  EXPECT_GE(time_s, 0.020);
  for (const std::string& text : world().gather(fmt::format("{}", time_s)))
    EXPECT_EQ(text, fmt::format("{}", time_s));
}

TEST(ProfilerBench, AFailureOnOneRankCostsOneEntryOnAll) {
  Bench bench(world(), world().size(), 1);
  for (int failing_call : {0, 1, 2, 5}) {
    int calls = 0;
    const auto work = [&] {
      sleep_ms(1);
      require(world().rank() != 1 || calls++ != failing_call, Failure::bug, "call {}",
              failing_call);
    };
    EXPECT_FALSE(bench.seconds("failing", work).has_value()) << failing_call;
    EXPECT_TRUE(bench.seconds("working", [] { sleep_ms(1); }).has_value());
  }
  EXPECT_FALSE(bench.prepared("failing", [] {
    if (world().rank() == 0) throw std::bad_alloc();
  }));
  EXPECT_TRUE(bench.prepared("working", [] {}));
}

TEST(ProfilerBench, ARankThatLooksOnDoesNotCount) {
  Bench bench(world(), world().size(), 1);
  int calls = 0;
  const Work work = [&] { ++calls, sleep_ms(2); };
  const auto time_s = bench.seconds("sleep of one", world().rank() == 0 ? work : Work());
  EXPECT_GE(time_s.value_or(0.0), 0.002);
  EXPECT_LE(calls, 20);
}

TEST(ProfilerChain, CountsWhatRanksWaitForEachOtherAndNeverLessThanALoop) {
  const kernels::Runtime runtime(1);
  Bench bench(world(), world().size(), 1);
  const auto group = world().split(0, world().rank());
  Chain chain(bench, {32, 64, 64, model::Precision::fp32}, 1e-6);
  const Work late = [&] {
    if (world().rank() == 1) sleep_ms(5);
    group->barrier();
  };
  EXPECT_GT(chain.seconds("late rank", late, 1e-3), 0.004);
  EXPECT_EQ(chain.seconds(
                "nothing", [] {}, 0.05),
            0.05);
}

}  // namespace
}  // namespace brume::profiler
