/// @file Speed of each host kernel beside the roof of this machine, measured in the same run.
///
///   perf_kernels [threads]

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "kernels/adamw.hpp"
#include "kernels/attention.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/pointwise.hpp"

namespace brume::kernels {
namespace {

using Body = std::function<void()>;

/// Shortest of the runs that fit in 0.2 s, at least three. [s]
double shortest_s(const Body& body) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  body();
  double best_s = 1e30;
  const auto start = Clock::now();
  for (int i = 0; i < 3 || seconds(Clock::now() - start) < 0.2; ++i) {
    const auto before = Clock::now();
    body();
    best_s = std::min(best_s, seconds(Clock::now() - before));
  }
  return best_s;
}

/// An array of the caller's, filled with small numbers that differ.
struct Array {
  Array(int rows, int cols, float scale = 1.0f)
      : rows{rows}, cols{cols}, values(std::size_t(rows) * cols) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = scale * (float(i * 2654435761u % 1000u) / 500.0f - 1.0f);
  }
  operator Matrix() { return Matrix(values.data(), rows, cols); }
  operator ConstMatrix() { return Matrix(*this); }
  operator Vector() { return Vector(values.data(), values.size()); }
  operator ConstVector() { return Vector(*this); }

  int rows, cols;
  std::vector<float> values;
};

/// Bytes a second of a = b + s c over three arrays that fill `bytes`: from cache when they fit
/// there.
double triad_roof(double bytes) {
  const std::size_t count = std::max<std::size_t>(1024, std::size_t(bytes / 12.0));
  std::vector<float> a(count, 0.0f), b(count, 1.0f), c(count, 2.0f);
  float* const out = a.data();
  const float* const in1 = b.data();
  const float* const in2 = c.data();
  const double time_s = shortest_s([=] {
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) out[i] = in1[i] + 3.0f * in2[i];
  });
  return 12.0 * double(count) / time_s;
}

/// Operations a second of a large product whose factors need no transposition.
double product_roof() {
  Array x(768, 768), w(768, 768), y(768, 768);
  return 2.0 * 768 * 768 * 768 /
         shortest_s([&] { linear_backward_input(x, w, Write::replace, y); });
}

/// Rows of the printed table.
class Report {
 public:
  Report() : table_({"kernel", "shape", "time", "rate", "unit", "roof"}), flops_{product_roof()} {}

  void products(const std::string& kernel, const std::string& shape, double flops,
                const Body& body) {
    const double time_s = shortest_s(body);
    row(kernel, shape, time_s, flops / time_s, "GFLOP/s", flops_);
  }

  /// `bytes`: each array read or written once.
  void passes(const std::string& kernel, const std::string& shape, double bytes, const Body& body) {
    const double time_s = shortest_s(body);
    row(kernel, shape, time_s, bytes / time_s, "GB/s", triad_roof(bytes));
  }

  void print() const {
    fmt::print(
        "Roofs: {:.0f} GFLOP/s in an fp32 product of 768 x 768, else the triad over as many "
        "bytes.\n\n",
        flops_ * 1e-9);
    fmt::print("{}", table_.text());
  }

 private:
  void row(const std::string& kernel, const std::string& shape, double time_s, double rate,
           const char* unit, double roof) {
    table_.add({kernel, shape, format_seconds(time_s), fmt::format("{:.1f}", rate * 1e-9), unit,
                fmt::format("{:.0f} %", 100.0 * rate / roof)});
  }

  Table table_;
  double flops_;
};

void measure_linear_bfloat16(Report& report, int tokens, int inner, int outer) {
  std::vector<bfloat16> values(
      std::size_t(tokens) * inner + std::size_t(outer) * inner + std::size_t(tokens) * outer,
      bfloat16(0.5f));
  Array dw(outer, inner);
  bfloat16* const all = values.data();
  const MatrixOf<bfloat16> x(all, tokens, inner), w(x.data() + x.size(), outer, inner),
      y(w.data() + w.size(), tokens, outer);
  const std::string shape = fmt::format("N {} I {} O {} bf16", tokens, inner, outer);
  const double flops = 2.0 * tokens * inner * outer;
  report.products("linear_forward", shape, flops,
                  [&] { linear_forward<bfloat16>(x, w, Write::replace, y); });
  report.products("linear_backward_input", shape, flops,
                  [&] { linear_backward_input<bfloat16>(y, w, Write::replace, x); });
  report.products("linear_backward_weight", shape, flops,
                  [&] { linear_backward_weight<bfloat16>(y, x, Write::accumulate, dw); });
}

void measure_linear(Report& report, int tokens, int inner, int outer) {
  Array x(tokens, inner), w(outer, inner), y(tokens, outer);
  const std::string shape = fmt::format("N {} I {} O {}", tokens, inner, outer);
  const double flops = 2.0 * tokens * inner * outer;
  report.products("linear_forward", shape, flops, [&] { linear_forward(x, w, Write::replace, y); });
  report.products("linear_backward_input", shape, flops,
                  [&] { linear_backward_input(y, w, Write::replace, x); });
  report.products("linear_backward_weight", shape, flops,
                  [&] { linear_backward_weight(y, x, Write::accumulate, w); });
}

void measure_rows(Report& report, int tokens, int width) {
  Array x(tokens, width), y(tokens, width), dy(tokens, width), residual(tokens, width);
  Array gain(1, width), bias(1, width), dgain(1, width), dbias(1, width), mean(1, tokens),
      rstd(1, tokens);
  const std::string shape = fmt::format("N {} C {}", tokens, width);
  const double bytes = 4.0 * tokens * width;
  report.passes("add_bias", shape, 2 * bytes, [&] { add_bias(x, bias, y); });
  report.passes("bias_backward", shape, bytes, [&] { bias_backward(dy, Write::replace, dbias); });
  report.passes("gelu_forward", shape, 2 * bytes, [&] { gelu_forward(x, bias, y); });
  report.passes("gelu_backward", shape, 3 * bytes, [&] { gelu_backward(x, bias, dy, y); });
  report.passes("layer_norm_forward", shape, 2 * bytes,
                [&] { layer_norm_forward(x, gain, bias, 1e-5f, y, mean, rstd); });
  report.passes("layer_norm_apply", shape, 2 * bytes,
                [&] { layer_norm_apply(x, gain, bias, mean, rstd, y); });
  report.passes("layer_norm_backward", shape, 4 * bytes, [&] {
    layer_norm_backward(dy, x, gain, mean, rstd, residual, y, Write::replace, dgain, dbias);
  });
}

void measure_vectors(Report& report, int count) {
  Array x(1, count), y(1, count), m(1, count), v(1, count);
  std::fill(v.values.begin(), v.values.end(), 0.5f);
  const std::string shape = fmt::format("{} elements", count);
  const AdamW step{1e-3f, 0.9, 0.95, 1e-8f, 0.1f, 0.1f, 0.05f, 0.0};
  report.passes("add", shape, 12.0 * count, [&] { add(x, y); });
  report.passes("fill", shape, 4.0 * count, [&] { fill(1.0f, y); });
  double sum = 0.0;
  report.passes("sum_squares", shape, 4.0 * count,
                [&] { sum_squares(x, Write::accumulate, &sum); });
  report.passes("adamw_step", shape, 28.0 * count, [&] { adamw_step(step, nullptr, x, y, m, v); });
}

void measure_vocabulary(Report& report, int tokens, int vocab, int width) {
  Array logits(tokens, vocab);
  std::vector<std::int32_t> ids(tokens);
  for (int n = 0; n < tokens; ++n) ids[n] = n * 7919 % vocab;
  const ConstTokens targets(ids.data(), ids.size());
  const std::string shape = fmt::format("N {} V {}", tokens, vocab);
  const double bytes = 4.0 * tokens * vocab;
  double loss = 0.0;
  report.passes("cross_entropy (loss)", shape, bytes,
                [&] { cross_entropy(logits, targets, 1.0f, false, Write::replace, &loss); });
  report.passes("cross_entropy (+ gradient)", shape, 2 * bytes,
                [&] { cross_entropy(logits, targets, 1.0f, true, Write::replace, &loss); });

  Array table(vocab, width), positions(tokens, width), x(tokens, width);
  const std::string embedded = fmt::format("{} C {}", shape, width);
  report.passes("embedding_forward", embedded, 12.0 * tokens * width,
                [&] { embedding_forward(targets, table, positions, x); });
  report.passes("embedding_backward", embedded, 20.0 * tokens * width,
                [&] { embedding_backward(targets, x, table, positions); });
}

void measure_attention(Report& report, int batch, int seq_len, int heads, int head_dim) {
  const AttentionShape shape{batch, seq_len, heads, head_dim};
  const int tokens = batch * seq_len;
  const int width = heads * head_dim;
  Array qkv(tokens, 3 * width), o(tokens, width), d_o(tokens, width), dqkv(tokens, 3 * width);
  Array lse(1, tokens * heads);
  const std::string text = fmt::format("B {} T {} H {} D {}", batch, seq_len, heads, head_dim);
  // Only scores on or below the diagonal count: 2 products forward, 5 backward.
  const double product = 2.0 * batch * heads * head_dim * (0.5 * seq_len * (seq_len + 1.0));
  report.products("attention_forward", text, 2 * product,
                  [&] { attention_forward(shape, qkv, o, lse); });
  report.products("attention_backward", text, 5 * product,
                  [&] { attention_backward(shape, qkv, o, lse, d_o, dqkv); });
}

void measure_all() {
  Report report;
  measure_linear(report, 512, 192, 768);
  measure_linear(report, 512, 768, 192);
  measure_linear(report, 1024, 768, 3072);
  measure_linear_bfloat16(report, 1024, 768, 3072);
  measure_rows(report, 512, 192);
  measure_rows(report, 512, 768);
  measure_rows(report, 8192, 3072);
  measure_vectors(report, 1 << 16);
  measure_vectors(report, 1 << 24);
  measure_vocabulary(report, 512, 256, 192);
  measure_vocabulary(report, 256, 50304, 768);
  for (const int seq_len : {64, 256, 1024})
    for (const int head_dim : {32, 64}) measure_attention(report, 2, seq_len, 6, head_dim);
  report.print();
}

}  // namespace
}  // namespace brume::kernels

int main(int argc, char** argv) {
  const brume::kernels::Runtime runtime(argc > 1 ? std::max(1, std::atoi(argv[1])) : 1);
  brume::kernels::measure_all();
}
