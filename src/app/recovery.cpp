#include "recovery.hpp"

#include <fmt/format.h>

#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "nonfinite.hpp"
#include "resume.hpp"
#include "weights.hpp"

namespace brume::app {

engine::StepMetrics Recovery::step(const data::Sampler& data) {
  const auto known = left_out_.find(engine_.steps_done());
  if (known == left_out_.end()) return engine_.step(data);
  engine_.flush();
  engine::Progress after = engine_.progress();
  ++after.steps;
  after.samples += deck_.training.global_batch;
  engine_.resume(after);
  return {.step = known->first,
          .loss = known->second.loss,
          .grad_norm = known->second.grad_norm,
          .lr = known->second.lr,
          .loss_scale = known->second.loss_scale,
          .skipped = true,
          .left_out = true};
}

bool Recovery::went_back(const engine::StepMetrics& metrics) {
  // No fault: S does not fall for ever, and a batch without targets spoils nothing.
  if (metrics.scaled_down || metrics.nothing_learned) return false;
  skipped_in_row_ = metrics.skipped ? skipped_in_row_ + 1 : 0;
  if (!metrics.skipped || left_out_.contains(metrics.step)) return false;
  const deck::TrainingKeys& keys = deck_.training;
  if (skipped_in_row_ == 1 || keys.on_nonfinite == "rollback")
    report_nonfinite(engine_, model_, world_);
  std::string why;
  if (keys.on_nonfinite == "skip") {
    if (skipped_in_row_ < keys.max_skipped) return false;
    why = fmt::format(", now {} steps in a row", skipped_in_row_);
  }
  if (keys.on_nonfinite == "rollback") {
    left_out_[metrics.step] = metrics;
    // So many bad batches in a row: the weights that the run went back to are bad.
    if (skipped_in_row_ >= keys.max_skipped && gone_back_to_) spoilt_.insert(*gone_back_to_);
    if (roll_back(metrics.step)) return true;
    why = ", and there is no checkpoint left to go back to";
  }
  throw comm::AgreedError(
      Failure::input,
      "step {}: loss {} and gradient norm {} are not finite{}: lower training.optimizer.lr or "
      "raise warmup_steps, then resume from the last checkpoint, or an earlier one by --resume DIR",
      metrics.step + 1, metrics.loss, metrics.grad_norm, why);
}

/// @return whether there was a checkpoint to go back to
bool Recovery::roll_back(std::int64_t bad_step) {
  saving_.settle();
  const auto checkpoint = io::find_checkpoint(world_, deck_.output.directory, spoilt_);
  // One of the base model alone cannot bring the adapter's first values back.
  if (!checkpoint || (model_.adapter.exists() && !has_adapter(*checkpoint))) return false;
  saving_.trust(*checkpoint);
  load(*checkpoint, data_text_, model_, engine_, world_);
  gone_back_to_ = checkpoint->step;
  comm::together(world_, [&] {
    if (world_.rank() != 0) return;
    // Later generations are of weights that led here.
    io::set_aside(deck_.output.directory, checkpoint->step);
    log::warn("going back to {} and leaving out the batch of step {}",
              checkpoint->directory.string(), bad_step + 1);
  });
  skipped_in_row_ = 0;
  return true;
}

}  // namespace brume::app
