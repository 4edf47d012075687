#include "kernels/embedding.hpp"

#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

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
                       VocabularyPart part, float scale, Documents documents) {
  const bool learned = position_table.data() != nullptr;
  promise_embedding("embedding_forward", tokens, x, token_table, position_table);
  const int width = x.extent_int(1);
  const std::int64_t length = position_table.extent(0);
  for_each("embedding_forward", x.extent(0), [=](std::int64_t n) {
    const Storage* const token = row_of(token_table, part, tokens(n));
    const Storage* const position =
        learned ? &position_table(documents.table_row(n, length), 0) : nullptr;
    Storage* const out = &x(n, 0);
    if (token == nullptr && position == nullptr) {
      std::fill_n(out, width, Storage(0.0f));
    } else if (scale != 1.0f) {
#pragma omp simd
      for (int c = 0; c < width; ++c)
        out[c] = (token ? scale * token[c] : 0.0f) + (position ? float(position[c]) : 0.0f);
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
                        Matrix d_position_table, VocabularyPart part, float scale,
                        Documents documents) {
  const bool learned = d_position_table.data() != nullptr;
  promise_embedding("embedding_backward", tokens, dx, d_token_table, d_position_table);
  const std::int64_t count = dx.extent(0);
  const std::int64_t length = d_position_table.extent(0);
  // Columns side by side, tokens in order: a row named twice is added to in the same order always.
  for_each_columns("embedding_backward", dx.extent(1), [=](std::int64_t begin, std::int64_t end) {
    const auto add = [=](float factor, const Storage* grad, float* row) {
#pragma omp simd
      for (std::int64_t c = begin; c < end; ++c) row[c] += factor * grad[c];
    };
    for (std::int64_t n = 0; n < count; ++n) {
      const Storage* const grad = &dx(n, 0);
      if (float* const row = row_of(d_token_table, part, tokens(n))) add(scale, grad, row);
      if (learned) add(1.0f, grad, &d_position_table(documents.table_row(n, length), 0));
    }
  });
}

}  // namespace brume::kernels

#include "kernels/instances/embedding.hpp"
