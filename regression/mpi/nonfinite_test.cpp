#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "contract.hpp"
#include "data/token_writer.hpp"
#include "deck/deck.hpp"
#include "io/checkpoint.hpp"
#include "io/run_file.hpp"
#include "own_folder.hpp"

namespace brume {
namespace {

namespace fs = std::filesystem;

// Jobs on four ranks whose weights make one batch infinite: the one with the token whose embedding
// is. Nothing else reads that row, because the head has a table of its own.
constexpr int bad_step = 6, first_step = 2, steps = 12;
constexpr int seq_len = 32, global_batch = 8, vocab_size = 256, bad_token = 255;

const std::vector<std::string> overrides = {
    std::string("cluster.profile=") + BRUME_REGRESSION_DIR + "/decks/profile.toml",
    "model.tied_head=false",
    "data.order=sequential",
    "data.valid=",
    "output.trace=false",
};

const fs::path tiny = fs::path(BRUME_REGRESSION_DIR) / "decks" / "tiny.toml";

class Nonfinite : public ::testing::Test {
 protected:
  Nonfinite() { write_tokens({bad_step}); }

  void write_tokens(const std::vector<int>& bad_steps) const {
    std::vector<std::int32_t> tokens(global_batch * seq_len * (steps + 1), 0);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = std::int32_t(i % 17);
    for (const int bad : bad_steps)
      tokens[std::size_t(bad * global_batch * seq_len + 3 * seq_len + 5)] = bad_token;
    data::write_token_file(directory_ / "train.tok", tokens, vocab_size);
  }

  /// Writes a checkpoint after `first_step` steps as the first of a run.
  void spoil(const char* run, const engine::LossScaling& scaling = {}) const {
    const deck::Deck deck = deck::load(tiny, overrides);
    const model::Config model = model::config(deck.model, deck.training.precision);
    comm::run_local(1, [&](comm::Communicator& world) {
      engine::Engine engine(test::one_rank_plan(model, global_batch), model, {}, world);
      for (const engine::Slab& slab : engine.slabs())
        if (slab.kind == "weight" && slab.global_shape == std::vector<std::int64_t>{vocab_size, 32})
          if (slab.name.find("head") == std::string::npos)
            engine::set_values(slab, bad_token * 32, std::array{INFINITY});
      io::CheckpointWriter writer(directory_ / run, world);
      writer.start({.step = first_step,
                    .samples = first_step * global_batch,
                    .scaling = scaling,
                    .data_text = "",
                    .deck_text = deck::schema().write(deck),
                    .plan_text = plan::text(test::one_rank_plan(model, global_batch)),
                    .profile_text = "",
                    .model_text = model::text(model),
                    .directory = {},
                    .ranks = 1},
                   engine.slabs());
      writer.finish();
    });
  }

  /// @return the exit code; the log is in `log()`
  /// @param launched  options of mpirun
  int train(const char* run, const char* on_nonfinite, const char* precision = "fp32",
            const std::string& launched = {}) const {
    std::string line =
        "cd " + directory_.string() + " && mpirun -n 4 --oversubscribe " + launched + " " +
        std::getenv("BRUME") + " run " + tiny.string() + " --set output.directory=" + run +
        " --set training.on_nonfinite=" + on_nonfinite + " --set training.precision=" + precision;
    for (const std::string& assignment : overrides) line += " --set '" + assignment + "'";
    const int status = std::system((line + " > log 2>&1").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string log() const {
    std::ifstream in(directory_ / "log");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  /// Losses and norms of the steps, which must be all of them, with one skipped.
  std::vector<double> results(const char* run) const {
    std::vector<double> values;
    std::int64_t next = first_step;
    for (const io::Row& row : io::read_run_file(directory_ / run / "run.h5").rows) {
      EXPECT_EQ(row.metrics.step, next++) << run;
      EXPECT_EQ(row.metrics.skipped, row.metrics.step == bad_step) << run;
      EXPECT_EQ(std::isfinite(row.metrics.grad_norm), row.metrics.step != bad_step) << run;
      if (row.metrics.skipped) continue;
      values.push_back(row.metrics.loss);
      values.push_back(row.metrics.grad_norm);
    }
    EXPECT_EQ(next, steps) << run;
    return values;
  }

  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
};

TEST_F(Nonfinite, SkippedGoneBackOrStoppedAndResumedTheBitsAreTheSame) {
  for (const char* run : {"skip", "rollback", "stop"}) spoil(run);
  ASSERT_EQ(train("skip", "skip"), 0) << log();
  EXPECT_NE(log().find("not finite: update skipped"), std::string::npos) << log();
  EXPECT_NE(log().find("1 of 10 steps had no update"), std::string::npos) << log();
  EXPECT_NE(log().find("weights of 1 parameter are not finite, the first is embedding."),
            std::string::npos)
      << log();

  ASSERT_EQ(train("rollback", "rollback"), 0) << log();
  EXPECT_NE(log().find("step-4 and leaving out the batch of step 7"), std::string::npos) << log();
  EXPECT_NE(log().find("not finite before: batch left out"), std::string::npos) << log();
  EXPECT_NE(log().find("1 of 10 steps had no update"), std::string::npos) << log();

  ASSERT_EQ(train("stop", "stop"), 2) << log();
  const io::RunContent stopped = io::read_run_file(directory_ / "stop" / "run.h5");
  ASSERT_EQ(stopped.rows.size(), std::size_t(bad_step + 1 - first_step));
  EXPECT_TRUE(stopped.rows.back().metrics.skipped);
  EXPECT_TRUE(stopped.description.ended.starts_with("step 7: loss")) << stopped.description.ended;
  ASSERT_EQ(train("stop", "skip"), 0) << log();
  EXPECT_NE(log().find("step-4 after 4 steps"), std::string::npos) << log();

  const std::vector<double> skipped = results("skip");
  EXPECT_EQ(results("rollback"), skipped);
  EXPECT_EQ(results("stop"), skipped);
}

// A batch that was left out stays so: the run goes back to the same checkpoint, not to ever older
// ones.
TEST_F(Nonfinite, SeveralBadBatchesLeadBackToOneCheckpoint) {
  write_tokens({5, 6, 7});
  spoil("rollback");
  ASSERT_EQ(train("rollback", "rollback"), 0) << log();
  for (const char* step : {"6", "7", "8"})
    EXPECT_NE(log().find(std::string("step-4 and leaving out the batch of step ") + step),
              std::string::npos)
        << log();
}

// The disk takes no file of step-4 once. Later steps would try again, but the run goes back first.
TEST_F(Nonfinite, AWriteThatFailsBeforeARollbackIsForgiven) {
  spoil("failed");
  const fs::path folder = fs::canonical(directory_) / "failed/checkpoints/step-4.tmp";
  ASSERT_EQ(
      train("failed", "rollback", "fp32",
            std::string("-x BRUME_FAILING_CALL=1 -x BRUME_FAILING_RANK=1 -x LD_PRELOAD=") +
                std::getenv("BRUME_FAILING_FILES") + " -x BRUME_FAILING_FOLDER=" + folder.string()),
      0)
      << log();
  EXPECT_NE(log().find("a checkpoint was not written, that of step 2 is whole: "),
            std::string::npos)
      << log();
  EXPECT_NE(log().find("step-2 and leaving out the batch of step 7"), std::string::npos) << log();
}

// Of 256 tokens the gradients of the logits reach S / 256, which is beyond fp16 for 2^25 and above.
// A run that stops at the first fault goes on, up to the batch that is one.
TEST_F(Nonfinite, ALossScaleThatFallsIsNoFault) {
  spoil("fp16", {0x1p26, 0});
  ASSERT_EQ(train("fp16", "stop", "fp16"), 2) << log();
  EXPECT_NE(log().find("scaled down"), std::string::npos) << log();
  EXPECT_NE(log().find("step 7: loss"), std::string::npos) << log();
  const std::vector<io::Row> rows = io::read_run_file(directory_ / "fp16" / "run.h5").rows;
  ASSERT_GE(rows.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(rows[i].metrics.skipped);
    EXPECT_TRUE(std::isfinite(rows[i].metrics.loss));
    EXPECT_EQ(rows[i].metrics.loss_scale, i == 0 ? 0x1p26 : 0x1p25);
  }
}

}  // namespace
}  // namespace brume
