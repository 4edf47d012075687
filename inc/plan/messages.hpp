/// @file Messages between pipeline stages, whose b, dp, cp and tp may differ.
#pragma once

#include <vector>

#include "plan/plan.hpp"

namespace brume::plan {

/// One message: `count` units that lie side by side in what both ranks hold.
struct Message {
  int source = -1;            ///< rank
  int destination = -1;       ///< rank
  int source_first = 0;       ///< first unit, counted in what the source holds
  int destination_first = 0;  ///< ... in what the destination holds
  int count = 0;
};

// All lists are in turns. One after the other, in order of (source, destination), messages take the
// first turn in which neither of their ranks has another one, so those of a turn go side by side;
// where a rank has k messages at most, there are at most 2 k - 1 turns, and k in a group of powers
// of two. Each rank sends and receives in the order of the list, so its messages cannot wait for
// each other in a circle.
//
// Between two stages by themselves ranks are counted in each stage, d tp + t, d < dp cp; of a plan
// they are those of the job.

/// The messages of one microbatch from one stage to a neighbour, in tokens.
///
/// A microbatch's B T / G tokens are cut by global index: rank (d, t), d < dp cp, of a stage holds
/// [(d tp + t) n, (d tp + t + 1) n), n = b T / (cp tp). A source sends each destination what of its
/// range lies in the other's.
///
/// @param seq_len  T
std::vector<Message> stream_messages(const Stage& from, const Stage& to, int seq_len);
std::vector<Message> stream_messages(const Plan& plan, int from, int to, int seq_len);

/// The table of a tied head, from the first stage to each rank of the last, in rows: each rank gets
/// its rows from those that hold them, of one data-parallel rank.
std::vector<Message> tied_weight_messages(const Stage& first, const Stage& last, int vocab_size);
std::vector<Message> tied_weight_messages(const Plan& plan, int vocab_size);

/// Its gradients, from the last stage to the first, in rows: each data-parallel rank's part of the
/// sum goes to one data-parallel rank, each row to the tensor-parallel rank that holds it. The
/// reduction over the first stage's ranks with the same weights then sums all.
std::vector<Message> tied_gradient_messages(const Stage& first, const Stage& last, int vocab_size);
std::vector<Message> tied_gradient_messages(const Plan& plan, int vocab_size);
/// The same in two parts: what each rank of the first stage has room for beside its last backward,
/// as many rows as its own part of the table, and the rest.
struct TiedGradients {
  std::vector<Message> ahead, rest;
};
TiedGradients tied_gradients(const Stage& first, const Stage& last, int vocab_size);
TiedGradients tied_gradients(const Plan& plan, int vocab_size);

}  // namespace brume::plan
