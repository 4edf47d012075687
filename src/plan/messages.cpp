#include "plan/messages.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace brume::plan {
namespace {

/// The one of `sources` ranks that serves `rank` of `destinations`, as evenly as possible.
int spread(int rank, int destinations, int sources) { return rank * sources / destinations; }

/// What both ranks of a pair hold of something, of which each holds one range.
Message overlap(model::Cut source, model::Cut destination) {
  const std::int64_t begin = std::max(source.first, destination.first);
  const std::int64_t end =
      std::min(source.first + source.count, destination.first + destination.count);
  return {.source_first = int(begin - source.first),
          .destination_first = int(begin - destination.first),
          .count = int(end - begin)};
}

/// Puts messages in turns (messages.hpp).
std::vector<Message> in_turns(std::vector<Message> messages, const Stage& from, const Stage& to) {
  std::ranges::sort(messages, {},
                    [](const Message& m) { return std::pair(m.source, m.destination); });
  std::vector<std::vector<char>> sends(std::size_t(from.devices())),
      receives(std::size_t(to.devices()));
  std::vector<std::pair<std::size_t, Message>> turns;
  for (const Message& message : messages) {
    auto &sending = sends[message.source], &receiving = receives[message.destination];
    std::size_t turn = 0;
    const auto taken = [&](const std::vector<char>& by) { return turn < by.size() && by[turn]; };
    while (taken(sending) || taken(receiving)) ++turn;
    for (auto* by : {&sending, &receiving}) {
      by->resize(std::max(by->size(), turn + 1));
      (*by)[turn] = 1;
    }
    turns.emplace_back(turn, message);
  }
  std::ranges::stable_sort(turns, {}, [](const auto& entry) { return entry.first; });
  std::ranges::transform(turns, messages.begin(), [](const auto& entry) { return entry.second; });
  return messages;
}

/// Ranks of stages as ranks of the job.
std::vector<Message> in_job(const Plan& plan, int from, int to, std::vector<Message> messages) {
  for (Message& message : messages) {
    message.source += first_rank(plan, from);
    message.destination += first_rank(plan, to);
  }
  return messages;
}

}  // namespace

std::vector<Message> stream_messages(const Stage& from, const Stage& to, int seq_len) {
  // Of the tokens of a microbatch, those that a rank holds between segments.
  const auto shard = [&](const Stage& stage, int rank) {
    const std::int64_t count = std::int64_t{stage.microbatch} * seq_len / stage.cp / stage.tp;
    return model::Cut{rank * count, count};
  };
  std::vector<Message> messages;
  for (int source = 0, destination = 0; source < from.devices() && destination < to.devices();) {
    const model::Cut sent = shard(from, source), received = shard(to, destination);
    Message message = overlap(sent, received);
    message.source = source;
    message.destination = destination;
    if (message.count > 0) messages.push_back(message);
    ++(sent.first + sent.count < received.first + received.count ? source : destination);
  }
  return in_turns(std::move(messages), from, to);
}

std::vector<Message> tied_weight_messages(const Stage& first, const Stage& last, int vocab_size) {
  std::vector<Message> messages;
  for (int e = 0; e < last.data_ranks(); ++e)
    for (int u = 0; u < last.tp; ++u)
      for (int t = 0; t < first.tp; ++t) {
        Message message =
            overlap(model::cut(vocab_size, first.tp, t), model::cut(vocab_size, last.tp, u));
        message.source = spread(e, last.data_ranks(), first.data_ranks()) * first.tp + t;
        message.destination = e * last.tp + u;
        if (message.count > 0) messages.push_back(message);
      }
  return in_turns(std::move(messages), first, last);
}

std::vector<Message> tied_gradient_messages(const Stage& first, const Stage& last, int vocab_size) {
  std::vector<Message> messages = tied_weight_messages(first, last, vocab_size);
  for (Message& message : messages) {
    std::swap(message.source, message.destination);
    std::swap(message.source_first, message.destination_first);
  }
  return in_turns(std::move(messages), last, first);
}

TiedGradients tied_gradients(const Stage& first, const Stage& last, int vocab_size) {
  TiedGradients parts;
  std::vector<std::int64_t> rows(std::size_t(first.devices()), 0);
  for (const Message& message : tied_gradient_messages(first, last, vocab_size)) {
    const auto rank = std::size_t(message.destination);
    rows[rank] += message.count;
    const model::Cut own = model::cut(vocab_size, first.tp, message.destination % first.tp);
    (rows[rank] <= own.count ? parts.ahead : parts.rest).push_back(message);
  }
  return parts;
}

std::vector<Message> stream_messages(const Plan& plan, int from, int to, int seq_len) {
  return in_job(plan, from, to, stream_messages(plan.stages[from], plan.stages[to], seq_len));
}

std::vector<Message> tied_weight_messages(const Plan& plan, int vocab_size) {
  return in_job(plan, 0, plan.num_stages() - 1,
                tied_weight_messages(plan.stages.front(), plan.stages.back(), vocab_size));
}

std::vector<Message> tied_gradient_messages(const Plan& plan, int vocab_size) {
  return in_job(plan, plan.num_stages() - 1, 0,
                tied_gradient_messages(plan.stages.front(), plan.stages.back(), vocab_size));
}

TiedGradients tied_gradients(const Plan& plan, int vocab_size) {
  TiedGradients parts = tied_gradients(plan.stages.front(), plan.stages.back(), vocab_size);
  for (std::vector<Message>* part : {&parts.ahead, &parts.rest})
    *part = in_job(plan, plan.num_stages() - 1, 0, std::move(*part));
  return parts;
}

}  // namespace brume::plan
