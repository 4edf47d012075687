#include "kernels/embedding.hpp"

#include "kernels/host.hpp"

namespace brume::kernels {
namespace {

void check_tokens(const ConstTokens& tokens, std::size_t vocab) {
  for (std::size_t n = 0; n < tokens.extent(0); ++n)
    require(tokens(n) >= 0 && std::size_t(tokens(n)) < vocab, Failure::bug,
            "embedding: token {} at {} lies outside the table of {} rows", tokens(n), n, vocab);
}

}  // namespace

template <class Storage>
void embedding_forward(ConstTokens tokens, ConstMatrixOf<Storage> token_table,
                       ConstMatrixOf<Storage> position_table, MatrixOf<Storage> x) {
  const bool learned = position_table.data() != nullptr;
  promise(
      x.extent(0) == tokens.extent(0) && x.extent(1) == token_table.extent(1) &&
          (!learned || (x.extent(1) == position_table.extent(1) && position_table.extent(0) > 0)),
      "embedding_forward", "tokens [N], tables [V, C] and [T, C], x [N, C] must fit");
  check_tokens(tokens, token_table.extent(0));
  const int width = x.extent_int(1);
  const std::int64_t length = position_table.extent(0);
  for_each("embedding_forward", x.extent(0), [=](std::int64_t n) {
    const Storage* const token = &token_table(tokens(n), 0);
    Storage* const out = &x(n, 0);
    if (!learned) {
      std::copy(token, token + width, out);
      return;
    }
    const Storage* const position = &position_table(n % length, 0);
#pragma omp simd
    for (int c = 0; c < width; ++c) out[c] = token[c] + position[c];
  });
}

template <class Storage>
void embedding_backward(ConstTokens tokens, ConstMatrixOf<Storage> dx, Matrix d_token_table,
                        Matrix d_position_table) {
  const bool learned = d_position_table.data() != nullptr;
  promise(dx.extent(0) == tokens.extent(0) && dx.extent(1) == d_token_table.extent(1) &&
              (!learned ||
               (dx.extent(1) == d_position_table.extent(1) && d_position_table.extent(0) > 0)),
          "embedding_backward", "tokens [N], dx [N, C], tables [V, C] and [T, C] must fit");
  check_tokens(tokens, d_token_table.extent(0));
  const std::int64_t count = dx.extent(0);
  const std::int64_t length = d_position_table.extent(0);
  // Columns side by side, tokens in order: a row named twice is added to in the same order always.
  for_each_columns("embedding_backward", dx.extent(1), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = 0; n < count; ++n) {
      const Storage* const grad = &dx(n, 0);
      float* const token = &d_token_table(tokens(n), 0);
      if (!learned) {
#pragma omp simd
        for (std::int64_t c = begin; c < end; ++c) token[c] += grad[c];
        continue;
      }
      float* const position = &d_position_table(n % length, 0);
#pragma omp simd
      for (std::int64_t c = begin; c < end; ++c) {
        token[c] += grad[c];
        position[c] += grad[c];
      }
    }
  });
}

template void embedding_forward<float>(ConstTokens, ConstMatrixOf<float>, ConstMatrixOf<float>,
                                       MatrixOf<float>);
template void embedding_forward<bfloat16>(ConstTokens, ConstMatrixOf<bfloat16>,
                                          ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void embedding_backward<float>(ConstTokens, ConstMatrixOf<float>, Matrix, Matrix);
template void embedding_backward<bfloat16>(ConstTokens, ConstMatrixOf<bfloat16>, Matrix, Matrix);

}  // namespace brume::kernels
