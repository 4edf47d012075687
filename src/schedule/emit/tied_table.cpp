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

BufferId TiedTable::receive_rows(const Slot& slot, const plan::Message& message) {
  const std::int64_t bytes =
      std::int64_t(model::grad_bytes) * message.count * context_.model.hidden_size;
  const BufferId incoming = build_.add("tied.incoming", Tier::device, Content::staging, bytes, 0);
  build_.receive(slot, Channel::p2p_forward, message.source, incoming);
  return incoming;
}

void TiedTable::prefetch_grads(const Slot& slot) {
  if (grad_messages_.receives.empty() || slot.kind != Slot::Kind::backward ||
      !context_.last_microbatch(slot) || !context_.begins_pass(slot) ||
      context_.range(slot.block).first > 0)
    return;
  const std::vector<plan::Message>& all = grad_messages_.receives;
  const std::int64_t own_rows = persistent_.token_table.count / context_.model.hidden_size;
  for (std::size_t i = 0; i < plan::num_ahead(all, own_rows); ++i)
    incoming_.push_back(receive_rows({slot.kind, slot.microbatch, 0}, all[i]));
}

void TiedTable::receive_grads(const Slot& slot, BufferId grads) {
  for (std::size_t i = 0; i < grad_messages_.receives.size(); ++i) {
    const plan::Message& message = grad_messages_.receives[i];
    const BufferId incoming = i < incoming_.size() ? incoming_[i] : receive_rows(slot, message);
    build_.add(slot, Operation::accumulate,
               {reads(Role::source, incoming),
                updates(Role::destination, rows(grads, message.destination_first, message.count))});
  }
}

void TiedTable::drain(const Slot& last) {
  for (const plan::Message& message : grad_messages_.sends)
    build_.send(last, Channel::p2p_forward, message.destination,
                rows(persistent_.tied_grads, message.source_first, message.count));
}

}  // namespace brume::schedule
