#include "other_orders.hpp"

#include <algorithm>
#include <utility>

#include "grid.hpp"
#include "team.hpp"
#include "tuner/result.hpp"

namespace brume::tuner {
namespace {

constexpr double least_gain = 0.005;    ///< of the time of the fastest plan known
constexpr int most_placed = 12;         ///< plans
constexpr double refused_share = 0.97;  ///< what formulas may fill after a plan did not fit

/// Its bounds are none that others may read.
Question without_progress(Question question) {
  question.progress = nullptr;
  return question;
}

}  // namespace

OtherOrders::OtherOrders(const Question& question, Team& team, const plan::Plan* like)
    : OtherOrders(question, team, frames_of(question, like)) {}

OtherOrders::OtherOrders(const Question& question, Team& team, std::vector<Frame> frames)
    : question_(question),
      team_(team),
      num_frames_(int(frames.size())),
      searcher_(without_progress(question), team, std::move(frames)) {}

OtherOrders::Kind OtherOrders::kind_of(const plan::Plan& plan) {
  const plan::Stage& stage = plan.stages[0];
  return {plan.microbatches, plan.chunks, plan.zero_bubble != 0, stage.dp, stage.tp};
}

std::vector<Frame> OtherOrders::frames_of(const Question& question, const plan::Plan* like) {
  std::vector<Frame> frames = frames_in_other_orders(question.model, question.global_batch,
                                                     question.cluster, question.keys);
  if (like)
    std::erase_if(frames, [&](const Frame& frame) {
      const Layout& layout = frame.layouts[0];
      return Kind{frame.microbatches, frame.chunks, frame.zero_bubble, layout.dp, layout.tp} !=
             kind_of(*like);
    });
  return frames;
}

double OtherOrders::worth_s(double known_s) { return known_s * (1.0 - least_gain); }

std::optional<Found> OtherOrders::next(double known_s) {
  while (placed_ < most_placed) {
    std::optional<Found> found = searcher_.next(worth_s(known_s));
    if (!found || found->offer.predicted_s >= worth_s(known_s)) return std::nullopt;
    const std::pair one{kind_of(found->offer.plan), found->offer.plan.run_ahead};
    if (seen_.contains(one)) continue;
    // The analyzer goes through all passes, which the formulas that found the plan do not.
    const double fits = fitting_share(team_.grid().analyzer().analyze(found->offer.plan));
    if (fits < 1.0) {
      searcher_.take_less_memory(*found, fits);
      continue;
    }
    seen_.insert(one);
    ++placed_;
    return found;
  }
  return std::nullopt;
}

/// The share of a prediction that a device has room for.
double OtherOrders::fitting_share(const analyzer::Prediction& prediction) const {
  double share = infinity;
  for (const analyzer::StagePrediction& stage : prediction.stages)
    share = std::min(share,
                     double(question_.cluster.groups[0].memory_bytes) / double(stage.peak_bytes()));
  return share;
}

void OtherOrders::add_to(Search& statistics) const {
  searcher_.add_to(statistics);
  statistics.other_orders += num_frames_;
}

void OtherOrders::strike(const Found& found) {
  seen_.erase({kind_of(found.offer.plan), found.offer.plan.run_ahead});
  searcher_.take_less_memory(found, refused_share);
}

}  // namespace brume::tuner
