/// @file Speed of generation, against the memory's speed and against Transformers.
///
///   perf_generation [gpt2|llama1b [fp32|bf16|int8|nf4 [tokens]]]
///
/// Computes prompts of 64 tokens, then answers, for batches of 1, 4 and 16 sequences. A next token
/// reads all weights once, so a plain read of as many bytes is its baseline. int8 and nf4 are
/// matrices of layers in blocks, in a model of bf16. Where BRUME_PYTHON names a Python that has
/// Transformers, its generate() on the same sizes follows, with bf16 instead of blocks.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/parallel.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "comm/communicator.hpp"
#include "engine/generator.hpp"
#include "generation/scheduler.hpp"
#include "kernels/types.hpp"

namespace {

using namespace brume;
using Clock = std::chrono::steady_clock;

constexpr int prompt_tokens = 64;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

model::Config model_of(const std::string& name, const std::string& precision, int tokens) {
  model::Config model{.num_layers = 12,
                      .hidden_size = 768,
                      .num_heads = 12,
                      .ffn_size = 3072,
                      .seq_len = prompt_tokens + tokens,
                      .vocab_size = 50257};
  if (name == "llama1b")
    model = {.family = &model::family("llama"),
             .num_layers = 16,
             .hidden_size = 2048,
             .num_heads = 32,
             .num_kv_heads = 8,
             .ffn_size = 8192,
             .seq_len = prompt_tokens + tokens,
             .vocab_size = 128256,
             .qkv_bias = false,
             .linear_bias = false};
  if (precision != "fp32") model.precision = model::Precision::bf16;
  for (const Quantization format : {Quantization::int8, Quantization::nf4})
    if (precision == brume::name(format)) model.quantization = format;
  return model;
}

/// Bytes of all blocks of a model on one rank.
double weights_bytes(const model::Config& model) {
  double elements = 0.0;
  for (const model::Block& block : model::blocks(model))
    elements += double(model::layout(block, 1, 0, 1).elements);
  return elements * model::weight_bytes(model.precision);
}

/// Seconds in which all cores read so many bytes, the median of five times.
double read_s(double bytes) {
  std::vector<double> numbers(std::size_t(bytes / sizeof(double)), 1.0);
  const int threads = num_cores();
  std::vector<double> times;
  volatile double sum = 0.0;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    parallel_for(std::size_t(threads), threads, [&](std::size_t part, std::size_t) {
      const std::size_t first = numbers.size() * part / std::size_t(threads),
                        end = numbers.size() * (part + 1) / std::size_t(threads);
      double sums[32] = {};
      for (std::size_t n = first; n + 32 <= end; n += 32)
#pragma omp simd
        for (int j = 0; j < 32; ++j) sums[j] += numbers[n + std::size_t(j)];
      sum = sum + sums[0];
    });
    times.push_back(seconds_since(start));
  }
  return median(times);
}

struct Measured {
  double prompt_s, token_s;  ///< the prompts of all sequences; the median of their next tokens
};

Measured measure(engine::Generator& generator, const model::Config& sizes, int batch, int tokens) {
  generation::Scheduler scheduler(sizes.generation, sizes.blocks_per_sequence());
  for (int s = 0; s < batch; ++s)
    scheduler.add(s, std::vector<std::int32_t>(prompt_tokens, 17 + s));
  Measured measured{};
  std::vector<double> times;
  for (int made = 0; made < tokens;) {
    const auto start = Clock::now();
    const generation::Scheduler::Pass pass = scheduler.next();
    const std::span<const float> logits = generator.run(pass.tokens);
    const auto vocab = std::size_t(sizes.vocab_size);
    for (std::size_t i = 0; i < pass.wanted.size(); ++i) {
      const std::int64_t id = pass.wanted[i];
      scheduler.append(id, generation::choose(logits.subspan(i * vocab, vocab), {},
                                              scheduler.history(id), std::uint64_t(id))
                               .token);
    }
    const bool decodes = std::ssize(pass.tokens.tokens) == batch;
    (decodes ? times.emplace_back() : measured.prompt_s) += seconds_since(start);
    made += decodes;
  }
  measured.token_s = median(times);
  return measured;
}

void run(const std::string& name, const std::string& precision, int tokens) {
  const int threads = num_cores();
  const kernels::Runtime runtime(threads);
  const model::Config model = model_of(name, precision, tokens + 1);
  constexpr int most = 16;
  model::Config sizes = model::generating(model, {.tokens = 1024, .sequences = most});
  sizes.generation.blocks = most * sizes.blocks_per_sequence();
  const plan::Plan plan = engine::generating(plan::equal_stages(model, 1, 1, {}));
  const double bytes = weights_bytes(sizes);
  const double roof_s = read_s(bytes);
  fmt::print("{} in {}: {} of weights, which {} cores read in {} ({:.1f} GB/s)\n", name, precision,
             format_bytes(bytes), threads, format_seconds(roof_s), bytes / roof_s * 1e-9);
  comm::run_local(1, [&](comm::Communicator& world) {
    engine::Settings settings;
    settings.threads = threads;
    engine::Generator generator(plan, sizes, settings, world);
    for (const engine::Slab& slab : generator.slabs())  // numbers of the usual size
      engine::set_values(slab, 0, std::vector<float>(std::size_t(slab.elements), 0.02f));
    Table table({"batch", "prompts", "tokens/s", "next token", "tokens/s", "of the read"});
    for (const int batch : {1, 4, 16}) {
      measure(generator, sizes, batch, 2);  // brings memory
      const Measured m = measure(generator, sizes, batch, tokens);
      table.add({fmt::format("{}", batch), format_seconds(m.prompt_s),
                 fmt::format("{:.1f}", batch * prompt_tokens / m.prompt_s),
                 format_seconds(m.token_s), fmt::format("{:.1f}", batch / m.token_s),
                 format_percent(roof_s / m.token_s)});
    }
    fmt::print("{}", table.text());
  });
  const char* const python = std::getenv("BRUME_PYTHON");
  if (python == nullptr) return;
  std::fflush(stdout);
  const std::string command = fmt::format("{} {} {} {} {} {}", python, BRUME_GENERATION_PY, name,
                                          precision == "fp32" ? "fp32" : "bf16", tokens, threads);
  if (std::system(command.c_str()) != 0) fmt::print("Transformers did not run\n");
}

}  // namespace

int main(int argc, char** argv) {
  run(argc > 1 ? argv[1] : "gpt2", argc > 2 ? argv[2] : "bf16", argc > 3 ? std::atoi(argv[3]) : 32);
}
