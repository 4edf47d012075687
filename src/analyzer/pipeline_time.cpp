#include "analyzer/pipeline_time.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "other_orders.hpp"
#include "plan/order.hpp"

namespace brume::analyzer {
namespace {

constexpr std::size_t longest_round = 8;  ///< microbatches after which a pipeline may repeat itself
constexpr double same_time = 1e-11;       ///< of what a round takes
constexpr double never = std::numeric_limits<double>::infinity();
constexpr std::size_t lanes = 4;  ///< ends that are compared at once

/// The passes and messages of all stages in the order in which they end. Each begins as soon as
/// what it waits for is there, and is slowed while something else runs beside it.
class Timeline {
 public:
  explicit Timeline(const Pipeline& pipeline);
  double iteration_s();

 private:
  using Pass = plan::Pass;
  /// What takes time: the updates before a stage's first pass, a part of a pass, a message, the
  /// tied table's update, or it or its gradient on its way.
  struct Activity {
    bool runs = false;
    double left_s = 0.0;  ///< at full speed, when its speed last changed
    double slowdown = 1.0;
    double changed_s = 0.0;  ///< when that was
  };

  enum class State { updates, waits, recomputes, has_recomputed, passes, in_last_layer, in_tail };
  struct Stage {
    plan::RankPasses passes;
    State state = State::updates;
    plan::Done done = {};
    std::optional<Pass> last = {}, before = {};  ///< the last pass that began, the one before it
    double slowed = 0.0;                         ///< by how much a message slows the pass at work
    double last_layer_s = 0.0;                   ///< of it, until its message leaves
    double tail_s = 0.0;                         ///< of it
    double sent_s = 0.0, end_s = 0.0;            ///< of its last pass
    Beside beside = {};
  };

  // --- rounds ---
  /// All that the future follows from, as seen from the last backward of the first stage.
  struct Moment {
    double now_s;
    int backwards;
    std::vector<int> done;
    std::vector<double> left_s;

    bool repeats(const Moment& before) const;
  };
  Moment moment() const;
  void skip_rounds();

  // --- activities: a stage's passes, a boundary's messages down and up ---
  std::size_t pass_of(std::size_t stage) const { return stage; }
  std::size_t message(std::size_t boundary, bool down) const {
    return num_stages_ + 2 * boundary + (down ? 0 : 1);
  }
  std::size_t table() const { return 3 * num_stages_; }
  std::size_t head() const { return 3 * num_stages_ + 1; }
  std::size_t gradient() const { return 3 * num_stages_ + 2; }
  std::size_t update_of_table() const { return 3 * num_stages_ + 3; }

  std::size_t next_end() const;
  void begin(std::size_t activity, double work_s);
  void set_end(std::size_t activity);
  void slow(std::size_t activity, double slowdown);
  double slows(std::size_t from, std::size_t to) const;
  void adapt(std::size_t stage);
  void finish(std::size_t activity);
  void finish_pass(std::size_t stage);
  void finish_tied(std::size_t activity);

  // --- what waits for what ---
  bool passes(std::size_t i) const {
    const State state = stages_[i].state;
    return activities_[pass_of(i)].runs &&
           (state == State::recomputes || state == State::passes || state == State::in_last_layer);
  }
  bool messages_run(std::size_t boundary) const {
    return activities_[message(boundary, true)].runs || activities_[message(boundary, false)].runs;
  }
  int& delivered(std::size_t boundary, bool down) {
    return delivered_[2 * boundary + (down ? 0 : 1)];
  }
  /// The pass whose message has not left yet, or else the next one.
  Pass next_pass(const Stage& stage) const { return stage.passes.next(stage.done); }
  double pass_s(std::size_t stage, Pass pass) const;
  double last_layer_s(std::size_t stage, Pass pass, double all_s) const;
  double slowed(std::size_t stage, Pass pass, double all_s) const;
  double tail_s(std::size_t stage, Pass pass, double all_s) const;
  bool expects(std::size_t stage, Pass pass) const;
  bool has_left(std::size_t stage, const std::optional<Pass>& pass);
  void start_last_layer(std::size_t stage);
  void start_gradient();
  void start_pass(std::size_t stage);
  void start_message(std::size_t boundary, bool down);
  void look(std::size_t stage);

  const Pipeline& p_;
  std::size_t num_stages_;
  int count_;
  bool runs_ahead_;
  std::vector<Stage> stages_;
  std::vector<Activity> activities_;
  std::vector<double> ends_s_;  ///< of activities, unless their speed changes before; or never
  std::vector<int> delivered_;  ///< messages of each boundary, down and up
  std::deque<Moment> moments_;  ///< the latest ones
  bool table_there_ = false;    ///< the tied table, on the last stage
  bool gradient_made_ = false;  ///< and there its gradient
  double gradient_s_ = 0.0;     ///< when that is on the first stage
  double skipped_s_ = 0.0;
  double now_s_ = 0.0;
};

Timeline::Timeline(const Pipeline& pipeline)
    : p_(pipeline),
      num_stages_(pipeline.stages.size()),
      count_(std::max(0, pipeline.microbatches)),
      runs_ahead_(pipeline.order.messages_run_ahead(count_)),
      activities_(3 * num_stages_ + 4),
      ends_s_((activities_.size() + lanes - 1) / lanes * lanes, never),
      delivered_(2 * num_stages_, 0) {
  require(num_stages_ >= 1, Failure::bug, "a pipeline needs at least one stage");
  require(count_ >= 1, Failure::bug, "an iteration needs a microbatch");
  for (std::size_t i = 0; i < num_stages_; ++i) {
    stages_.push_back({.passes = {p_.order, {int(num_stages_), count_}, int(i)}});
    if (i >= p_.beside.size()) continue;
    stages_[i].beside = p_.beside[i];
    const PassTimes& t = p_.stages[i];
    if (t.stable_s() > 0.0)
      stages_[i].beside.slowed *= std::max(0.0, 1.0 - t.communication_s / t.stable_s());
  }
}

double Timeline::iteration_s() {
  for (std::size_t i = 0; i < num_stages_; ++i) begin(pass_of(i), p_.stages[i].start_s);
  table_there_ = num_stages_ == 1 || p_.tied.table_s <= 0.0;
  if (!table_there_) begin(update_of_table(), p_.stages[0].table_s);
  while (true) {
    const std::size_t first = next_end();
    if (ends_s_[first] == never) break;
    now_s_ = ends_s_[first];
    const int backwards = stages_[0].done.backwards;
    finish(first);
    if (stages_[0].done.backwards > backwards && skipped_s_ == 0.0) skip_rounds();
  }
  if (num_stages_ > 1)
    stages_[0].end_s =
        std::max(stages_[0].end_s, std::max(stages_[0].sent_s, gradient_s_) + p_.tied.rest_s);
  double whole_s = 0.0;
  for (const Stage& s : stages_)
    require(s.done.backwards == count_, Failure::bug, "the order of passes deadlocks");
  for (std::size_t i = 0; i < num_stages_; ++i)
    whole_s = std::max(whole_s, stages_[i].end_s + p_.stages[i].end_s);
  return whole_s + skipped_s_;
}

/// The activity that ends first. They are few: to look at all, four at once, is faster than to keep
/// them in order.
std::size_t Timeline::next_end() const {
  std::array<double, lanes> least_s;
  least_s.fill(never);
  for (std::size_t i = 0; i < ends_s_.size(); i += lanes)
    for (std::size_t lane = 0; lane < lanes; ++lane)
      least_s[lane] = std::min(least_s[lane], ends_s_[i + lane]);
  const double first_s = std::ranges::min(least_s);
  return std::size_t(std::ranges::find(ends_s_, first_s) - ends_s_.begin());
}

// --- rounds -------------------------------------------------------------------------------------

bool Timeline::Moment::repeats(const Moment& before) const {
  const double most_s = same_time * (now_s - before.now_s);
  return done == before.done && std::ranges::equal(left_s, before.left_s, [=](double a, double b) {
           return std::abs(a - b) <= most_s;
         });
}

Timeline::Moment Timeline::moment() const {
  const int backwards = stages_[0].done.backwards;
  Moment moment{now_s_, backwards, {}, {}};
  for (const Stage& s : stages_) {
    moment.done.insert(moment.done.end(),
                       {int(s.state), s.done.forwards - backwards, s.done.backwards - backwards});
    moment.left_s.insert(moment.left_s.end(), {s.last_layer_s, s.tail_s});
  }
  for (std::size_t i = 0; i < 2 * (num_stages_ - 1); ++i)
    moment.done.push_back(delivered_[i] - backwards);
  for (const Activity& a : activities_) {
    moment.done.push_back(a.runs);
    moment.left_s.push_back(a.runs ? a.left_s * a.slowdown - (now_s_ - a.changed_s) : 0.0);
  }
  return moment;
}

/// Once the pipeline repeats itself, what would be the same again and again is left out: there are
/// fewer microbatches, and their time is added in the end.
void Timeline::skip_rounds() {
  if (count_ - stages_[0].done.forwards <= 1) return;
  Moment now = moment();
  for (const Moment& before : moments_) {
    const int round = now.backwards - before.backwards;
    const int rounds = (count_ - stages_[0].done.forwards - 1) / round;
    if (rounds == 0 || !now.repeats(before)) continue;
    count_ -= rounds * round;
    for (Stage& s : stages_) s.passes.shape.microbatches = count_;
    skipped_s_ = rounds * (now.now_s - before.now_s);
    return;
  }
  moments_.push_front(std::move(now));
  if (moments_.size() > longest_round) moments_.pop_back();
}

// --- activities ---------------------------------------------------------------------------------

void Timeline::begin(std::size_t activity, double work_s) {
  Activity& a = activities_[activity];
  a.runs = true;
  a.left_s = std::max(0.0, work_s);
  a.slowdown = 1.0;
  set_end(activity);
}

void Timeline::set_end(std::size_t activity) {
  Activity& a = activities_[activity];
  a.changed_s = now_s_;
  ends_s_[activity] = now_s_ + a.left_s * a.slowdown;
}

void Timeline::slow(std::size_t activity, double slowdown) {
  Activity& a = activities_[activity];
  if (!a.runs || a.slowdown == slowdown) return;
  a.left_s = std::max(0.0, a.left_s - (now_s_ - a.changed_s) / a.slowdown);
  a.slowdown = slowdown;
  set_end(activity);
}

/// What a message between two stages takes longer by what they do now.
double Timeline::slows(std::size_t from, std::size_t to) const {
  double added = 0.0;
  for (std::size_t end : {from, to})
    if (passes(end)) added = std::max(added, stages_[end].beside.slows);
  return added;
}

/// How fast a stage's pass and the messages at its boundaries are follows from what runs.
void Timeline::adapt(std::size_t i) {
  const Beside& beside = stages_[i].beside;
  double taking_part = 0.0;
  if (i > 0 && messages_run(i - 1)) taking_part = beside.before;
  if (i + 1 < num_stages_ && messages_run(i)) taking_part = std::max(taking_part, beside.after);
  const std::size_t last = num_stages_ - 1;
  if (activities_[table()].runs || activities_[gradient()].runs) {
    if (i == 0) taking_part = std::max(taking_part, p_.tied.first);
    if (i == last) taking_part = std::max(taking_part, p_.tied.last);
  }
  if (passes(i)) slow(pass_of(i), 1.0 + taking_part * stages_[i].slowed);
  if (i == 0 || i == last)
    for (std::size_t message : {table(), gradient()}) slow(message, 1.0 + slows(0, last));
  for (std::size_t boundary = i > 0 ? i - 1 : 0; boundary <= i && boundary + 1 < num_stages_;
       ++boundary) {
    const double added = slows(boundary, boundary + 1);
    for (bool down : {true, false}) slow(message(boundary, down), 1.0 + added);
  }
}

void Timeline::finish(std::size_t activity) {
  activities_[activity].runs = false;
  ends_s_[activity] = never;
  if (activity < num_stages_) return finish_pass(activity);
  if (activity >= table()) return finish_tied(activity);
  const std::size_t boundary = (activity - num_stages_) / 2;
  const bool down = activity == message(boundary, true);
  ++delivered(boundary, down);
  look(boundary);
  look(boundary + 1);
}

void Timeline::finish_tied(std::size_t activity) {
  if (activity == update_of_table()) {
    begin(table(), p_.tied.table_s);
    adapt(0);
    return adapt(num_stages_ - 1);
  }
  if (activity == head()) {
    gradient_made_ = true;
    return start_gradient();
  }
  if (activity == table())
    table_there_ = true;
  else
    gradient_s_ = now_s_;
  start_last_layer(num_stages_ - 1);
  look(0);
  look(num_stages_ - 1);
}

/// A part of a pass that takes no time is left out.
void Timeline::finish_pass(std::size_t i) {
  Stage& s = stages_[i];
  if (s.state == State::recomputes) {
    s.state = State::has_recomputed;
    return look(i);
  }
  if (s.state == State::passes) {
    start_last_layer(i);
    return look(i);
  }
  const bool sends = s.state == State::in_last_layer;
  if (sends) {
    s.done.add(next_pass(s));
    s.sent_s = now_s_;
    if (i == 0) start_gradient();
  }
  if (sends && s.tail_s > 0.0) {
    s.state = State::in_tail;
    begin(pass_of(i), s.tail_s);
  } else {
    s.state = State::waits;
    s.end_s = now_s_;
  }
  look(i);
}

// --- what waits for what ------------------------------------------------------------------------

double Timeline::pass_s(std::size_t i, Pass pass) const {
  const PassTimes& t = p_.stages[i];
  if (!pass.forward) return t.backward_s + (pass.microbatch + 1 == count_ ? t.last_s : 0.0);
  if (pass.microbatch > 0) return t.forward_s;
  // What was done ahead was an addition to the first forward, so it saves no more than that.
  const double ahead_s = std::clamp(t.ahead_s, 0.0, std::max(0.0, t.first_s));
  return t.forward_s + t.first_s - std::clamp(now_s_ - t.start_s, 0.0, ahead_s);
}

/// A message slows the kernels of a pass that takes so long by a share, and its copies by another:
/// the pass is slowed by whichever takes longer then.
double Timeline::slowed(std::size_t i, Pass pass, double all_s) const {
  const Beside& beside = stages_[i].beside;
  const PassTimes& t = p_.stages[i];
  if (all_s <= 0.0) return beside.slowed;
  const bool first = pass.forward && pass.microbatch == 0;
  const double copies_s = first          ? t.first_copies_s
                          : pass.forward ? t.forward_copies_s
                                         : t.backward_copies_s;
  const double kernels_s = first ? t.first_kernels_s : pass.forward ? t.forward_s : t.backward_s;
  return std::max({0.0, std::min(1.0, kernels_s / all_s) * (1.0 + beside.slowed) - 1.0,
                   copies_s * (1.0 + beside.copies) / all_s - 1.0});
}

/// How long a pass that takes so long goes on when its message has left.
double Timeline::tail_s(std::size_t i, Pass pass, double all_s) const {
  const PassTimes& t = p_.stages[i];
  if (!pass.forward) return pass.microbatch + 1 == count_ ? t.last_tail_s : t.backward_tail_s;
  if (pass.microbatch > 0) return t.forward_tail_s;
  // What was done ahead may have been a part of the tail.
  const double soonest_s = t.forward_s + std::min(t.first_s - t.first_tail_s, -t.forward_tail_s);
  return std::min(t.first_tail_s, all_s - soonest_s);
}

/// Whether a stage has room for what another one sends for a pass. Memory is fullest in backwards,
/// so a gradient, which comes before one, always finds bytes that have long been free.
bool Timeline::expects(std::size_t i, Pass pass) const {
  if (!pass.forward) return true;
  const Stage& s = stages_[i];
  if (runs_ahead_ && pass.microbatch > 0) return s.done.forwards >= pass.microbatch;
  const Pass next = next_pass(s);
  if (s.state != State::passes && s.state != State::in_last_layer && next == pass) return true;
  // The pass at work is the one before, and in its last layer.
  const bool last_layer =
      s.state == State::in_last_layer || (s.state == State::recomputes && s.beside.layers == 1);
  if (!last_layer) return false;
  plan::Done after = s.done;
  after.add(next);
  return s.passes.next(after) == pass;
}

/// Whether a stage that runs ahead has the bytes again that a pass sent from. Further ahead than 2
/// stages may wait for each other, which verify() tells of a plan's Programs.
bool Timeline::has_left(std::size_t i, const std::optional<Pass>& pass) {
  if (!pass || !runs_ahead_ || p_.order.run_ahead > 2) return true;
  if (pass->forward) return i + 1 == num_stages_ || delivered(i, true) > pass->microbatch;
  return i == 0 || delivered(i - 1, false) > pass->microbatch;
}

/// The last layer's part of a pass. In a backward that is the stage's first one.
double Timeline::last_layer_s(std::size_t i, Pass pass, double all_s) const {
  const Beside& beside = stages_[i].beside;
  if (pass.forward) return all_s / beside.layers;
  const double recompute_ahead_s = p_.stages[i].recompute_ahead_s;
  const double others_s = p_.stages[i].head_s + beside.recomputed * recompute_ahead_s;
  return std::max(0.0, all_s - others_s) / beside.layers +
         (beside.recomputed == beside.layers ? recompute_ahead_s : 0.0);
}

void Timeline::start_pass(std::size_t i) {
  Stage& s = stages_[i];
  const bool recomputed = s.state == State::has_recomputed;
  if ((s.state != State::waits && !recomputed) || s.done.backwards == count_) return;
  const Pass pass = next_pass(s);
  const bool arrived = pass.forward ? i == 0 || delivered(i - 1, true) > pass.microbatch
                                    : i + 1 == num_stages_ || delivered(i, false) > pass.microbatch;
  if (i == 0 && p_.tied.table_staged && !table_there_) return;
  const double recompute_ahead_s = pass.forward ? 0.0 : p_.stages[i].recompute_ahead_s;
  if (!arrived && (recomputed || recompute_ahead_s <= 0.0)) return;
  if (!recomputed && !has_left(i, s.before)) return;
  if (!recomputed) s.before = std::exchange(s.last, pass);
  const double all_s = pass_s(i, pass);
  s.slowed = slowed(i, pass, all_s);
  if (!arrived) {
    s.state = State::recomputes;
    return begin(pass_of(i), recompute_ahead_s);
  }
  if (i + 1 == num_stages_ && i > 0 && !pass.forward && pass.microbatch + 1 == count_)
    begin(head(), p_.stages[i].head_s);
  s.tail_s = std::clamp(tail_s(i, pass, all_s), 0.0, std::max(0.0, all_s));
  s.state = State::passes;
  const double left_s = all_s - s.tail_s - (recomputed ? recompute_ahead_s : 0.0);
  s.last_layer_s = std::min(last_layer_s(i, pass, all_s - s.tail_s), left_s);
  if (left_s > s.last_layer_s)
    begin(pass_of(i), left_s - s.last_layer_s);
  else
    start_last_layer(i);
}

/// Behind it is the last stage's head, which waits for the tied table.
void Timeline::start_last_layer(std::size_t i) {
  Stage& s = stages_[i];
  if (s.state != State::passes || activities_[pass_of(i)].runs) return;
  if (i > 0 && i + 1 == num_stages_ && s.last == Pass{true, 0} && !table_there_) return;
  s.state = State::in_last_layer;
  begin(pass_of(i), s.last_layer_s);
}

void Timeline::start_gradient() {
  if (!gradient_made_ || stages_[0].done.backwards + 1 != count_ || activities_[gradient()].runs)
    return;
  begin(gradient(), p_.tied.gradient_s);
  adapt(0);
  adapt(num_stages_ - 1);
}

/// A stage sends on what came before it receives the next.
void Timeline::start_message(std::size_t boundary, bool down) {
  const int m = delivered(boundary, down);
  const std::size_t from = down ? boundary : boundary + 1, to = down ? boundary + 1 : boundary;
  if (m == count_ || activities_[message(boundary, down)].runs) return;
  if ((down ? stages_[from].done.forwards : stages_[from].done.backwards) <= m) return;
  if (!expects(to, {down, m})) return;
  if (down && to + 1 < num_stages_ && delivered(to, true) < m) return;
  if (!down && to > 0 && delivered(to - 1, false) < m) return;
  begin(message(boundary, down), p_.messages_s[boundary]);
  adapt(boundary);
  adapt(boundary + 1);
}

/// Starts what can start on a stage and at its boundaries.
void Timeline::look(std::size_t i) {
  start_pass(i);
  for (bool down : {true, false}) {
    if (i > 0) start_message(i - 1, down);
    if (i + 1 < num_stages_) start_message(i, down);
  }
  adapt(i);
}

}  // namespace

double iteration_time(const Pipeline& pipeline) {
  return pipeline.order.is_1f1b() ? Timeline(pipeline).iteration_s() : time_by_passes(pipeline);
}

}  // namespace brume::analyzer
