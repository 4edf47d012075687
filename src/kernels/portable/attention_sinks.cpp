#include "kernels/portable/attention_rows.hpp"

namespace brume::kernels {

template <class Storage>
void attention_backward_sinks(const AttentionShape& shape, ConstVectorOf<Storage> sinks,
                              ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                              Write write, Vector d_sinks) {
  promise_attention_sinks("attention_backward_sinks", shape, sinks, o, lse, d_o, d_sinks);
  const bool adds = write == Write::accumulate;
  for_each_row(
      "attention_backward_sinks", std::size_t(shape.heads), KOKKOS_LAMBDA(const Team& team) {
        const int head = team.league_rank(), D = shape.head_dim;
        const float sink = sinks(head);
        // A term for each feature, so that neighbouring threads read what lies side by side.
        const double sum = sum_along<double>(team, shape.batch * shape.queries() * D, [&](int i) {
          const int token = i / D, column = head * D + i % D;
          const HeadOf at(shape, token / shape.queries(), head, token % shape.queries());
          const std::int64_t unit =
              (std::int64_t(at.sequence) * shape.heads + head) * shape.queries() + at.row;
          return -double(vector_exp(sink - lse(unit)) *
                         (float(o(token, column)) * float(d_o(token, column))));
        });
        Kokkos::single(Kokkos::PerTeam(team),
                       [&]() { d_sinks(head) = float(adds ? d_sinks(head) + sum : sum); });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/attention_sinks.hpp"
