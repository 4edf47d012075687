/// @file All that the emission keeps track of, in stores which know what is theirs. Each is asked
/// to prefetch what a slot needs, for the buffers that it uses, to let go of what leaves with a
/// slot, and one slot later to drain what must be copied away.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "persistent_buffers.hpp"
#include "plan/messages.hpp"

namespace brume::schedule {

/// What every store sees.
struct Store {
  const Context& context_;
  const PersistentBuffers& persistent_;
  ProgramBuilder& build_;
};

/// Weights of blocks: whole where kernels read them, else sharded or on the host.
class Weights : Store {
 public:
  explicit Weights(const Store& store) : Store(store) {}

  void prefetch(const Slot& slot);  ///< brings together what it uses, unless it is there
  BufferId use(int block) const;    ///< where kernels find a block's weights
  /// After an update's step: what other ranks stepped comes, what stays here is stored.
  void gather(const Slot& update);
  void drain(const Slot& slot);  ///< stores what an update left for later
  /// Lets go of what `slot` used, unless the next pass, if there is one, uses it too.
  void leave(const Slot& slot, const Slot* next);

 private:
  std::vector<int> blocks_of(const Slot& slot) const;
  void assemble(const Slot& slot, Range part);
  void all_gather(const Slot& slot);
  void store(const Slot& slot);
  bool stored_after_gather() const;

  std::map<int, BufferId> assembled_;  ///< by block: whole weights, for the slots that use them
};

/// Optimizer state of blocks: what is offloaded comes for the block's update and goes again, but
/// for what the node's processor steps, to which gradients go and from which weights come.
class OptimizerState : Store {
 public:
  explicit OptimizerState(const Store& store) : Store(store) {}

  void read(const Slot& slot);                ///< from the disk, unless that was done before
  void prefetch(const Slot& slot);            ///< to the device
  std::vector<Operand> use(int block) const;  ///< by an update's step
  /// The node's processor steps its part; the new weights then go to `weights` on the device.
  void step_on_host(const Slot& update, BufferId weights);
  void drain(const Slot& slot);  ///< to the host
  void write(const Slot& slot);  ///< to the disk, what was drained

 private:
  // By block:
  std::map<int, BufferId> read_;       ///< in host memory, from the disk
  std::map<int, BufferId> staged_;     ///< on the device, for the update
  std::map<int, BufferId> unwritten_;  ///< in host memory, for the disk
  /// In host memory, for its processor's step: gradients that are kept on the device, and weights.
  struct ForHost {
    BufferId grads = BufferId::none, weights = BufferId::none;
  };
  std::map<int, ForHost> for_host_;
  void send_down(const Slot& update);
};

/// One rank's messages, in the order in which it sends and receives them.
struct Messages {
  void add(const std::vector<plan::Message>& all, int rank);  ///< those of the rank
  std::vector<plan::Message> sends, receives;
};

class Gradients;

/// The token table where embedding and head share it, also when they are on two stages.
class TiedTable : Store {
 public:
  explicit TiedTable(const Store& store);

  // Both travel on the channel of the other direction, where nothing else is on its way then: the
  // table before all gradients, its gradient after all streams.

  void prefetch();                                      ///< the last stage's copy arrives
  void send(const Slot& slot, const Weights& weights);  ///< after the update of the first stage

  /// The head finds the table and its gradient there: its stage's own copy, or the embedding's.
  Part use(const Weights& weights) const;
  Part use(const Gradients& gradients) const;
  void clear_grads(const Slot& slot);  ///< of the copy, before the head's first backward

  /// The head's share comes to the first stage with its last backward, as far as there is room.
  void prefetch_grads(const Slot& slot);
  /// Adds it to the gradients of block 0, before they are reduced.
  void receive_grads(const Slot& slot, BufferId grads);
  void drain(const Slot& last);  ///< after the last slot the head's share goes home

 private:
  Part rows(BufferId buffer, int first, int count) const;
  BufferId receive(const Slot& slot, const plan::Message& message);
  void add(const Slot& slot, BufferId grads, const plan::Message& message, BufferId incoming);

  Messages weights_, grads_ahead_, other_grads_;  ///< in rows
  std::vector<BufferId> incoming_;                ///< what comes ahead
};

/// Gradients on their way from a backward to where they are kept: reduced over ranks, added up over
/// microbatches, moved to the host.
class Gradients : Store {
 public:
  Gradients(const Store& store, TiedTable& tied) : Store(store), tied_(tied) {}

  /// @return false while earlier microbatches' part has not left for the host: call it again
  bool prefetch(const Slot& slot);
  void begin(const Slot& slot);   ///< makes what a backward writes, where that is not kept
  BufferId use(int block) const;  ///< where kernels write a block's gradients
  std::vector<Operand> use_in_update(int block);
  /// Directions of steps of whole matrices, which an update has made: brings them together.
  /// @return  none where the block has no such matrices
  std::vector<Operand> bring_directions(const Slot& update);
  /// After a backward: reduces over other ranks what must be, and stores what the backward did not
  /// write to its place. What waits for a reduction is done one slot later.
  void leave(const Slot& slot);
  void drain(const Slot& slot);
  /// Copies to the host what is kept there and has settled, but for that of one slot.
  void copy_out(const Slot* but = nullptr);
  void finish(const Slot& last);  ///< sets the totals where no gradient has

 private:
  /// Gradients of a microbatch that are being reduced.
  struct Unsettled {
    Slot slot;
    BufferId fresh = BufferId::none;   ///< what the backward wrote; none: where they are kept
    BufferId staged = BufferId::none;  ///< earlier microbatches' part that came from the host
  };
  /// Gradients that go to the host.
  struct Leaving {
    Slot slot;
    BufferId staged;
    Range part;
  };
  void make(const Slot& slot, int block);
  BufferId stage(const Slot& slot, Range part);
  void add_kept(const Unsettled& gradients);
  bool reduce(const Slot& slot);
  void settle(int block);
  void store(const Unsettled& gradients);
  /// Adds a part of the squared gradient norm to the totals; the first one also the loss.
  void norm(const Slot& slot, std::optional<Part> part);

  TiedTable& tied_;
  // By block:
  std::map<int, BufferId> staged_;  ///< from the host, for its update or for the next backward
  std::map<int, BufferId> fresh_;   ///< what the backward at work writes
  std::map<int, Unsettled> unsettled_;
  std::map<int, Leaving> leaving_;
  std::map<int, int> summed_;             ///< the last microbatch whose gradients left for the host
  BufferId directions_ = BufferId::none;  ///< of the block that is updated right now
  bool norm_begun_ = false;
};

/// The residual stream and its gradient, between segments and between stages. With tp > 1 each rank
/// keeps a shard of its tokens: parts of the sum are reduced to shards after a segment, shards are
/// brought together before the next one. The same holds for experts that several ranks divide.
///
/// Of a forward slot the stream is the output of the last block that ran, of a backward slot the
/// gradient of it.
class Streams : Store {
 public:
  explicit Streams(const Store& store);

  /// Receives what comes from another stage, unless it has come. Of ranks of several stages it
  /// comes after a pass (order.hpp), and the first call is for what comes before the first one.
  void prefetch(const Slot& slot);
  /// The same while `slot` computes. @return false where it must not be done before its sends: a
  /// send must not stand behind the next receive on its channel, for the peer may need it first
  bool prefetch_beside(const Slot& slot, const Slot& next);

  BufferId use(const Slot& slot) { return lane(slot).buffers.at(key(slot)); }
  BufferId take(const Slot& slot) { return lane(slot).buffers.extract(key(slot)).mapped(); }
  void put(const Slot& slot, BufferId stream) { lane(slot).buffers[key(slot)] = stream; }

  /// @return a buffer of all tokens of a segment
  BufferId make(const Slot& slot, SegmentKind kind, std::string_view what);
  BufferId make_shard(const Slot& slot, std::string_view what);  ///< of this rank's tokens
  /// @return a buffer of all tokens of a segment; for one rank it is `shard`
  BufferId gather(const Slot& slot, SegmentKind kind, BufferId shard);
  /// @param part  of the sum over the ranks of a segment, of all its tokens
  /// @return this rank's shard of the sum; for one rank it is `part`
  BufferId scatter(const Slot& slot, SegmentKind kind, BufferId part, std::string_view what);

  void leave(const Slot& slot);  ///< sends what another stage needs of it
  /// What was sent may still be read by the transfer while the next slot computes.
  void drain(const Slot& slot);
  /// Where stages run further ahead: receives what the next pass in this direction begins with.
  void exchange_ahead(const Slot& slot, std::span<const Slot> rest);

 private:
  using Key = std::pair<int, int>;  ///< stage and microbatch
  Key key(const Slot& slot) const { return {context_.stage_index(slot.block), slot.microbatch}; }
  /// A direction.
  struct Lane {
    Channel channel;
    std::map<int, Messages> messages{};  ///< by stage: of a microbatch, in tokens
    std::map<Key, BufferId> buffers{};
  };
  /// A stream that a pass, which ends with this slot, has sent.
  struct Sent {
    Slot slot;
    BufferId buffer;
  };
  Lane& lane(const Slot& slot) { return slot.kind == Slot::Kind::forward ? forward_ : backward_; }
  const Messages& messages(const Slot& slot) {
    return lane(slot).messages.at(context_.stage_index(slot.block));
  }
  void receive(const Slot& slot);
  void send(const Slot& slot);
  void exchange();
  Part tokens(BufferId buffer, int first, int count) const;

  Lane forward_{.channel = Channel::p2p_forward}, backward_{.channel = Channel::p2p_backward};
  std::vector<Sent> sent_;                        ///< where stages run further ahead
  std::vector<std::vector<Exchange>> exchanges_;  ///< by passes done, where they have one order
  std::size_t exchanged_ = 0;
};

/// What forwards keep for their backwards: inputs of segments and saved tensors, of which some may
/// be moved to the host and on to the disk meanwhile.
class Activations : Store {
 public:
  Activations(const Store& store, Streams& streams);

  void read(const Slot& slot);  ///< from the disk to the host, unless that was done before
  /// Brings back what was moved for a backward. @return false while it has not left: call it again
  bool prefetch(const Slot& slot);

  void begin(const Slot& slot, BufferId input);  ///< a forward
  void put_input(const Slot& slot, SegmentKind kind, BufferId input);
  void make_saved(const Slot& slot, SegmentKind kind);
  /// No later task finds them: a backward makes them again.
  void drop_saved(const Slot& slot, SegmentKind kind) { kept_.at(key(slot)).saved.erase(kind); }
  const std::vector<BufferId>& saved(const Slot& slot, SegmentKind kind) const {
    return kept_.at(key(slot)).saved.at(kind);
  }
  bool has_saved(const Slot& slot, SegmentKind kind) const {
    return kept_.at(key(slot)).saved.contains(kind);
  }
  /// A segment's input; of the head that of all tokens, which are brought together.
  BufferId use(const Slot& slot, SegmentKind kind);
  /// Buffers of the inputs of a segment's products, if they were brought together and not saved.
  /// @return  null where that was not done
  std::vector<BufferId>* normed(const Slot& slot, SegmentKind kind);
  void put_normed(const Slot& slot, SegmentKind kind, std::vector<BufferId> buffers) {
    kept_.at(key(slot)).normed[kind] = std::move(buffers);
  }
  /// No later task finds them: their place is another tensor's, or free.
  void drop_normed(const Slot& slot, SegmentKind kind) { kept_.at(key(slot)).normed.erase(kind); }
  /// Gradients of products' outputs that the first part of a backward keeps for the second one:
  /// that of the segment's output, where its last products make that, and those in a buffer of
  /// their own.
  struct ProductGrads {
    BufferId of_output = BufferId::none, others = BufferId::none;
  };
  void keep(const Slot& slot, SegmentKind kind, const ProductGrads& grads) {
    kept_.at(key(slot)).grads[kind] = grads;
  }
  const ProductGrads& grads(const Slot& slot, SegmentKind kind) const {
    return kept_.at(key(slot)).grads.at(kind);
  }

  void leave(const Slot& slot);  ///< what no later slot needs
  void drain(const Slot& slot);  ///< moves to the host what offload takes
  void write(const Slot& slot);  ///< to the disk, what was drained for it

 private:
  using Key = std::pair<int, int>;  ///< microbatch and block
  static Key key(const Slot& slot) { return {slot.microbatch, slot.block}; }

  /// What is kept for the backward of one block and microbatch.
  struct Kept {
    std::map<SegmentKind, BufferId> input;  ///< of several ranks this one's shard
    BufferId whole = BufferId::none;        ///< the head's, brought together
    std::map<SegmentKind, std::vector<BufferId>> normed;
    std::map<SegmentKind, std::vector<BufferId>> saved;  ///< none: made again
    std::map<SegmentKind, ProductGrads> grads;
    std::vector<BufferId> on_host;  ///< what was moved, in the order of model::kept_tensors
    std::vector<BufferId> on_disk;  ///< the first of them, when they are written and not read again
    int unwritten = 0;              ///< the first ones of `on_host`, which the disk is to take
    bool drained = false;           ///< what offload moves is on its way
  };
  /// The tensors of a layer that offload moves.
  struct Offload {
    std::vector<model::Kept> moved;
    int to_disk;  ///< the first ones go on to the disk
  };
  const Offload& offload(int block) const {
    return offload_.at(
        {context_.stage_index(block), context_.layer_kind(block), context_.recompute(block)});
  }
  std::vector<BufferId*> moved(const Slot& slot);
  BufferId twin(BufferId of, const char* suffix, Tier tier, const Slot& slot);

  Streams& streams_;
  std::map<std::tuple<int, model::LayerKind, model::Recompute>, Offload> offload_;  ///< by stage
  std::map<Key, Kept> kept_;
};

struct Stores {
  explicit Stores(const Store& store)
      : weights(store),
        optimizer(store),
        tied(store),
        gradients(store, tied),
        streams(store),
        activations(store, streams) {}

  Weights weights;
  OptimizerState optimizer;
  TiedTable tied;
  Gradients gradients;
  Streams streams;
  Activations activations;
};

}  // namespace brume::schedule
