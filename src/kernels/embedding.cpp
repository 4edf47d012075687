#include "kernels/embedding.hpp"

#include "kernels/host.hpp"

namespace brume::kernels {
namespace {

void check_tokens(const ConstTokens& tokens, int vocab) {
  for (std::size_t n = 0; n < tokens.extent(0); ++n)
    require(tokens(n) >= 0 && tokens(n) < vocab, Failure::bug,
            "embedding: token {} at {} lies outside the vocabulary of {}", tokens(n), n, vocab);
}

/// A token's row of a table that holds those of one part; nullptr: it is of another part.
template <class Table>
auto row_of(const Table& table, const VocabularyPart& part, int token) {
  const int row = token - part.first;
  return row >= 0 && row < table.extent_int(0) ? &table(row, 0) : nullptr;
}

}  // namespace

template <class Storage>
void embedding_forward(ConstTokens tokens, ConstMatrixOf<Storage> token_table,
                       ConstMatrixOf<Storage> position_table, MatrixOf<Storage> x,
                       VocabularyPart part) {
  const bool learned = position_table.data() != nullptr;
  promise(
      x.extent(0) == tokens.extent(0) && x.extent(1) == token_table.extent(1) &&
          (!learned || (x.extent(1) == position_table.extent(1) && position_table.extent(0) > 0)),
      "embedding_forward", "tokens [N], tables [R, C] and [T, C], x [N, C] must fit");
  check_tokens(tokens, part.vocab > 0 ? part.vocab : token_table.extent_int(0));
  const int width = x.extent_int(1);
  const std::int64_t length = position_table.extent(0);
  for_each("embedding_forward", x.extent(0), [=](std::int64_t n) {
    const Storage* const token = row_of(token_table, part, tokens(n));
    const Storage* const position = learned ? &position_table(n % length, 0) : nullptr;
    Storage* const out = &x(n, 0);
    if (token == nullptr && position == nullptr) {
      std::fill_n(out, width, Storage(0.0f));
    } else if (token == nullptr || position == nullptr) {
      std::copy_n(token ? token : position, width, out);
    } else {
#pragma omp simd
      for (int c = 0; c < width; ++c) out[c] = token[c] + position[c];
    }
  });
}

template <class Storage>
void embedding_backward(ConstTokens tokens, ConstMatrixOf<Storage> dx, Matrix d_token_table,
                        Matrix d_position_table, VocabularyPart part) {
  const bool learned = d_position_table.data() != nullptr;
  promise(dx.extent(0) == tokens.extent(0) && dx.extent(1) == d_token_table.extent(1) &&
              (!learned ||
               (dx.extent(1) == d_position_table.extent(1) && d_position_table.extent(0) > 0)),
          "embedding_backward", "tokens [N], dx [N, C], tables [R, C] and [T, C] must fit");
  check_tokens(tokens, part.vocab > 0 ? part.vocab : d_token_table.extent_int(0));
  const std::int64_t count = dx.extent(0);
  const std::int64_t length = d_position_table.extent(0);
  // Columns side by side, tokens in order: a row named twice is added to in the same order always.
  for_each_columns("embedding_backward", dx.extent(1), [=](std::int64_t begin, std::int64_t end) {
    const auto add = [=](const Storage* grad, float* row) {
#pragma omp simd
      for (std::int64_t c = begin; c < end; ++c) row[c] += grad[c];
    };
    for (std::int64_t n = 0; n < count; ++n) {
      const Storage* const grad = &dx(n, 0);
      if (float* const row = row_of(d_token_table, part, tokens(n))) add(grad, row);
      if (learned) add(grad, &d_position_table(n % length, 0));
    }
  });
}

template void embedding_forward<float>(ConstTokens, ConstMatrixOf<float>, ConstMatrixOf<float>,
                                       MatrixOf<float>, VocabularyPart);
template void embedding_forward<bfloat16>(ConstTokens, ConstMatrixOf<bfloat16>,
                                          ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>,
                                          VocabularyPart);
template void embedding_backward<float>(ConstTokens, ConstMatrixOf<float>, Matrix, Matrix,
                                        VocabularyPart);
template void embedding_backward<bfloat16>(ConstTokens, ConstMatrixOf<bfloat16>, Matrix, Matrix,
                                           VocabularyPart);

}  // namespace brume::kernels
