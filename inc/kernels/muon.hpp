/// @file Muon: steps of whole matrices along momenta whose singular values are brought near 1.
///
/// @source  Jordan et al. 2024; Liu et al. 2025 (scales and weight decay)
#pragma once

#include "kernels/optimizers.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

/// m = mu m + (1 - mu) g,  d = mu m + (1 - mu) g with Nesterov's momentum, else m
///
/// with g as update_kernels has it. Weights stay.
///
/// @param squares  as an UpdateKernel takes it
/// @param d        direction of each element; may be elements.grad itself
void momentum_direction(const Update& update, const double* squares,
                        const UpdatedElements& elements, Moments moments, float* d);

/// Place of a part in its matrix: tensor-parallel ranks have parts of rows or columns.
struct MatrixPart {
  int first_row = 0, first_column = 0;
};

/// x = d / (sqrt(squares) + 1e-7), of a part of d; x is transposed where d has more rows than
/// columns.
///
/// @param d        [rows, columns] the part
/// @param squares  one number: the sum of the squares of the whole of d
/// @param x        [m, n] the whole
template <class Storage = float>
void normalize(ConstMatrix d, const MatrixPart& part, const double* squares, bool transposed,
               MatrixOf<Storage> x);

/// y = a x + b y, element by element.
template <class Storage = float>
void scale_add(float a, ConstMatrixOf<Storage> x, float b, MatrixOf<Storage> y);

/// w = kept w - length x, for consecutive elements of a part of a matrix.
///
/// @param kept      1 - lr weight_decay
/// @param length    lr times the matrix's scale
/// @param x         [m, n] the whole; the matrix's transpose if `transposed`
/// @param columns   columns of the part
/// @param first     number of the first element in the part
/// @param elements  the elements' weights, which alone are read and written
template <class Storage = float>
void step_along(float kept, float length, ConstMatrixOf<Storage> x, bool transposed,
                const MatrixPart& part, int columns, std::int64_t first,
                const UpdatedElements& elements);

/// Brings the singular values of x near 1. An iteration is
///
///   A = x x^T,  x = a x + (b A + c A^2) x,  (a, b, c) = (3.4445, -4.7750, 2.0315)
///
/// @param x      [m, n] of a norm of at most 1, m <= n; it is overwritten
/// @param spare  [m, n]
/// @param gram, gram_squared  [m, m] room for A and A^2
/// @return  x or `spare`: the one that has the result
template <class Storage = float>
MatrixOf<Storage> orthogonalize(MatrixOf<Storage> x, MatrixOf<Storage> spare,
                                MatrixOf<Storage> gram, MatrixOf<Storage> gram_squared,
                                int iterations);

}  // namespace brume::kernels
