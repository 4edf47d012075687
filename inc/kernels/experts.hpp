/// @file Mixtures of experts: the experts of each token, its rows among theirs, products by expert.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/matmul.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

/// The k experts of each token. The copies of the tokens, one for each expert, have rows in the
/// order of the experts, then of the tokens. A rank that holds some of the experts begins with
/// these, and goes on with the experts behind them, then with the first ones. Matrices have the R
/// rows of the experts that it holds.
struct Routes {
  std::int32_t* experts = nullptr;  ///< [N, k] rising within a token
  /// [N, k] row of the copy; null: gates are in the order of tokens, nothing else is known
  std::int32_t* rows = nullptr;
  std::int32_t* begins = nullptr;  ///< [E + 1] first row of an expert, and the end of all rows
  int num_experts = 0;             ///< E
  int chosen = 0;                  ///< k
  int first_held = 0;              ///< first expert that the rank holds
  int num_held = 0;                ///< number of experts that it holds
  /// `begins` on the host, for all that follows choose_experts; outlives the call.
  const std::int32_t* host_begins = nullptr;
  /// [N] row of a token in a matrix of tokens that were sent here; null: it has all N
  const std::int32_t* places = nullptr;
  std::int64_t placed = 0;  ///< N, with `places`
  /// [N] whether a token pads a sequence, and so has no load and no loss; null: none does
  const std::uint8_t* padding = nullptr;

  std::int64_t tokens(std::size_t all) const {
    return places != nullptr ? placed : std::int64_t(all);
  }
  constexpr bool pads(std::int64_t token) const {
    return padding != nullptr && padding[token] != 0;
  }
  std::int32_t held_rows() const { return host_begins[num_held]; }  ///< R
  /// Place of an expert in the order of rows.
  constexpr int place(int expert) const {
    return expert < first_held ? expert - first_held + num_experts : expert - first_held;
  }
};

inline constexpr int most_expert_groups = 64;

/// The way from a token's logits to its experts and gates.
struct Router {
  bool sigmoid = false;    ///< scores are the sigmoids of logits; else a softmax makes gates
  bool normalizes = true;  ///< a token's gates sum to `scale`
  float scale = 1.0f;      ///< factor of all gates
  // Sigmoids only:
  int groups = 1, chosen_groups = 1;  ///< groups of neighbouring experts, and of these a token's
  const float* correction = nullptr;  ///< [E] added to scores for the choice; null: zeros
};

/// `begins`, for Routes::host_begins. Waits for the device.
std::vector<std::int32_t> read_begins(const Routes& routes);

/// Losses that keep the experts' loads even. Their gradients are added to the logits' gradients.
///
///   balance: sum over sequences of sum_i c_i sum_t p_ti,  z: sum_t logsumexp(l_t)^2
///
/// with p the softmax of all logits of a token, or their sigmoids over the sum of these, and c_i
/// the copies that a sequence has of expert i.
/// @source  Fedus et al. 2021, eq. (4), by sequence; DeepSeek-V3, eq. (17) to (20), with the copies
///          of the corrected choice; Zoph et al. 2022, eq. (5)
struct RouterLoss {
  float balance = 0.0f, z = 0.0f;  ///< factors
  int seq_len = 0;                 ///< T; 0: the loads are not balanced
  /// Tokens before the first one and behind the last one with which the tokens are whole sequences.
  /// Routes::experts has theirs too.
  int before = 0, after = 0;
  /// [parts, E] copies in each part of one sequence, of which tokens [first, first + count) are
  /// balanced; seq_len, before and after are 0 then. Null: `seq_len` says which tokens are.
  const float* counts = nullptr;
  int parts = 0, first = 0, count = 0;

  constexpr bool balances() const { return balance != 0.0f && (seq_len > 0 || counts != nullptr); }
  /// The sequence, among the tokens' ones, whose loads token n balances; negative: none.
  constexpr std::int64_t sequence(std::int64_t n) const {
    if (counts == nullptr) return (before + n) / seq_len;
    return first <= n && n < first + count ? 0 : -1;
  }
};

/// l[n,e] = sum_i x[n,i] w[e,i] + b[e], in fp32 whatever the storage.
///
/// @param x       [N, C]
/// @param w       [E, C]
/// @param logits  [N, E] l
/// @param bias    [E] b; an empty view: 0. Its gradient is `bias_backward` of dl.
template <class Storage = float>
void router_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Matrix logits,
                    ConstVectorOf<Storage> bias = {});

/// dw[e,i] = sum_n dl[n,e] x[n,i]  (+ dw[e,i] when accumulating),  dx[n,i] = sum_e dl[n,e] w[e,i]
///
/// @param d_logits  [N, E] dl
/// @param dw        [E, C]; an empty view: nobody wants it
/// @param dx        [N, C] may be x itself
template <class Storage = float>
void router_backward(ConstMatrix d_logits, ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                     Write write, Matrix dw, MatrixOf<Storage> dx);

/// Chooses the experts of the k largest logits of each token, of equal logits the lowest expert.
/// Gates are the softmax of the chosen logits if they are normalized, else that of all logits.
///
/// A router by sigmoids s chooses by s + correction, among the experts of the chosen groups: those
/// with the largest sums of their two largest s + correction. Gates are s, over their sum plus
/// 1e-20 if they are normalized.
///
/// A NaN counts as -infinity, and makes a NaN of each gate that depends on it.
///
/// @param logits  [N, E]
/// @param gates   [N k] by row, or by token
/// @param routes  its arrays are written
/// @source        Shazeer et al. 2017; DeepSeek-V3, eq. (12) to (16)
void choose_experts(ConstMatrix logits, const Router& router, Vector gates, Routes routes);

/// counts[i] = copies of tokens [first, first + tokens) for expert i
///
/// @param counts  [E]
void count_copies(const Routes& routes, std::int64_t first, std::int64_t tokens, Vector counts);

/// The gradients of the logits, whose choice counts as fixed.
///
/// @param d_gates   [R] by row; the gates of all other rows, which other ranks hold, have the
///                  gradient 0. Or [N k] by token
/// @param d_logits  [N, E] replaced
void choose_experts_backward(ConstMatrix logits, const Router& router, const Routes& routes,
                             ConstVector d_gates, const RouterLoss& loss, Matrix d_logits);

/// g[n] = 1 / (1 + e^-l[n])
///
/// @param logits  [N, 1] l
/// @param gates   [N] g
template <class Storage = float>
void sigmoid_forward(ConstMatrixOf<Storage> logits, Vector gates);

/// dl[n] = g[n] (1 - g[n]) dg[n]
///
/// @param d_gates   [N] dg
/// @param d_logits  [N, 1] dl
template <class Storage = float>
void sigmoid_backward(ConstMatrixOf<Storage> logits, ConstVector d_gates,
                      MatrixOf<Storage> d_logits);

/// y[row of (n, j)] = x[n] for rows below R: the copies of tokens that go to experts of this rank.
/// Its gradient is `combine` without a residual.
///
/// @param x  [N, C]
/// @param y  [R, C]
template <class Storage = float>
void dispatch(ConstMatrixOf<Storage> x, const Routes& routes, MatrixOf<Storage> y);

/// y[n] = residual[n] + sum_j x[row of (n, j)] of rows below R, summed in fp32 in the order of j
///
/// @param x         [R, C]
/// @param residual  [N, C]; an empty view adds nothing. y may be `residual` itself
/// @param y         [N, C]
template <class Storage = float>
void combine(ConstMatrixOf<Storage> x, const Routes& routes, ConstMatrixOf<Storage> residual,
             MatrixOf<Storage> y);

// Products of kernels/matmul.hpp, of each expert's rows with its own matrix, for the H experts that
// this rank holds.

/// @param x  [R, I]
/// @param w  [H O, I]
/// @param y  [R, O]
template <class Storage = float>
void experts_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, const Routes& routes,
                     Write write, MatrixOf<Storage> y, Factors factors = Factors::stored);

template <class Storage = float>
void experts_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                            const Routes& routes, Write write, MatrixOf<Storage> dx,
                            Factors factors = Factors::stored);

/// @param dw  [H O, I]; zeros replace that of an expert without rows
template <class Storage = float>
void experts_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                             const Routes& routes, Write write, Matrix dw,
                             Factors factors = Factors::stored);

// Biases of products whose rows have gates: a gate multiplies what the product reads, so that the
// bias must be multiplied apart.

/// y[r,o] += g[r] b[h,o] for the rows r of each held expert h
///
/// @param b      [H, O]
/// @param gates  [R] g; an empty view: 1
/// @param y      [R, O]
template <class Storage = float>
void add_experts_bias(ConstMatrixOf<Storage> b, const Routes& routes, ConstVector gates,
                      MatrixOf<Storage> y);

/// db[h,o] = sum_r g[r] dy[r,o]  (+ db[h,o] when accumulating) over the rows of expert h, in order
template <class Storage = float>
void experts_bias_backward(ConstMatrixOf<Storage> dy, const Routes& routes, ConstVector gates,
                           Write write, Matrix db);

/// dg[r] = sum_o dy[r,o] b[h,o]
template <class Storage = float>
void experts_bias_backward_gates(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> b,
                                 const Routes& routes, Vector d_gates);

}  // namespace brume::kernels
