#include "stores.hpp"

namespace brume::schedule {

TiedTable::TiedTable(const Store& store) : Store(store) {
  if (!context_.tied_across_stages() || !context_.model.trains_table()) return;
  const int vocab_size = context_.model.vocab_size;
  weight_messages_.add(plan::tied_weight_messages(context_.plan, vocab_size), context_.rank);
  grad_messages_.add(plan::tied_gradient_messages(context_.plan, vocab_size), context_.rank);
}

/// Rows of this rank's part of the token table, in a buffer that holds it.
Part TiedTable::rows(BufferId buffer, int first, int count) const {
  const std::int64_t row = context_.model.hidden_size;
  return build_.elements(buffer, {persistent_.token_table.first + first * row, count * row});
}

void TiedTable::prefetch() {
  for (const plan::Message& message : weight_messages_.receives)
    build_.receive({Slot::Kind::update, 0, 0}, Channel::p2p_backward, message.source,
                   rows(persistent_.tied_weights, message.destination_first, message.count));
}

void TiedTable::send(const Slot& slot, const Weights& weights) {
  for (const plan::Message& message : weight_messages_.sends)
    build_.send(slot, Channel::p2p_backward, message.destination,
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

void TiedTable::receive_grads(const Slot& slot, BufferId grads) {
  for (const plan::Message& message : grad_messages_.receives) {
    const Part part = rows(grads, message.destination_first, message.count);
    const BufferId incoming =
        build_.add("tied.incoming", Tier::device, Content::staging, part.bytes, 0);
    build_.receive(slot, Channel::p2p_backward, message.source, incoming);
    build_.add(slot, Operation::accumulate,
               {reads(Role::source, incoming), updates(Role::destination, part)});
  }
}

void TiedTable::drain(const Slot& last) {
  for (const plan::Message& message : grad_messages_.sends)
    build_.send(last, Channel::p2p_backward, message.destination,
                rows(persistent_.tied_grads, message.source_first, message.count));
}

}  // namespace brume::schedule
