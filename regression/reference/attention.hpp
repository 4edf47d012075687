/// @file Plain causal attention that stores all scores.
#pragma once

#include "kernels/attention.hpp"
#include "reference/arrays.hpp"

namespace brume::reference {

/// Where feature d of token n (over the batch) lies that query head h reads; part 0 is q, 1 k, 2 v.
inline std::size_t at(const kernels::AttentionShape& s, int part, int n, int h, int d) {
  const int keys = s.kv_heads == 0 ? s.heads : s.kv_heads;
  const int shared = (s.first_head + h) / s.group;
  const int heads_before = part == 0 ? h : s.heads + (part - 1) * keys + shared;
  return std::size_t(n) * (s.heads + 2 * keys) * s.head_dim + heads_before * s.head_dim + d;
}

inline double capped(const kernels::AttentionShape& s, double score) {
  return s.cap > 0.0f ? s.cap * std::tanh(score / s.cap) : score;
}

/// Probabilities [T, T] of one head in the sequence that begins at token `first`, and lse [T].
///
/// @param sinks  [H]; empty: none
inline Doubles probabilities(const kernels::AttentionShape& s, const Doubles& qkv, int first, int h,
                             double* lse, const Doubles& sinks = {}) {
  const int T = s.seq_len;
  Doubles p(std::size_t(T) * T, 0.0);
  for (int n = 0; n < T; ++n) {
    double sum = sinks.empty() ? 0.0 : std::exp(sinks[std::size_t(h)]);
    for (int m = s.first_key(first / T, n); m <= n; ++m) {
      double score = 0.0;
      for (int d = 0; d < s.head_dim; ++d)
        score += qkv[at(s, 0, first + n, h, d)] * qkv[at(s, 1, first + m, h, d)];
      p[n * T + m] = std::exp(capped(s, score * s.score_scale()));
      sum += p[n * T + m];
    }
    for (int m = s.first_key(first / T, n); m <= n; ++m) p[n * T + m] /= sum;
    lse[n] = std::log(sum);
  }
  return p;
}

struct Attention {
  Doubles o, lse;
};

inline Attention attention_forward(const kernels::AttentionShape& s, const Doubles& qkv,
                                   const Doubles& sinks = {}) {
  const int T = s.seq_len;
  const int width = s.heads * s.head_dim;
  Attention out{Doubles(std::size_t(s.batch) * T * width, 0.0),
                Doubles(std::size_t(s.batch) * s.heads * T)};
  for (int b = 0; b < s.batch; ++b)
    for (int h = 0; h < s.heads; ++h) {
      const Doubles p = probabilities(s, qkv, b * T, h, &out.lse[(b * s.heads + h) * T], sinks);
      for (int n = 0; n < T; ++n)
        for (int m = s.first_key(b, n); m <= n; ++m)
          for (int d = 0; d < s.head_dim; ++d)
            out.o[(b * T + n) * width + h * s.head_dim + d] +=
                p[n * T + m] * qkv[at(s, 2, b * T + m, h, d)];
    }
  return out;
}

inline Doubles attention_backward(const kernels::AttentionShape& s, const Doubles& qkv,
                                  const Doubles& d_o, const Doubles& sinks = {}) {
  const int T = s.seq_len;
  const int width = s.heads * s.head_dim;
  const double scale = s.score_scale();
  Doubles grad(qkv.size(), 0.0);
  Doubles lse(T);
  for (int b = 0; b < s.batch; ++b)
    for (int h = 0; h < s.heads; ++h) {
      const Doubles p = probabilities(s, qkv, b * T, h, lse.data(), sinks);
      for (int n = 0; n < T; ++n) {
        const double* const out_grad = &d_o[(b * T + n) * width + h * s.head_dim];
        Doubles d_p(T, 0.0);
        double mean = 0.0;
        for (int m = s.first_key(b, n); m <= n; ++m) {
          for (int d = 0; d < s.head_dim; ++d)
            d_p[m] += out_grad[d] * qkv[at(s, 2, b * T + m, h, d)];
          mean += p[n * T + m] * d_p[m];
        }
        for (int m = s.first_key(b, n); m <= n; ++m) {
          double share = 0.0;  // of the cap
          for (int d = 0; s.cap > 0.0f && d < s.head_dim; ++d)
            share += qkv[at(s, 0, b * T + n, h, d)] * qkv[at(s, 1, b * T + m, h, d)];
          if (s.cap > 0.0f) share = std::tanh(share * scale / s.cap);
          const double d_score = p[n * T + m] * (d_p[m] - mean) * scale * (1.0 - share * share);
          for (int d = 0; d < s.head_dim; ++d) {
            grad[at(s, 0, b * T + n, h, d)] += d_score * qkv[at(s, 1, b * T + m, h, d)];
            grad[at(s, 1, b * T + m, h, d)] += d_score * qkv[at(s, 0, b * T + n, h, d)];
            grad[at(s, 2, b * T + m, h, d)] += p[n * T + m] * out_grad[d];
          }
        }
      }
    }
  return grad;
}

}  // namespace brume::reference
