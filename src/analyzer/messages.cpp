#include "analyzer/messages.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "plan/messages.hpp"
#include "plan/rules.hpp"
#include "price/price.hpp"
#include "symbolic/expr.hpp"

namespace brume::analyzer {
namespace {

/// Messages between the ranks of two stages, each of which sends or receives one at a time, in the
/// order in which they are added.
class Traffic {
 public:
  Traffic(const hardware::Machine& machine, const plan::Stage& from, const plan::Stage& to,
          const EndsOf& ends)
      : machine_(machine),
        ends_(ends),
        sent_s_(std::size_t(from.devices()), 0.0),
        received_s_(std::size_t(to.devices()), 0.0),
        from_tp_(from.tp),
        to_tp_(to.tp),
        sending_(std::size_t(from.data_ranks())),
        receiving_(std::size_t(to.data_ranks())) {}

  /// From the i-th rank of the one stage to the j-th of the other.
  void add(int source, int destination, double bytes) {
    double &sent_s = sent_s_[source], &received_s = received_s_[destination];
    const double seconds = message_s(ends_(source, destination), bytes);
    const double begin_s = std::max(sent_s, received_s);
    sent_s = received_s = begin_s + seconds;
    sending_[source / from_tp_].add(begin_s, sent_s);
    receiving_[destination / to_tp_].add(begin_s, sent_s);
    end_s_ = std::max(end_s_, sent_s);
  }

  /// When the last one is there.
  double seconds() const { return end_s_; }
  /// How much of that time the busiest tensor-parallel group of each stage sends, receives.
  double sending() const { return share(sending_); }
  double receiving() const { return share(receiving_); }

 private:
  /// A tensor-parallel group, whose ranks wait for each other: all are slowed while one exchanges.
  /// Groups that share a sequence wait for each other too, but are equally busy.
  struct Busy {
    double sum_s = 0.0, until_s = 0.0;

    void add(double begin_s, double end_s) {
      sum_s += std::max(0.0, end_s - std::max(begin_s, until_s));
      until_s = std::max(until_s, end_s);
    }
  };

  double share(const std::vector<Busy>& groups) const {
    return end_s_ > 0.0 ? std::ranges::max(groups, {}, &Busy::sum_s).sum_s / end_s_ : 1.0;
  }
  double message_s(const price::Ends& ends, double bytes) {
    const auto [known, fresh] = known_s_.try_emplace({ends, bytes}, 0.0);
    if (fresh)
      known->second =
          price::task_s(machine_.profile(ends.group), price::send_s(machine_, ends, bytes));
    return known->second;
  }

  const hardware::Machine& machine_;
  const EndsOf& ends_;
  std::vector<double> sent_s_, received_s_;  ///< [rank of the stage] when it is free again
  int from_tp_, to_tp_;
  std::vector<Busy> sending_, receiving_;  ///< [data-parallel rank]
  double end_s_ = 0.0;
  std::map<std::pair<price::Ends, double>, double> known_s_;
};

/// A microbatch's stream from one stage to another.
Traffic stream(const model::Config& model, const hardware::Machine& machine,
               const plan::Stage& from, const plan::Stage& to, const EndsOf& ends) {
  const double token_bytes =
      model::stream_bytes(model).evaluate(model::Split{}.values()) / double(model.padded_len());
  Traffic traffic(machine, from, to, ends);
  for (const plan::Message& m : plan::stream_messages(from, to, model.padded_len()))
    traffic.add(m.source, m.destination, token_bytes * m.count);
  return traffic;
}

/// As the ranks of two stages of a plan stand on their nodes.
EndsOf ends(const plan::Plan& plan, const hardware::Machine& machine, int from, int to) {
  const int first = plan::first_rank(plan, from), other = plan::first_rank(plan, to);
  return [&plan, &machine, first, other](int i, int j) {
    return price::ends(plan, machine, first + i, other + j);
  };
}

}  // namespace

double stream_s(const model::Config& model, const hardware::Machine& machine,
                const plan::Stage& from, const plan::Stage& to, const EndsOf& ends) {
  return stream(model, machine, from, to, ends).seconds();
}

TiedTimes tied_s(const model::Config& model, const hardware::Machine& machine,
                 const plan::Stage& first, const plan::Stage& last, const EndsOf& ends) {
  Traffic table(machine, first, last, ends);
  for (const plan::Message& m : plan::tied_weight_messages(first, last, model.vocab_size))
    table.add(m.source, m.destination,
              model::weight_bytes(model.precision) * m.count * model.hidden_size);
  const EndsOf back = [&](int source, int destination) {
    price::Ends there = ends(destination, source);
    std::swap(there.group, there.peer_group);
    return there;
  };
  Traffic ahead(machine, last, first, back), others(machine, last, first, back);
  const double row_bytes = model::grad_bytes * double(model.hidden_size);
  const plan::TiedGradients home = plan::tied_gradients(first, last, model.vocab_size);
  for (const plan::Message& m : home.ahead) ahead.add(m.source, m.destination, row_bytes * m.count);
  for (const plan::Message& m : home.rest) others.add(m.source, m.destination, row_bytes * m.count);
  // What came ahead is added then, of the others one while the next one comes.
  const hardware::Profile& profile = machine.profile(first.group);
  const auto add_s = [&](double rows) {
    return price::task_s(profile, price::accumulate_s(profile, row_bytes * rows));
  };
  double rest_s = add_s(std::ceil(double(model.vocab_size) / first.tp));
  if (!home.rest.empty()) rest_s += others.seconds() + add_s(home.rest.back().count);
  return {.table_s = table.seconds(),
          .gradient_s = ahead.seconds(),
          .rest_s = rest_s,
          .first = table.sending(),
          .last = table.receiving()};
}

MessageTimes::Key MessageTimes::key(const plan::Plan& plan, int from, int to) const {
  Key key = plan.node_order;
  for (const int i : {from, to}) {
    const plan::Stage& stage = plan.stages[i];
    key.insert(key.end(), {machine_.index(stage.group), stage.microbatch, stage.dp, stage.cp,
                           stage.tp, plan::first_device(plan, i)});
  }
  return key;
}

const MessageTimes::Stream& MessageTimes::stream(const plan::Plan& plan, int from, int to) {
  const auto [known, fresh] = streams_.try_emplace(key(plan, from, to));
  if (fresh) {
    const Traffic traffic = analyzer::stream(model_, machine_, plan.stages[from], plan.stages[to],
                                             ends(plan, machine_, from, to));
    known->second = {traffic.seconds(), traffic.sending(), traffic.receiving()};
  }
  return known->second;
}

const TiedTimes& MessageTimes::tied(const plan::Plan& plan) {
  const int last = plan.num_stages() - 1;
  const auto [known, fresh] = tied_.try_emplace(key(plan, 0, last));
  if (fresh)
    known->second = tied_s(model_, machine_, plan.stages.front(), plan.stages.back(),
                           ends(plan, machine_, 0, last));
  return known->second;
}

void MessageTimes::add(const plan::Plan& plan, Pipeline& pipeline) {
  for (const plan::Stage& stage : plan.stages) {
    const price::Ranks shards = price::ranks(stage, model::Axis::shard);
    const hardware::Interference slow = machine_.profile(machine_.index(stage.group))
                                            .interference_model(shards.nodes, shards.per_node);
    pipeline.beside.push_back({.layers = std::max(stage.layers, 1),
                               .recomputed = stage.ckpt_layers,
                               .slowed = slow.added[0][1],
                               .slows = slow.added[1][0],
                               .copies = std::max(slow.added[2][0] + slow.added[2][1],
                                                  slow.added[3][0] + slow.added[3][1])});
  }
  for (std::size_t to = 1; to < plan.stages.size(); ++to) {
    const Stream& stream = this->stream(plan, int(to) - 1, int(to));
    pipeline.messages_s.push_back(stream.seconds);
    pipeline.beside[to - 1].after = stream.sending;
    pipeline.beside[to].before = stream.receiving;
  }
  if (!model_.tied_head || !model_.trains_table() || plan.num_stages() == 1) return;
  pipeline.tied = tied(plan);
  const plan::Stage& first = plan.stages.front();
  const plan::Elements<double> table{double(model_.vocab_size) * model_.hidden_size / first.tp,
                                     0.0};
  pipeline.tied.table_staged =
      plan::kept_state(plan::state_knobs(first), table).weights_staged > 0.0;
}

}  // namespace brume::analyzer
