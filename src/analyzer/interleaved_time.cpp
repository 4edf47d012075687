/// @file Iteration time of a pipeline whose ranks hold several stages each.
#include <algorithm>
#include <array>
#include <deque>
#include <queue>
#include <utility>

#include "base/error.hpp"
#include "interleaved.hpp"
#include "plan/passes.hpp"

namespace brume::analyzer {
namespace {

/// A stream or a gradient on its way from a stage.
struct Message {
  bool forward;
  std::size_t stage;  ///< that sends it
  int microbatch;
};

/// Passes and messages in the order in which they end. A rank sends and receives one message at a
/// time in each direction.
class Walk {
 public:
  explicit Walk(const Pipeline& pipeline);
  double iteration_s();

 private:
  struct Rank {
    int forwards = 0, backwards = 0;  ///< passes that have begun
    bool passes = false;
    double free_s = 0.0;              ///< when its last pass ended
    std::array<bool, 2> exchanges{};  ///< by direction
    std::array<std::deque<Message>, 2> to_send{};
  };
  struct Event {
    double end_s;
    std::size_t number;
    bool is_pass;
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
  double slowed(std::size_t stage) const;
  bool start_pass(std::size_t rank);
  void start_messages();
  void add(double end_s, bool is_pass, std::size_t rank, const Message& message) {
    events_.push({end_s, count_++, is_pass, rank, message});
  }

  const Pipeline& p_;
  plan::Rounds rounds_;
  std::vector<Rank> ranks_;
  std::vector<int> ahead_;
  std::array<std::vector<double>, 2> there_s_;  ///< by direction, stage, microbatch: its input
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::size_t count_ = 0;
  double now_s_ = 0.0;
};

Walk::Walk(const Pipeline& pipeline)
    : p_(pipeline),
      rounds_{pipeline.microbatches, int(pipeline.stages.size()) / pipeline.chunks,
              pipeline.chunks},
      ranks_(std::size_t(rounds_.pipeline_size)) {
  for (int rank = 0; rank < rounds_.pipeline_size; ++rank)
    ahead_.push_back(plan::passes_in_flight(rounds_, pipeline.run_ahead, rank));
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

/// What the messages of a pass, one in and one out, add to it.
double Walk::slowed(std::size_t stage) const {
  if (stage >= p_.beside.size()) return 0.0;
  const Beside& beside = p_.beside[stage];
  double sum = 0.0;
  if (stage > 0) sum += beside.before * p_.messages_s[stage - 1];
  if (stage + 1 < p_.stages.size()) sum += beside.after * p_.messages_s[stage];
  return beside.slowed * sum;
}

bool Walk::start_pass(std::size_t r) {
  Rank& rank = ranks_[r];
  if (rank.passes || rank.backwards == rounds_.passes()) return false;
  const plan::Pass pass = plan::next_pass(rank.forwards, rank.backwards, ahead_[r], rounds_);
  const std::size_t stage = r + std::size_t(pass.chunk) * ranks_.size();
  const double arrived_s = there_s(pass.forward, stage, pass.microbatch);
  if (arrived_s == not_there) return false;
  const PassTimes& t = p_.stages[stage];
  const bool first = pass.microbatch == 0, last = pass.microbatch + 1 == p_.microbatches;
  // What a stage updates before its first forward it does while it waits for its input.
  const double ready_s = rank.free_s + (pass.forward && first ? t.start_s : 0.0);
  double all_s = pass.forward ? t.forward_s + (first ? t.first_s : 0.0)
                              : t.backward_s + (last ? t.last_s : 0.0);
  if (pass.forward && first)
    all_s -=
        std::clamp(arrived_s - ready_s, 0.0, std::clamp(t.ahead_s, 0.0, std::max(0.0, t.first_s)));
  all_s += slowed(stage);
  const double tail_s = std::clamp(pass.forward ? (first ? t.first_tail_s : t.forward_tail_s)
                                                : (last ? t.last_tail_s : t.backward_tail_s),
                                   0.0, std::max(0.0, all_s));
  const double begin_s = std::max(ready_s, arrived_s);
  ++(pass.forward ? rank.forwards : rank.backwards);
  rank.passes = true;
  rank.free_s = begin_s + all_s;
  add(begin_s + all_s - tail_s, true, r, {pass.forward, stage, pass.microbatch});
  return true;
}

void Walk::start_messages() {
  for (Rank& rank : ranks_)
    for (const bool forward : {true, false}) {
      if (rank.exchanges[forward] || rank.to_send[forward].empty()) continue;
      const Message message = rank.to_send[forward].front();
      Rank& other = ranks_[rank_of(receiver(message))];
      if (other.exchanges[forward]) continue;
      rank.to_send[forward].pop_front();
      rank.exchanges[forward] = other.exchanges[forward] = true;
      add(now_s_ + message_s(message), false, rank_of(message.stage), message);
    }
}

double Walk::iteration_s() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) start_pass(r);
  double sent_s = 0.0;  // when the last stage is done
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_s_ = event.end_s;
    const Message& m = event.message;
    const bool ends = m.forward ? m.stage + 1 == p_.stages.size() : m.stage == 0;
    if (event.is_pass) {
      ranks_[event.rank].passes = false;
      if (!ends) ranks_[event.rank].to_send[m.forward].push_back(m);
      if (m.stage + 1 == p_.stages.size()) sent_s = now_s_;
    } else {
      there_s(m.forward, receiver(m), m.microbatch) = now_s_;
      for (std::size_t end : {m.stage, receiver(m)})
        ranks_[rank_of(end)].exchanges[m.forward] = false;
    }
    start_messages();
    for (std::size_t r = 0; r < ranks_.size(); ++r) start_pass(r);
  }
  double whole_s = 0.0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    require(ranks_[r].backwards == rounds_.passes(), Failure::bug, "the order of passes deadlocks");
    double end_s = ranks_[r].free_s;
    if (r == 0) end_s = std::max(end_s, sent_s) + p_.tied.gradient_s;
    whole_s = std::max(whole_s, end_s + p_.stages[r].end_s);
  }
  return whole_s;
}

}  // namespace

double interleaved_time(const Pipeline& pipeline) { return Walk(pipeline).iteration_s(); }

}  // namespace brume::analyzer
