/// @file Times transfers as training meets them: between computations.
#pragma once

#include "bench.hpp"
#include "device/channels.hpp"
#include "hardware/profile.hpp"
#include "model/model.hpp"

namespace brume::profiler {

/// A product [tokens, inputs] x [inputs, outputs] of a model's layers.
struct Product {
  std::int64_t tokens;
  std::int64_t inputs;
  std::int64_t outputs;
  model::Precision precision;
};

Work make_product(const Product& product, Operands& operands);

/// One stream a channel, or none on hosts.
std::vector<std::unique_ptr<device::Stream>> make_streams(int count);

/// What ranks wait for the slowest of them, for each group size within a node: all compute the
/// product again and again, and meet after each.
std::vector<hardware::WaitRow> measure_waits(Bench& bench, const Product& product,
                                             const std::vector<int>& groups, int ranks_per_node);

/// A transfer waits for a product, the next product for the transfer, each on its own channel. So
/// it begins when the last rank is done, its thread was asleep, and caches hold the product's
/// operands: all that a loop over the transfer alone does not see.
class Chain {
 public:
  /// Collective, as `seconds` is.
  /// @param hand_over_s  from one channel to another, which is no part of a transfer's time
  Chain(Bench& bench, const Product& product, double hand_over_s);

  /// What one call of `transfer` adds to a chain, beyond two hand-overs; at least `alone_s`.
  ///
  /// @param transfer  empty on ranks that have no part in it
  /// @param alone_s   [s] it takes in a loop by itself
  double seconds(const std::string& name, const Work& transfer, double alone_s);

 private:
  void run(int links, const Work& transfer);

  Bench& bench_;
  double hand_over_s_;
  Operands operands_;
  Work product_;
  bool prepared_;
  device::Channels channels_{{"compute", "transfer"}, {}, make_streams(2)};
};

}  // namespace brume::profiler
