/// @file What selective recomputation saves and takes: of a layer of three families, bytes a token
/// and time; of a model of BERT-Large's widths, the largest batch that fits a device.
///
///   perf_selective [profile...]      a100-40, h200 and l4 where none is named
///
/// Nothing is measured: times are those that plans are priced with, bytes those that are placed.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "hardware/profile.hpp"
#include "price/price.hpp"
#include "schedule/compile.hpp"

namespace {

using namespace brume;
using model::Recompute;

struct Named {
  const char* name;
  model::Config config;
};

/// In bf16, with 2048 tokens a sequence.
std::vector<Named> families() {
  model::Config gpt{.num_layers = 40,
                    .hidden_size = 5120,
                    .num_heads = 40,
                    .ffn_size = 20480,
                    .seq_len = 2048,
                    .vocab_size = 50304,
                    .precision = model::Precision::bf16};
  model::Config llama = gpt;
  llama.family = &model::family("llama");
  llama.num_layers = 32;
  llama.hidden_size = 4096;
  llama.num_heads = 32;
  llama.num_kv_heads = 8;
  llama.ffn_size = 14336;
  llama.qkv_bias = llama.linear_bias = false;
  model::Config falcon = llama;
  falcon.family = &model::family("falcon");
  falcon.hidden_size = 4544;
  falcon.num_heads = 71;
  falcon.num_kv_heads = 1;
  falcon.ffn_size = 18176;
  falcon.layer_norms = 1;
  return {{"gpt 13B", gpt}, {"llama 8B", llama}, {"falcon 7B", falcon}};
}

double kept_bytes(const model::Config& config, Recompute recompute) {
  double bytes = 0.0;
  for (const model::Kept& tensor : model::kept_tensors(config, recompute))
    bytes += tensor.bytes.evaluate(model::Split{}.values());
  return bytes / config.seq_len;
}

double layer_s(const model::Config& config, const hardware::Profile& profile, price::Pass pass) {
  double seconds = 0.0;
  for (const model::SegmentKind kind : model::segment_kinds(config, model::BlockKind::layer))
    seconds += price::segment_s(config, profile, kind, pass, {});
  return seconds;
}

/// Of a layer of one sequence, on one device.
void print_layers(const std::vector<std::string>& profiles) {
  using price::Pass;
  Table table({"layer", "stored B/token", "selective", "full", "profile", "stored", "selective",
               "full", "B/token saved", "ns/token paid"});
  for (const auto& [name, config] : families())
    for (const std::string& of : profiles) {
      const hardware::Profile profile = hardware::load_profile(of);
      const double stored = kept_bytes(config, Recompute::none),
                   selective = kept_bytes(config, Recompute::selective),
                   full = kept_bytes(config, Recompute::full);
      const double forward_s = layer_s(config, profile, Pass::forward),
                   least_s = forward_s + layer_s(config, profile, Pass::stored_backward),
                   some_s = forward_s + layer_s(config, profile, Pass::backward),
                   all_s = some_s + layer_s(config, profile, Pass::recompute);
      const double paid_s = (some_s - least_s) / config.seq_len;
      table.add({name, fmt::format("{:.0f}", stored), fmt::format("{:.0f}", selective),
                 fmt::format("{:.0f}", full), of, format_seconds(least_s),
                 fmt::format("{:+.1f} %", 100.0 * (some_s / least_s - 1.0)),
                 fmt::format("{:+.1f} %", 100.0 * (all_s / least_s - 1.0)),
                 fmt::format("{:.0f}", stored - selective), fmt::format("{:.1f}", 1e9 * paid_s)});
    }
  fmt::print("of a layer: bytes kept a token, and how long a sequence's passes take\n{}\n",
             table.text(140));
}

// --- the largest batch --------------------------------------------------------------------------

/// As wide and long as BERT-Large.
model::Config bert_like(model::Precision precision) {
  return {.num_layers = 24,
          .hidden_size = 1024,
          .num_heads = 16,
          .ffn_size = 4096,
          .seq_len = 512,
          .vocab_size = 30522,
          .precision = precision};
}

bool fits(const model::Config& config, Recompute recompute, int batch, double bytes) {
  plan::Stage stage{.microbatch = batch};
  if (recompute == Recompute::none) stage.stored_layers = config.num_layers;
  if (recompute == Recompute::full) stage.ckpt_layers = config.num_layers;
  const plan::Plan plan = plan::equal_stages(config, batch, 1, stage);
  return double(schedule::compile(plan, config, 0).arena_bytes[0]) <= bytes;
}

int largest_batch(const model::Config& config, Recompute recompute, double bytes) {
  int most = 0, too_many = 1;
  for (; fits(config, recompute, too_many, bytes); too_many *= 2) most = too_many;
  while (too_many - most > 1) {
    const int middle = (most + too_many) / 2;
    (fits(config, recompute, middle, bytes) ? most : too_many) = middle;
  }
  return most;
}

void print_batches() {
  Table table({"device", "precision", "stored", "selective", "full", "selective / stored"});
  for (const double gib : {11.0, 16.0})
    for (const model::Precision precision : {model::Precision::fp32, model::Precision::bf16}) {
      const model::Config config = bert_like(precision);
      std::vector<int> most;
      for (const Recompute recompute : model::all_recomputes)
        most.push_back(largest_batch(config, recompute, gib * bytes_per_gib));
      table.add({fmt::format("{:g} GiB", gib), model::name(precision), fmt::format("{}", most[0]),
                 fmt::format("{}", most[1]), fmt::format("{}", most[2]),
                 fmt::format("{:.2f}", double(most[1]) / most[0])});
    }
  fmt::print("24 layers of 1024, sequences of 512: the largest batch that fits a device\n{}",
             table.text());
}

}  // namespace

int main(int argc, char** argv) {
  brume::log::start(0, 1, false);
  std::vector<std::string> profiles(argv + 1, argv + argc);
  if (profiles.empty()) profiles = {"a100-40", "h200", "l4"};
  print_layers(profiles);
  print_batches();
}
