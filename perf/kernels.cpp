/// @file Speed of each kernel beside the roof of what it runs on, measured in the same run.
///
///   perf_kernels [threads [shape]]    shape: part of a text in that column; none: all

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/text.hpp"
#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "kernel_report.hpp"
#include "kernels/attention.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/pointwise.hpp"
#include "profiler/bench.hpp"

namespace brume::kernels {
namespace {

template <class Storage>
void measure_linear(Report& report, int tokens, int inner, int outer) {
  const std::string shape =
      fmt::format("N {} I {} O {} {}", tokens, inner, outer, type_name<Storage>);
  if (!report.wants(shape)) return;
  Operands operands;
  const auto x = matrix<Storage>(operands, tokens, inner),
             w = matrix<Storage>(operands, outer, inner),
             y = matrix<Storage>(operands, tokens, outer),
             residual = matrix<Storage>(operands, tokens, outer);
  const auto bias = vector<Storage>(operands, outer);
  const Matrix dw = matrix<float>(operands, outer, inner);
  const Vector db = vector<float>(operands, outer);
  const double flops = 2.0 * tokens * inner * outer;
  report.products<Storage>("linear_forward", shape, flops,
                           [&] { linear_forward<Storage>(x, w, Write::replace, y); });
  report.products<Storage>("affine_forward", shape, flops,
                           [&] { affine_forward<Storage>(x, w, bias, residual, y); });
  report.products<Storage>("linear_backward_input", shape, flops,
                           [&] { linear_backward_input<Storage>(y, w, Write::replace, x); });
  report.products<Storage>("linear_backward_weight", shape, flops,
                           [&] { linear_backward_weight<Storage>(y, x, Write::accumulate, dw); });
  report.products<Storage>("affine_backward_parameters", shape, flops, [&] {
    affine_backward_parameters<Storage>(y, x, Write::accumulate, dw, db);
  });
}

template <class Storage>
void measure_rows(Report& report, int tokens, int width) {
  const std::string shape = fmt::format("N {} C {} {}", tokens, width, type_name<Storage>);
  if (!report.wants(shape)) return;
  Operands operands;
  const auto x = matrix<Storage>(operands, tokens, width),
             y = matrix<Storage>(operands, tokens, width),
             dy = matrix<Storage>(operands, tokens, width),
             residual = matrix<Storage>(operands, tokens, width);
  const auto gain = vector<Storage>(operands, width), bias = vector<Storage>(operands, width);
  const Vector dgain = vector<float>(operands, width), dbias = vector<float>(operands, width),
               mean = vector<float>(operands, tokens), rstd = vector<float>(operands, tokens);
  const double bytes = double(sizeof(Storage)) * tokens * width;
  report.passes("add_bias", shape, 2 * bytes, [&] { add_bias<Storage>(x, bias, y); });
  report.passes("bias_backward", shape, bytes,
                [&] { bias_backward<Storage>(dy, Write::replace, dbias); });
  report.passes("gelu_forward", shape, 2 * bytes, [&] { gelu_forward<Storage>(x, bias, y); });
  report.passes("gelu_backward", shape, 3 * bytes, [&] { gelu_backward<Storage>(x, bias, dy, y); });
  report.passes("layer_norm_forward", shape, 2 * bytes,
                [&] { layer_norm_forward<Storage>(x, gain, bias, 1e-5f, y, mean, rstd); });
  report.passes("layer_norm_apply", shape, 2 * bytes,
                [&] { layer_norm_apply<Storage>(x, gain, bias, mean, rstd, y); });
  report.passes("layer_norm_backward", shape, 4 * bytes, [&] {
    layer_norm_backward<Storage>(dy, x, gain, mean, rstd, residual, y, Write::replace, dgain,
                                 dbias);
  });
}

void measure_vectors(Report& report, std::int64_t count) {
  const std::string shape = fmt::format("{} elements", count);
  if (!report.wants(shape)) return;
  Operands operands;
  const Vector x = vector<float>(operands, count), y = vector<float>(operands, count),
               m = vector<float>(operands, count);
  const std::span<float> zeros = operands.zeros(count);
  const Vector v(zeros.data(), zeros.size());
  const VectorOf<bfloat16> rounded = vector<bfloat16>(operands, count);
  auto* const sum = reinterpret_cast<double*>(operands.zeros(2).data());
  const Update update{.lr = 1e-3f, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8f, .weight_decay = 0.1f};
  UpdatedElements updated{
      .count = count, .grad = x.data(), .weight = y.data(), .state = {m.data(), v.data()}};
  const UpdateKernel adamw = update_kernels("adamw").here;
  const auto elements = double(count);
  report.passes("add", shape, 12.0 * elements, [&] { add(x, y); });
  report.passes("fill", shape, 4.0 * elements, [&] { fill(1.0f, y); });
  report.passes("sum_squares", shape, 4.0 * elements, [&] { sum_squares(x, Write::replace, sum); });
  report.passes("adamw", shape, 28.0 * elements, [&] { adamw(update, nullptr, updated); });
  for (const Moments moments : {Moments::bf16, Moments::fp8}) {
    const UpdateKernel narrow = update_kernels("adamw", moments).here;
    UpdatedElements of = updated;
    of.count = count / quantized_block * quantized_block;
    of.formats = {Quantization::float8, Quantization::ufloat8};
    report.passes(moments == Moments::bf16 ? "adamw, moments in bf16" : "... in fp8", shape,
                  (moments == Moments::bf16 ? 20.0 : 16.25) * elements,
                  [&] { narrow(update, nullptr, of); });
  }
  updated.rounded = rounded.data();
  report.passes("adamw (bf16)", shape, 30.0 * elements, [&] { adamw(update, nullptr, updated); });
}

template <class Storage>
void measure_vocabulary(Report& report, int tokens, int vocab, int width) {
  const std::string shape =
      fmt::format("N {} V {} C {} {}", tokens, vocab, width, type_name<Storage>);
  if (!report.wants(shape)) return;
  Operands operands;
  const auto logits = matrix<Storage>(operands, tokens, vocab);
  const std::span<std::int32_t> ids = operands.tokens(tokens, vocab);
  const ConstTokens targets(ids.data(), ids.size());
  auto* const loss = reinterpret_cast<double*>(operands.zeros(2).data());
  const double bytes = double(sizeof(Storage)) * tokens * vocab;
  report.passes("cross_entropy (loss)", shape, bytes, [&] {
    cross_entropy<Storage>(logits, targets, 1.0f, false, Write::replace, loss);
  });
  report.passes("cross_entropy (+ gradient)", shape, 2 * bytes,
                [&] { cross_entropy<Storage>(logits, targets, 1.0f, true, Write::replace, loss); });

  const auto table = matrix<Storage>(operands, vocab, width),
             positions = matrix<Storage>(operands, tokens, width),
             x = matrix<Storage>(operands, tokens, width);
  const Matrix d_table = matrix<float>(operands, vocab, width),
               d_positions = matrix<float>(operands, tokens, width);
  const double row_bytes = double(tokens) * width;
  report.passes("embedding_forward", shape, 3.0 * sizeof(Storage) * row_bytes,
                [&] { embedding_forward<Storage>(targets, table, positions, x); });
  report.passes("embedding_backward", shape, (16.0 + sizeof(Storage)) * row_bytes,
                [&] { embedding_backward<Storage>(targets, x, d_table, d_positions); });
}

template <class Storage>
void measure_attention(Report& report, int batch, int seq_len, int heads, int head_dim) {
  const AttentionShape shape{batch, seq_len, heads, head_dim};
  const std::string text =
      fmt::format("B {} T {} H {} D {} {}", batch, seq_len, heads, head_dim, type_name<Storage>);
  if (!report.wants(text)) return;
  const int tokens = batch * seq_len, width = heads * head_dim;
  Operands operands;
  const auto qkv = matrix<Storage>(operands, tokens, 3 * width),
             dqkv = matrix<Storage>(operands, tokens, 3 * width),
             o = matrix<Storage>(operands, tokens, width),
             d_o = matrix<Storage>(operands, tokens, width);
  const Vector lse = vector<float>(operands, std::int64_t{tokens} * heads);
  // Only scores on or below the diagonal count: 2 products forward, 5 backward.
  const double product = 2.0 * batch * heads * head_dim * (0.5 * seq_len * (seq_len + 1.0));
  report.products<Storage>("attention_forward", text, 2 * product,
                           [&] { attention_forward<Storage>(shape, qkv, o, lse); });
  report.products<Storage>("attention_backward", text, 5 * product,
                           [&] { attention_backward<Storage>(shape, qkv, o, lse, d_o, dqkv); });
}

/// Small shapes as in the quick start, those of GPT 125M and, on devices, of GPT 1.3B.
void measure_all(Report& report) {
  measure_linear<float>(report, 512, 192, 768);
  measure_linear<float>(report, 512, 768, 192);
  measure_linear<float>(report, 1024, 768, 3072);
  measure_linear<bfloat16>(report, 1024, 768, 3072);
  measure_rows<float>(report, 512, 192);
  measure_rows<float>(report, 512, 768);
  measure_rows<float>(report, 8192, 3072);
  measure_vectors(report, 1 << 16);
  measure_vectors(report, 1 << 24);
  measure_vocabulary<float>(report, 512, 256, 192);
  measure_vocabulary<float>(report, 256, 50304, 768);
  for (const int seq_len : {64, 256, 1024})
    for (const int head_dim : {32, 64}) measure_attention<float>(report, 2, seq_len, 6, head_dim);
  measure_attention<float>(report, 1, 8192, 2, 64);
  measure_attention<bfloat16>(report, 1, 8192, 2, 64);
  if (!device::on_device()) return;
  for (const auto& [inner, outer] :
       {std::pair{2048, 6144}, {2048, 2048}, {2048, 8192}, {8192, 2048}})
    measure_linear<bfloat16>(report, 16384, inner, outer);
  measure_rows<bfloat16>(report, 16384, 2048);
  measure_rows<bfloat16>(report, 16384, 8192);
  measure_vocabulary<bfloat16>(report, 1024, 50304, 2048);
  measure_attention<bfloat16>(report, 8, 2048, 16, 128);
}

}  // namespace
}  // namespace brume::kernels

int main(int argc, char** argv) {
  using namespace brume;
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  device::use_device(0, 1);
  const kernels::Runtime runtime(threads);
  comm::run_local(1, [&](comm::Communicator& world) {
    device::use_device(0, 1);
    profiler::Bench bench(world, 1, threads);
    bench.compute_here();
    kernels::Report report(bench, argc > 2 ? argv[2] : "");
    kernels::measure_all(report);
    report.print();
  });
}
