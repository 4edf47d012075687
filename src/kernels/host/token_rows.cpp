#include "kernels/token_rows.hpp"

#include "kernels/host/loops.hpp"
#include "kernels/host/ordering.hpp"
#include "kernels/promises.hpp"

namespace brume::kernels {

void read_choices(ConstVector choices, const Routes& routes, Vector gates, const TokenRows& rows) {
  promise_choices("read_choices", choices, routes, rows.ranks);
  const std::int64_t copies = std::int64_t(choices.size()) / (2 * rows.ranks);  // of a rank
  for_each("read_choices", rows.ranks, [=](std::int64_t rank) {
    const float* const numbers = choices.data() + 2 * rank * copies;
    std::copy_n(reinterpret_cast<const std::int32_t*>(numbers), copies,
                routes.experts + rank * copies);
    std::copy_n(numbers + copies, copies, gates.data() + rank * copies);
  });
  const std::int32_t* const own = routes.experts + rows.rank * copies;
  order_by(
      copies, rows.ranks,
      [=](std::int64_t i) { return rank_of_copy(own, routes.chosen, routes.num_held, i); },
      rows.sent_begins, rows.sent);
  const std::int64_t tokens = copies / routes.chosen;
  order_by(
      tokens * rows.ranks, rows.ranks,
      [=](std::int64_t token) { return rank_of_arrival(routes, token, tokens); }, rows.place_begins,
      rows.places);
}

void order_copies(ConstVector of_tokens, const Routes& routes, Vector gates) {
  promise(gates.size() == of_tokens.size(), "order_copies", "gates must be [N k]");
  order_by(
      std::int64_t(gates.size()), routes.num_experts,
      [=](std::int64_t copy) { return routes.place(routes.experts[copy]); }, routes.begins,
      routes.rows);
  for_each("order_copies", std::int64_t(gates.size()),
           [=](std::int64_t copy) { gates(std::size_t(routes.rows[copy])) = of_tokens(copy); });
}

void order_copies_backward(ConstVector d_gates, const Routes& routes, std::int64_t first,
                           std::int64_t tokens, std::int64_t tokens_of_rank, Vector d_choices) {
  promise_held("order_copies_backward", d_gates, routes);
  const std::int64_t copies = tokens_of_rank * routes.chosen;
  const std::int32_t held = routes.held_rows();
  for_each("order_copies_backward", tokens * routes.chosen, [=](std::int64_t copy) {
    const std::int64_t i = first * routes.chosen + copy;
    float* const out = d_choices.data() + i / copies * 2 * copies + i % copies;
    const std::int32_t row = routes.rows[copy];
    out[0] = 0.0f;
    out[copies] = row < held ? d_gates(std::size_t(row)) : 0.0f;
  });
}

}  // namespace brume::kernels
