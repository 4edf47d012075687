#include "kernels/attention.hpp"

#include "kernels/host/loops.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {

template <class Storage>
void attention_backward_sinks(const AttentionShape& shape, ConstVectorOf<Storage> sinks,
                              ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                              Write write, Vector d_sinks) {
  promise_attention_sinks("attention_backward_sinks", shape, sinks, o, lse, d_o, d_sinks);
  for_each("attention_backward_sinks", shape.heads, [=](std::int64_t h) {
    const float sink = sinks(h);
    double sum = 0.0;
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t n = 0; n < shape.queries(); ++n) {
        const std::int64_t token = b * shape.queries() + n;
        const Storage* const out = &o(token, h * shape.head_dim);
        const Storage* const gradient = &d_o(token, h * shape.head_dim);
        const float mean = sum_terms(shape.head_dim, [=](int d) { return out[d] * gradient[d]; });
        sum -= vector_exp(sink - lse((b * shape.heads + h) * shape.queries() + n)) * mean;
      }
    d_sinks(h) = float(write == Write::accumulate ? d_sinks(h) + sum : sum);
  });
}

}  // namespace brume::kernels

#include "kernels/instances/attention_sinks.hpp"
