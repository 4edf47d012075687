/// @file Iteration time of a pipeline whose ranks hold several stages each, or split backwards.
#include <algorithm>
#include <array>
#include <deque>
#include <queue>
#include <utility>

#include "base/error.hpp"
#include "other_orders.hpp"
#include "plan/order.hpp"

namespace brume::analyzer {
namespace {

/// A stream or a gradient on its way from a stage.
struct Message {
  bool forward;
  std::size_t stage;  ///< that sends it
  int microbatch;
};

/// What an event ends. After gradients of weights no message leaves.
enum class What { message, pass, weights };

/// Passes and messages in the order in which they end. A rank sends and receives one message at a
/// time in each direction.
class Walk {
 public:
  explicit Walk(const Pipeline& pipeline);
  double iteration_s();

 private:
  struct Rank {
    plan::RankPasses order;
    plan::Done done = {};  ///< passes that have begun
    bool passes = false;
    double free_s = 0.0;              ///< when its last pass ended
    std::array<bool, 2> exchanges{};  ///< by direction
    std::array<std::deque<Message>, 2> to_send{};
  };
  struct Event {
    double end_s;
    std::size_t number;
    What what;
    std::size_t rank;
    Message message;

    bool operator>(const Event& other) const {
      return std::pair(end_s, number) > std::pair(other.end_s, other.number);
    }
  };
  static constexpr double not_there = -1.0;

  std::size_t rank_of(std::size_t stage) const { return stage % ranks_.size(); }
  double& there_s(bool forward, std::size_t stage, int microbatch) {
    return there_s_[forward][stage * std::size_t(p_.microbatches) + std::size_t(microbatch)];
  }
  std::size_t receiver(const Message& m) const { return m.forward ? m.stage + 1 : m.stage - 1; }
  double message_s(const Message& m) const;
  double slowed_s(std::size_t stage, double pass_s) const;
  bool splits() const { return p_.order.splits_backward(); }
  double pass_s(const plan::Pass& pass, std::size_t stage) const;
  void start_weights(std::size_t rank, const plan::Pass& pass);
  bool start_pass(std::size_t rank);
  void start_messages(bool forward);
  void add(double end_s, What what, std::size_t rank, const Message& message) {
    events_.push({end_s, count_++, what, rank, message});
  }

  const Pipeline& p_;
  std::vector<Rank> ranks_;
  std::array<std::vector<double>, 2> there_s_;  ///< by direction, stage, microbatch: its input
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::size_t count_ = 0;
  double made_s_ = 0.0;  ///< when the last stage has made its last part of a tied gradient
  double now_s_ = 0.0;
};

Walk::Walk(const Pipeline& pipeline) : p_(pipeline) {
  const plan::PipelineShape shape{int(pipeline.stages.size()) / pipeline.order.chunks,
                                  pipeline.microbatches};
  for (int rank = 0; rank < shape.ranks; ++rank)
    ranks_.push_back({.order = {pipeline.order, shape, rank}});
  const std::size_t passes = pipeline.stages.size() * std::size_t(pipeline.microbatches);
  for (std::vector<double>& times : there_s_) times.assign(passes, not_there);
  for (int m = 0; m < pipeline.microbatches; ++m)
    there_s(true, 0, m) = there_s(false, pipeline.stages.size() - 1, m) = 0.0;
}

double Walk::message_s(const Message& m) const {
  double slows = 0.0;
  for (std::size_t end : {m.stage, receiver(m)})
    if (end < p_.beside.size()) slows = std::max(slows, p_.beside[end].slows);
  return p_.messages_s[std::min(m.stage, receiver(m))] * (1.0 + slows);
}

/// What the messages of a pass, one in and one out, add to it: at most the share by which they slow
/// it all the time.
double Walk::slowed_s(std::size_t stage, double pass_s) const {
  if (stage >= p_.beside.size()) return 0.0;
  const Beside& beside = p_.beside[stage];
  double sum_s = 0.0;
  if (stage > 0) sum_s += beside.before * p_.messages_s[stage - 1];
  if (stage + 1 < p_.stages.size()) sum_s += beside.after * p_.messages_s[stage];
  return beside.slowed * std::min(std::max(0.0, pass_s), sum_s / (1.0 + beside.slowed));
}

/// A pass that is slowed by nothing. Gradients are reduced beside the last part of the last
/// backward.
double Walk::pass_s(const plan::Pass& pass, std::size_t stage) const {
  const PassTimes& t = p_.stages[stage];
  if (pass.forward) return t.forward_s + (pass.microbatch == 0 ? t.first_s : 0.0);
  const double last_s = pass.microbatch + 1 == p_.microbatches ? t.last_s : 0.0;
  if (!splits()) return t.backward_s + last_s;
  return pass.weights ? p_.weights_s[stage] + last_s
                      : std::max(0.0, t.backward_s - p_.weights_s[stage]);
}

void Walk::start_weights(std::size_t r, const plan::Pass& pass) {
  Rank& rank = ranks_[r];
  rank.done.add(pass);
  rank.passes = true;
  rank.free_s = std::max(rank.free_s, now_s_) + pass_s(pass, r);
  add(rank.free_s, What::weights, r, {false, r, pass.microbatch});
}

bool Walk::start_pass(std::size_t r) {
  Rank& rank = ranks_[r];
  if (rank.passes || rank.order.complete(rank.done)) return false;
  const plan::Pass pass = rank.order.next(rank.done);
  if (pass.weights) {
    start_weights(r, pass);
    return true;
  }
  const std::size_t stage = r + std::size_t(pass.chunk) * ranks_.size();
  const double arrived_s = there_s(pass.forward, stage, pass.microbatch);
  if (arrived_s == not_there) return false;
  const PassTimes& t = p_.stages[stage];
  const bool first = pass.microbatch == 0, last = pass.microbatch + 1 == p_.microbatches;
  // What a stage updates before its first forward it does while it waits for its input.
  const double ready_s = rank.free_s + (pass.forward && first ? t.start_s : 0.0);
  double all_s = pass_s(pass, stage);
  if (pass.forward && first)
    all_s -=
        std::clamp(arrived_s - ready_s, 0.0, std::clamp(t.ahead_s, 0.0, std::max(0.0, t.first_s)));
  if (!pass.forward) all_s -= std::clamp(arrived_s - ready_s, 0.0, t.recompute_ahead_s);
  all_s += slowed_s(stage, all_s);
  const double backward_tail_s = splits() ? 0.0 : last ? t.last_tail_s : t.backward_tail_s;
  const double tail_s =
      std::clamp(pass.forward ? (first ? t.first_tail_s : t.forward_tail_s) : backward_tail_s, 0.0,
                 std::max(0.0, all_s));
  const double begin_s = std::max(ready_s, arrived_s);
  rank.done.add(pass);
  rank.passes = true;
  rank.free_s = begin_s + all_s;
  if (stage + 1 == p_.stages.size() && !pass.forward) made_s_ = begin_s + t.head_s;
  add(begin_s + all_s - tail_s, What::pass, r, {pass.forward, stage, pass.microbatch});
  return true;
}

void Walk::start_messages(bool forward) {
  for (Rank& rank : ranks_) {
    if (rank.exchanges[forward] || rank.to_send[forward].empty()) continue;
    const Message message = rank.to_send[forward].front();
    Rank& other = ranks_[rank_of(receiver(message))];
    if (other.exchanges[forward]) continue;
    rank.to_send[forward].pop_front();
    rank.exchanges[forward] = other.exchanges[forward] = true;
    add(now_s_ + message_s(message), What::message, rank_of(message.stage), message);
  }
}

double Walk::iteration_s() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) start_pass(r);
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_s_ = event.end_s;
    const Message& m = event.message;
    const bool ends = m.forward ? m.stage + 1 == p_.stages.size() : m.stage == 0;
    std::size_t waiting = event.rank;  // may go on now
    if (event.what != What::message) {
      ranks_[event.rank].passes = false;
      if (!ends && event.what == What::pass) ranks_[event.rank].to_send[m.forward].push_back(m);
    } else {
      waiting = rank_of(receiver(m));
      there_s(m.forward, receiver(m), m.microbatch) = now_s_;
      for (std::size_t end : {m.stage, receiver(m)})
        ranks_[rank_of(end)].exchanges[m.forward] = false;
    }
    start_messages(m.forward);
    start_pass(waiting);
  }
  double whole_s = 0.0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    require(ranks_[r].order.complete(ranks_[r].done), Failure::bug,
            "the order of passes deadlocks");
    double end_s = ranks_[r].free_s;
    if (r == 0) end_s = std::max(end_s, made_s_ + p_.tied.gradient_s) + p_.tied.rest_s;
    whole_s = std::max(whole_s, end_s + p_.stages[r].end_s);
  }
  return whole_s;
}

}  // namespace

double time_by_passes(const Pipeline& pipeline) { return Walk(pipeline).iteration_s(); }

}  // namespace brume::analyzer
