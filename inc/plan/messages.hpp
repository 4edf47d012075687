/// @file Who sends what to whom between pipeline stages, whose b, dp and tp may differ.
#pragma once

#include <vector>

#include "plan/plan.hpp"

namespace brume::plan {

/// One message: `count` units that lie side by side in what both ranks hold.
struct Message {
  int source = -1;            ///< rank in the job
  int destination = -1;       ///< rank in the job
  int source_first = 0;       ///< first unit, counted in what the source holds
  int destination_first = 0;  ///< ... in what the destination holds
  int count = 0;
};

// All lists are in lexicographic order of (source, destination). Each rank sends and receives in
// that order, so the messages of a list cannot wait for each other in a circle.

/// The messages of one microbatch from one stage to a neighbour, in tokens.
///
/// A microbatch's B T / G tokens are cut by global index: rank (d, t) of a stage holds
/// [(d tp + t) b T / tp, (d tp + t + 1) b T / tp). A source sends each destination what of its
/// range lies in the other's.
///
/// @param seq_len  T
std::vector<Message> stream_messages(const Plan& plan, int from, int to, int seq_len);

/// The table of a tied head, from the first stage to each rank of the last, in rows: each rank gets
/// its rows from those that hold them, of one data-parallel rank.
std::vector<Message> tied_weight_messages(const Plan& plan, int vocab_size);

/// Its gradients, from the last stage to the first, in rows: each data-parallel rank's part of the
/// sum goes to one data-parallel rank, each row to the tensor-parallel rank that holds it. The
/// reduction over dp of the first stage then sums all.
std::vector<Message> tied_gradient_messages(const Plan& plan, int vocab_size);

}  // namespace brume::plan
