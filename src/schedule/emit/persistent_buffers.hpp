/// @file Buffers that live from step to step. All Programs of a rank have the same, in this order.
#pragma once

#include <map>
#include <vector>

#include "program_builder.hpp"

namespace brume::schedule {

/// What a rank keeps of a block's weights, gradients or optimizer state: the first elements on the
/// device, the next ones on the host, then those on disk, each in a buffer where there are any. The
/// last ones, of optimizer state only, are on the host for good, whose processor steps them.
struct TieredState {
  Range device, host, disk, host_updated;
  BufferId device_buffer = BufferId::none;
  BufferId host_buffer = BufferId::none;
  BufferId disk_buffer = BufferId::none;
  BufferId host_updated_buffer = BufferId::none;

  /// What comes to the device for an update.
  Range offloaded() const { return {host.first, host.count + disk.count}; }
  Range all() const {
    return {device.first, device.count + offloaded().count + host_updated.count};
  }
};

struct BlockState {
  Range whole;
  Range trained;                  ///< of it, the first elements
  Range frozen;                   ///< ... the others
  Range shard;                    ///< what this rank updates: its part under ZeRO, else `trained`
  std::int64_t partial_elements;  ///< leading ones, whose gradients are partial over tp
  std::int64_t dense_elements;    ///< ... over the data-parallel ranks that divide experts
  /// The whole block where kernels read it there; staged ones of what is trained, then of what is
  /// frozen.
  std::vector<TieredState> weights;
  TieredState grads, moments;

  /// The part of the shard that the device steps.
  Range device_updated() const { return {shard.first, shard.count - moments.host_updated.count}; }

  bool weights_staged;  ///< kernels work on a whole copy of the weights, assembled for a slot
  bool grads_staged;    ///< a backward writes a buffer of its own, which is added up afterwards
};

class PersistentBuffers {
 public:
  PersistentBuffers(const Context& context, ProgramBuilder& build);

  const BlockState& block(int index) const { return blocks_.at(index); }

  /// This rank's part of the token table within its flat block, of the size of the largest part.
  Range token_table;
  /// Where stages share the table, the last one's copy and its gradient.
  BufferId tied_weights = BufferId::none, tied_grads = BufferId::none;
  BufferId inputs = BufferId::none;     ///< tokens of all microbatches, on the first stage
  BufferId targets = BufferId::none;    ///< ... to predict, on the last stage
  BufferId documents = BufferId::none;  ///< where each token's begins, if they are isolated
  BufferId loss = BufferId::none;       ///< on the last stage
  BufferId totals = BufferId::none;
  // In generation:
  std::map<int, BufferId> caches;  ///< of layers, by block
  BufferId sequences = BufferId::none, tables = BufferId::none;
  BufferId logits = BufferId::none;  ///< on the last stage

 private:
  std::map<int, BlockState> blocks_;  ///< by index
};

}  // namespace brume::schedule
