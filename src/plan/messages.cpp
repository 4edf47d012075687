#include "plan/messages.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
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

/// A message for each pair of ranks that share something.
///
/// @param share  (place of the source, of the destination) -> message; only its range is looked at
template <typename Share>
std::vector<Message> messages(const Plan& plan, int from, int to, Share&& share) {
  const Stage& source = plan.stages[std::size_t(from)];
  const Stage& destination = plan.stages[std::size_t(to)];
  std::vector<Message> all;
  for (int d = 0; d < source.dp; ++d)
    for (int t = 0; t < source.tp; ++t)
      for (int e = 0; e < destination.dp; ++e)
        for (int u = 0; u < destination.tp; ++u) {
          Message message = share(Place{from, d, t}, Place{to, e, u});
          if (message.count <= 0) continue;
          message.source = rank_of(plan, from, d, t);
          message.destination = rank_of(plan, to, e, u);
          all.push_back(message);
        }
  return all;
}

/// Of the tokens of a microbatch, those that a rank holds between segments.
model::Cut shard(const Plan& plan, const Place& place, int seq_len) {
  const Stage& stage = plan.stages[std::size_t(place.stage)];
  const std::int64_t count = std::int64_t{stage.microbatch} * seq_len / stage.tp;
  return {(std::int64_t{place.dp_rank} * stage.tp + place.tp_rank) * count, count};
}

/// Of the rows of a tied table, each rank's of its stage's tensor-parallel ranks.
///
/// @param first, last  places on the first and the last stage; a rank of the last one shares the
/// table with one data-parallel rank of the first
std::optional<std::pair<model::Cut, model::Cut>> tied_rows(const Plan& plan, int vocab_size,
                                                           const Place& first, const Place& last) {
  const Stage &first_stage = plan.stages.front(), &last_stage = plan.stages.back();
  if (first.dp_rank != spread(last.dp_rank, last_stage.dp, first_stage.dp)) return std::nullopt;
  return std::pair(model::cut(vocab_size, first_stage.tp, first.tp_rank),
                   model::cut(vocab_size, last_stage.tp, last.tp_rank));
}

}  // namespace

std::vector<Message> stream_messages(const Plan& plan, int from, int to, int seq_len) {
  return messages(plan, from, to, [&](const Place& source, const Place& destination) {
    return overlap(shard(plan, source, seq_len), shard(plan, destination, seq_len));
  });
}

std::vector<Message> tied_weight_messages(const Plan& plan, int vocab_size) {
  return messages(plan, 0, plan.num_stages() - 1, [&](const Place& first, const Place& last) {
    const auto rows = tied_rows(plan, vocab_size, first, last);
    return rows ? overlap(rows->first, rows->second) : Message{};
  });
}

std::vector<Message> tied_gradient_messages(const Plan& plan, int vocab_size) {
  return messages(plan, plan.num_stages() - 1, 0, [&](const Place& last, const Place& first) {
    const auto rows = tied_rows(plan, vocab_size, first, last);
    return rows ? overlap(rows->second, rows->first) : Message{};
  });
}

}  // namespace brume::plan
