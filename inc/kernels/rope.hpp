/// @file Rotary positions, forward and backward in place.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/types.hpp"

namespace brume::kernels {

/// Cosines and sines of all angles, [T, R]: row t holds m cos(t f_i), then m sin(t f_i).
///
/// @param frequencies  f, [R / 2]
/// @param magnitude    m, by which features grow besides their turn
std::vector<float> rope_table(const std::vector<double>& frequencies, int seq_len,
                              double magnitude = 1.0);

/// Turns features i and i + R/2 of every head by the angle of the token's place t in its document,
/// n mod T where that is the sequence:
///
///   x_i' = x_i cos(t f_i) - x_{i+R/2} sin(t f_i),  x_{i+R/2}' = x_{i+R/2} cos(t f_i) + x_i sin(t
///   f_i)
///
/// @param table     [T, R] as above
/// @param head_dim  D features a head, of which the first R <= D are turned
/// @param x         [N, H * D] heads in order, changed in place
/// @source          Su et al. 2021 (RoFormer), eq. (34), pairs as in Llama, part of a head as in
///                  GPT-NeoX
template <class Storage = float>
void rope_forward(ConstMatrix table, int head_dim, MatrixOf<Storage> x, Documents documents = {});

/// The gradient of the input in the place of that of the output: the same turn, backwards.
template <class Storage = float>
void rope_backward(ConstMatrix table, int head_dim, MatrixOf<Storage> dx, Documents documents = {});

}  // namespace brume::kernels
