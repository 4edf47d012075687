#include "stores.hpp"

namespace brume::schedule {

TiedTable::TiedTable(const Store& store) : Store(store) {
  if (!context_.tied_across_stages() || !context_.model.trains_table()) return;
  const int vocab_size = context_.model.vocab_size;
  weights_.add(plan::tied_weight_messages(context_.plan, vocab_size), context_.rank);
  const plan::TiedGradients grads = plan::tied_gradients(context_.plan, vocab_size);
  grads_ahead_.add(grads.ahead, context_.rank);
  other_grads_.add(grads.rest, context_.rank);
}

/// Rows of this rank's part of the token table, in a buffer that holds it.
Part TiedTable::rows(BufferId buffer, int first, int count) const {
  const std::int64_t row = context_.model.hidden_size;
  return build_.elements(buffer, {persistent_.token_table.first + first * row, count * row});
}

void TiedTable::prefetch() {
  for (const plan::Message& message : weights_.receives)
    build_.receive({Slot::Kind::update, 0, tied_rest}, Channel::p2p_backward, message.source,
                   rows(persistent_.tied_weights, message.destination_first, message.count));
}

void TiedTable::send(const Slot& slot, const Weights& weights) {
  for (const plan::Message& message : weights_.sends)
    build_.send({slot.kind, slot.microbatch, tied_rest}, Channel::p2p_backward, message.destination,
                rows(weights.use(0), message.source_first, message.count));
}

Part TiedTable::use(const Weights& weights) const {
  const bool own_copy = context_.tied_across_stages();
  return build_.elements(own_copy ? persistent_.tied_weights : weights.use(0),
                         persistent_.token_table);
}

Part TiedTable::use(const Gradients& gradients) const {
  const bool own_copy = context_.tied_across_stages();
  return build_.elements(own_copy ? persistent_.tied_grads : gradients.use(0),
                         persistent_.token_table);
}

void TiedTable::clear_grads(const Slot& slot) {
  if (persistent_.tied_grads == BufferId::none || slot.microbatch > 0) return;
  build_.add(slot, Operation::clear, {writes(Role::grads, persistent_.tied_grads)});
}

namespace {

Slot part(const Slot& slot, bool ahead) {
  return {slot.kind, slot.microbatch, ahead ? tied_ahead : tied_rest};
}

}  // namespace

BufferId TiedTable::receive(const Slot& slot, const plan::Message& message) {
  const std::int64_t bytes =
      std::int64_t(model::grad_bytes) * message.count * context_.model.hidden_size;
  const BufferId incoming = build_.add("tied.incoming", Tier::device, Content::staging, bytes, 0);
  build_.receive(slot, Channel::p2p_forward, message.source, incoming);
  return incoming;
}

void TiedTable::add(const Slot& slot, BufferId grads, const plan::Message& message,
                    BufferId incoming) {
  build_.add(slot, Operation::accumulate,
             {reads(Role::source, incoming),
              updates(Role::destination, rows(grads, message.destination_first, message.count))});
}

void TiedTable::prefetch_grads(const Slot& slot) {
  const bool begins_last = slot.kind == Slot::Kind::backward && context_.last_microbatch(slot) &&
                           context_.begins_pass(slot) && context_.range(slot.block).first == 0;
  if (!begins_last) return;
  for (const plan::Message& message : grads_ahead_.receives)
    incoming_.push_back(receive(part(slot, true), message));
}

void TiedTable::receive_grads(const Slot& slot, BufferId grads) {
  for (std::size_t i = 0; i < incoming_.size(); ++i)
    add(slot, grads, grads_ahead_.receives[i], incoming_[i]);
  for (const plan::Message& message : other_grads_.receives)
    add(slot, grads, message, receive(part(slot, false), message));
}

void TiedTable::drain(const Slot& last) {
  for (const Messages* messages : {&grads_ahead_, &other_grads_})
    for (const plan::Message& message : messages->sends)
      build_.send(part(last, messages == &grads_ahead_), Channel::p2p_forward, message.destination,
                  rows(persistent_.tied_grads, message.source_first, message.count));
}

}  // namespace brume::schedule
