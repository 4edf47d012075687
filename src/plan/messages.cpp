#include "plan/messages.hpp"

#include <algorithm>

namespace brume::plan {
namespace {

/// The one of `sources` ranks that serves `rank` of `destinations`, as evenly as possible.
int spread(int rank, int destinations, int sources) { return rank * sources / destinations; }

/// A message for each pair of ranks whose data-parallel ranks (d, e) share something.
///
/// @param share  (d, e) -> message; only its range is looked at
template <typename Share>
std::vector<Message> messages(const Plan& plan, int from, int to, Share&& share) {
  const Stage& source = plan.stages[std::size_t(from)];
  const Stage& destination = plan.stages[std::size_t(to)];
  std::vector<Message> all;
  for (int d = 0; d < source.dp; ++d)
    for (int t = 0; t < source.tp; ++t)
      for (int e = 0; e < destination.dp; ++e) {
        Message message = share(d, e);
        if (message.count <= 0) continue;
        for (int u = 0; u < destination.tp; ++u) {
          if (spread(u, destination.tp, source.tp) != t) continue;
          message.source = rank_of(plan, from, d, t);
          message.destination = rank_of(plan, to, e, u);
          all.push_back(message);
        }
      }
  return all;
}

/// The data-parallel rank of the first stage that a rank of the last one shares a tied table with.
int tied_partner(const Plan& plan, int dp_rank) {
  return spread(dp_rank, plan.stages.back().dp, plan.stages.front().dp);
}

Message whole(bool wanted) { return {.count = wanted ? 1 : 0}; }

}  // namespace

std::vector<Message> stream_messages(const Plan& plan, int from, int to) {
  const int b_source = plan.stages[std::size_t(from)].microbatch;
  const int b_destination = plan.stages[std::size_t(to)].microbatch;
  return messages(plan, from, to, [&](int d, int e) {
    const int first_source = d * b_source, first_destination = e * b_destination;
    const int begin = std::max(first_source, first_destination);
    const int end = std::min(first_source + b_source, first_destination + b_destination);
    return Message{.source_first = begin - first_source,
                   .destination_first = begin - first_destination,
                   .count = end - begin};
  });
}

std::vector<Message> tied_weight_messages(const Plan& plan) {
  return messages(plan, 0, plan.num_stages() - 1,
                  [&](int d, int e) { return whole(d == tied_partner(plan, e)); });
}

std::vector<Message> tied_gradient_messages(const Plan& plan) {
  return messages(plan, plan.num_stages() - 1, 0,
                  [&](int d, int e) { return whole(e == tied_partner(plan, d)); });
}

}  // namespace brume::plan
