/// @file The arguments of a training by Megatron-LM, read.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <type_traits>

#include "base/error.hpp"
#include "given_arguments.hpp"
#include "hardware/cluster.hpp"
#include "interop/megatron.hpp"
#include "megatron_rules.hpp"
#include "pipeline_layout.hpp"
#include "plan/shapes.hpp"

namespace brume::interop {
namespace {

/// Arguments that change the model or the plan into something that nothing here is like, with the
/// value that changes nothing; none: each does.
constexpr std::pair<const char*, const char*> unlike[] = {
    {"moe-expert-capacity-factor", ""},
    {"moe-latent-size", ""},
    {"moe-router-force-load-balancing", ""},
    {"moe-input-jitter-eps", "0"},
    {"moe-apply-probs-on-input", ""},
    {"hierarchical-context-parallel-sizes", ""},
    {"mtp-num-layers", "0"},
    {"hybrid-layer-pattern", ""},
    {"heterogeneous-layers-config-path", ""},
    {"window-size", ""},
    {"no-rope-freq", ""},
    {"no-position-embedding", ""},
    {"rotary-percent", "1.0"},
    {"rotary-seq-len-interpolation-factor", "1"},
    {"squared-relu", ""},
    {"quick-geglu", ""},
    {"fp32-residual-connection", ""},
    {"cpu-offloading-num-layers", "0"},
    {"fine-grained-activation-offloading", ""},
    {"freeze-all-layers", ""},
};

void refuse_unlike(GivenArguments& given) {
  for (const auto& [name, off] : unlike) {
    if (!given.has(name)) continue;
    const std::string value = given.text(name).value_or("");
    const bool same = *off != '\0' && parsed<double>(value) == parsed<double>(off);
    if (!same)
      given.refuse("--{}{}: Brume has no such feature", name, value.empty() ? "" : " " + value);
  }
}

/// The deck that arguments describe, as text.
class DeckText {
 public:
  DeckText(GivenArguments& given, std::vector<std::string>& notes) : given_(given), notes_(notes) {
    add_model();
    add_training();
    add_cluster();
    text_ += "data.train = \"data/train.tok\"\n";
  }
  const std::string& text() const { return text_; }

 private:
  /// A line "key = value", with quotes round a text.
  template <class T>
  void line(const char* key, const T& value) {
    if constexpr (std::is_convertible_v<T, std::string>)
      text_ += fmt::format("{} = \"{}\"\n", key, value);
    else
      text_ += fmt::format("{} = {}\n", key, value);
  }

  /// The line where the argument is there. @param usual  where it is not; none: the deck's
  template <class T>
  void line(const char* key, const char* name, T least, std::optional<T> usual = std::nullopt) {
    const std::optional<T> value = given_.number<T>(name, least);
    if (value || usual) line(key, value ? *value : *usual);
  }

  void add_family() {
    const std::string positions =
        given_.has("use-rotary-position-embeddings")
            ? "rope"
            : given_.text("position-embedding-type").value_or("learned_absolute");
    const std::string norm = given_.text("normalization").value_or("LayerNorm");
    const bool gated = given_.has("swiglu"), bias = !given_.has("disable-bias-linear");
    const bool llama = positions == "rope" && norm == "RMSNorm" && gated && !bias;
    const bool gpt = positions == "learned_absolute" && norm == "LayerNorm" && !gated && bias;
    if (!llama && !gpt)
      given_.refuse(
          "no family here has --position-embedding-type {}, --normalization {}, {} --swiglu and {} "
          "--disable-bias-linear: llama has rope, RMSNorm and both, gpt learned_absolute, "
          "LayerNorm "
          "and neither",
          positions, norm, gated ? "with" : "without", bias ? "without" : "with");
    line("model.family", std::string(llama ? "llama" : "gpt"));
  }

  void add_model() {
    add_family();
    const int hidden = given_.needed<int>("hidden-size");
    const bool gated = given_.has("swiglu");
    line("model.num_layers", given_.needed<int>("num-layers"));
    line("model.hidden_size", hidden);
    line("model.num_heads", given_.needed<int>("num-attention-heads"));
    line<std::int64_t>("model.ffn_size", "ffn-hidden-size", 1,
                       gated ? std::int64_t{8} * hidden / 3 / 64 * 64 : std::int64_t{4} * hidden);
    if (given_.has("multi-latent-attention"))
      add_latent();
    else
      line<int>("model.head_dim", "kv-channels", 1);
    if (given_.has("group-query-attention"))
      line<int>("model.num_kv_heads", "num-query-groups", 1, 1);
    line("model.seq_len", given_.needed<int>("seq-length"));
    given_.has("max-position-embeddings");
    line<int>("model.vocab_size", given_.has("vocab-size") ? "vocab-size" : "padded-vocab-size", 1);
    given_.has("make-vocab-size-divisible-by");
    line("model.tied_head", !given_.has("untie-embeddings-and-output-weights"));
    const bool bias = !given_.has("disable-bias-linear");
    line("model.linear_bias", bias);
    line("model.qkv_bias", given_.has("add-qkv-bias") || bias);
    if (given_.has("qk-layernorm") && !given_.has("multi-latent-attention"))
      line("model.qk_norm", true);
    line<double>("model.norm_eps",
                 given_.has("norm-epsilon") ? "norm-epsilon" : "layernorm-epsilon", 0.0);
    line<double>("model.rope_theta", "rotary-base", 1.0);
    if (given_.has("use-rope-scaling") && !given_.has("multi-latent-attention")) {
      line("model.rope_scaling.kind", std::string("llama3"));
      line<double>("model.rope_scaling.factor", "rope-scaling-factor", 1.0, 8.0);
    }
    line<double>("model.init_std", "init-method-std", 0.0);
    if (given_.has("num-experts")) add_experts();
    for (const char* dropout : {"attention-dropout", "hidden-dropout"})
      if (const double share = given_.number<double>(dropout, 0.0).value_or(0.1); share > 0.0)
        notes_.push_back(
            fmt::format("--{} {} is left out: dropout is always 0 here", dropout, share));
  }

  /// Its norms of latent features are --qk-layernorm.
  void add_latent() {
    if (!given_.has("qk-layernorm"))
      given_.refuse("--multi-latent-attention: Brume norms latent features (--qk-layernorm)");
    for (const char* name : {"kv-channels", "num-query-groups", "no-rope-fusion"})
      given_.text(name);
    const double eps =
        given_.number<double>("norm-epsilon", 0.0)
            .value_or(given_.number<double>("layernorm-epsilon", 0.0).value_or(1e-5));
    if (eps != model::latent_norm_eps)
      notes_.push_back(fmt::format("norms of latent features have an epsilon of {} here, there {}",
                                   model::latent_norm_eps, eps));
    line<int>("model.kv_lora_rank", "kv-lora-rank", 1, 32);
    line<int>("model.q_lora_rank", "q-lora-rank", 1);
    line<int>("model.v_head_dim", "v-head-dim", 1, 128);
    const std::int64_t turned = given_.number<int>("qk-pos-emb-head-dim").value_or(64);
    line("model.rotary_dim", turned);
    line("model.head_dim", given_.number<int>("qk-head-dim").value_or(128) + turned);
    const std::string kind = given_.text("rope-type").value_or("yarn");
    if (kind != "yarn" && kind != "rope")
      given_.refuse("--rope-type {:.80}: Megatron-LM has yarn and rope", kind);
    const double factor = given_.number<double>("rotary-scaling-factor", 1.0).value_or(1.0);
    const double mscale = given_.number<double>("mscale", 0.0).value_or(1.0),
                 all_dim = given_.number<double>("mscale-all-dim", 0.0).value_or(0.0);
    if (factor == 1.0) return;
    if (kind == "rope") {
      if (all_dim != 0.0)
        given_.refuse("--rope-type rope with --mscale-all-dim {}: only yarn scales scores in Brume",
                      all_dim);
      return;
    }
    if (mscale == 0.0 || (all_dim == 0.0 && mscale != 1.0))
      given_.refuse("--mscale {} with --mscale-all-dim {}: Brume has both above 0, or 1 and 0",
                    mscale, all_dim);
    line("model.rope_scaling.kind", kind);
    line("model.rope_scaling.factor", factor);
    line("model.rope_scaling.original_seq_len", 4096);
    if (all_dim == 0.0) return;
    line("model.rope_scaling.mscale", mscale);
    line("model.rope_scaling.mscale_all_dim", all_dim);
  }

  void add_router(int experts_per_token) {
    const std::string score = given_.text("moe-router-score-function").value_or("softmax");
    if (score != "softmax" && score != "sigmoid")
      given_.refuse("--moe-router-score-function {:.80}: Brume has softmax and sigmoid", score);
    const bool sigmoid = score == "sigmoid", first = given_.has("moe-router-pre-softmax");
    line("model.router", score);
    line("model.normalize_topk", sigmoid ? experts_per_token > 1 : !first);
    line<double>("model.routed_scale", "moe-router-topk-scaling-factor", 1e-6);
    const bool corrects = given_.has("moe-router-enable-expert-bias");
    const double rate = given_.number<double>("moe-router-bias-update-rate", 0.0).value_or(1e-3);
    const int groups = given_.number<int>("moe-router-group-topk", 0).value_or(0);
    if ((corrects || groups > 0) && given_.text("moe-router-load-balancing-type") == "seq_aux_loss")
      notes_.push_back(
          "seq_aux_loss: Megatron-LM counts the experts of largest score for it, Brume the chosen "
          "ones, which biases and groups change");
    if (corrects && rate > 0.0) {
      line("model.balance", std::string("bias"));
      line("model.balance_rate", rate);
    }
    const std::optional<int> of = given_.number<int>("moe-router-num-groups");
    if (groups == 0 || groups == of) return;
    if (!of) given_.refuse("--moe-router-group-topk needs --moe-router-num-groups");
    line("model.expert_groups", *of);
    line("model.groups_per_token", groups);
  }

  void add_experts() {
    line("model.num_experts", given_.needed<int>("num-experts"));
    const int experts_per_token = given_.number<int>("moe-router-topk").value_or(2);
    line("model.experts_per_token", experts_per_token);
    line<std::int64_t>("model.expert_ffn_size", "moe-ffn-hidden-size", 1);
    add_router(experts_per_token);
    line<int>("model.shared_expert_ffn_size", "moe-shared-expert-intermediate-size", 1);
    if (given_.has("moe-shared-expert-gate")) line("model.shared_expert_gate", true);
    line<double>("model.z_loss", "moe-z-loss-coeff", 0.0);
    const double balance = given_.number<double>("moe-aux-loss-coeff", 0.0).value_or(0.0);
    const std::string balancing =
        given_.text("moe-router-load-balancing-type").value_or("aux_loss");
    if (balancing == "seq_aux_loss")
      line("model.balance_loss", balance);
    else if (balancing != "none" && (balancing != "aux_loss" || balance > 0.0))
      given_.refuse(
          "--moe-router-load-balancing-type {:.80}: Brume balances experts by seq_aux_loss or none",
          balancing);
    add_dense_layers();
    if (given_.text("moe-router-dtype") != "fp32")
      notes_.push_back("--moe-router-dtype: a router computes in fp32 in Brume");
    for (const char* way : {"moe-grouped-gemm", "moe-permute-fusion", "moe-shared-expert-overlap",
                            "moe-router-fusion"})
      given_.has(way);
  }

  /// The numbers of a sum of Python's lists: [0]*3+[1,1]*5. Nothing where it is another text, or
  /// longer than `most`.
  static std::optional<std::string> numbers_of(const std::string& lists, int most) {
    std::string numbers;
    std::istringstream terms(lists);
    for (std::string term; std::getline(terms, term, '+');) {
      const std::size_t end = term.find(']');
      if (!term.starts_with('[') || end == std::string::npos) return std::nullopt;
      std::string once = term.substr(1, end - 1);
      std::erase_if(once, [](char one) { return one == ',' || one == ' '; });
      const std::string times = term.substr(end + 1);
      const std::optional<int> count = times.empty()     ? 1
                                       : times[0] == '*' ? parsed<int>(times.substr(1))
                                                         : std::nullopt;
      if (!count || *count < 0 || *count > most || once.size() > std::size_t(most))
        return std::nullopt;
      for (int i = 0; i < *count && numbers.size() <= std::size_t(most); ++i) numbers += once;
    }
    return numbers;
  }

  /// 1, or a list with a number for each layer, 0 for one without experts.
  void add_dense_layers() {
    std::string layers = given_.text("moe-layer-freq").value_or("1");
    std::erase_if(layers, [](char one) { return one == '(' || one == ')' || one == '\''; });
    const int all = given_.needed<int>("num-layers");
    if (layers == "1") return;
    const std::string numbers = numbers_of(layers, all).value_or("");
    const std::size_t dense = std::min(numbers.find('1'), numbers.size());
    if (int(numbers.size()) != all || dense == numbers.size() ||
        numbers.find_first_not_of('0') != dense ||
        numbers.find_first_not_of('1', dense) != std::string::npos)
      given_.refuse("--moe-layer-freq {:.80}: only first layers may be without experts in Brume",
                    layers);
    if (dense > 0) line("model.first_dense_layers", dense);
  }

  void add_training() {
    const std::string optimizer = given_.text("optimizer").value_or("adam");
    if (optimizer != "adam")
      given_.refuse(
          "--optimizer {:.80}: only adam is read. Leave it out, and set training.optimizer.name",
          optimizer);
    const int batch = given_.needed<int>("global-batch-size");
    const auto iterations = [&](double samples) {
      return int(std::ceil(std::min(samples / batch, 1e9)));
    };
    line("training.global_batch", batch);
    const std::optional<double> samples = given_.number<double>("train-samples");
    for (const char* growing : {"rampup-batch-size", "step-batch-size-schedule"})
      if (given_.has(growing))
        notes_.push_back(
            fmt::format("--{}: the batch is --global-batch-size from the start here", growing));
    if (given_.has("grad-reduce-in-bf16"))
      notes_.push_back("--grad-reduce-in-bf16: gradients are summed in fp32 here");
    const int steps =
        samples ? iterations(*samples) : given_.number<int>("train-iters").value_or(1000);
    line("training.steps", steps);
    const bool bf16 = given_.has("bf16"), fp16 = given_.has("fp16"), fp8 = given_.has("fp8-format");
    line("training.precision", std::string(fp8 ? "fp8" : bf16 ? "bf16" : fp16 ? "fp16" : "fp32"));
    given_.has("fp8-recipe");
    line<double>("training.loss_scale", "loss-scale", 0.0);
    line<int>("training.seed", "seed", 0, 1234);
    add_rate(steps, iterations);
    line<double>("training.optimizer.weight_decay", "weight-decay", 0.0, 0.01);
    line<double>("training.optimizer.beta1", "adam-beta1", 0.0);
    line<double>("training.optimizer.beta2", "adam-beta2", 0.0, 0.999);
    line<double>("training.optimizer.eps", "adam-eps", 0.0);
    line<double>("training.optimizer.clip_norm", "clip-grad", 0.0);
  }

  /// The learning rate over the steps.
  void add_rate(int steps, const auto& iterations) {
    const std::optional<double> rate = given_.number<double>("lr", 0.0);
    const std::optional<double> least = given_.number<double>("min-lr", 0.0);
    if (rate) line("training.optimizer.lr", *rate);
    if (rate && *rate > 0.0)
      line("training.optimizer.min_lr_ratio", std::min(1.0, least.value_or(0.0) / *rate));
    std::string style = given_.text("lr-decay-style").value_or("linear");
    if (style == "WSD") style = "wsd";
    const std::string styles[] = {"cosine", "linear", "constant", "wsd"};
    if (std::ranges::find(styles, style) == std::end(styles))
      given_.refuse("--lr-decay-style {:.80}: nothing here is like it", style);
    line("training.optimizer.schedule", style);
    if (style == "wsd") {
      line<int>("training.optimizer.decay_steps", "lr-wsd-decay-iters", 1);
      if (given_.text("lr-wsd-decay-style").value_or("exponential") != "linear")
        notes_.push_back("--lr-wsd-decay-style: the decay of wsd is linear here");
    }
    const std::optional<double> decay_samples = given_.number<double>("lr-decay-samples");
    const int decays = decay_samples ? iterations(*decay_samples)
                                     : given_.number<int>("lr-decay-iters").value_or(steps);
    if (decays != steps)
      notes_.push_back(fmt::format(
          "Megatron-LM ends the learning-rate decay at step {}, Brume at step {}", decays, steps));
    const std::optional<double> share = given_.number<double>("lr-warmup-fraction", 0.0);
    const std::optional<double> samples = given_.number<double>("lr-warmup-samples", 0.0);
    const int warmup = share     ? int(std::min(1.0, *share) * decays)
                       : samples ? iterations(*samples)
                                 : given_.number<int>("lr-warmup-iters", 0).value_or(0);
    line("training.optimizer.warmup_steps", warmup);
  }

  void add_cluster() {
    line<int>("cluster.nodes", "nnodes", 1);
    line<int>("cluster.devices_per_node", "nproc-per-node", 1);
    for (const char* place : {"node-rank", "master-addr", "master-port"}) given_.has(place);
  }

  GivenArguments& given_;
  std::vector<std::string>& notes_;
  std::string text_;
};

constexpr const char* one_chunk =
    "the plan has one chunk of layers a stage, so its pipeline fills more slowly";

/// Chunks of layers of each stage.
/// @param num_layers  of the model, and of embedding and head if they count as layers
int num_chunks(GivenArguments& given, int num_layers, int num_stages) {
  const int chunks = given.number<int>("num-virtual-stages-per-pipeline-rank").value_or(1);
  const std::optional<int> layers = given.number<int>("num-layers-per-virtual-pipeline-stage");
  if (!layers || num_stages == 1) return num_stages == 1 ? 1 : chunks;
  if (num_layers % (std::int64_t{*layers} * num_stages) != 0)
    given.refuse("--num-layers-per-virtual-pipeline-stage {}: {} layers do not go into {} stages",
                 *layers, num_layers, num_stages);
  return num_layers / (*layers * num_stages);
}

/// Layers of each stage, of the first chunk of all stages first.
std::vector<int> stage_layers(GivenArguments& given, int num_layers, int num_stages,
                              std::vector<std::string>& notes) {
  const int embedding = given.has("account-for-embedding-in-pipeline-split") ? 1 : 0,
            loss = given.has("account-for-loss-in-pipeline-split") ? 1 : 0;
  const int counted = num_layers + embedding + loss;
  const int chunks = num_chunks(given, counted, num_stages);
  if (const std::optional<std::string> layout = given.text("pipeline-model-parallel-layout")) {
    try {
      const PipelineLayout read = read_layout(*layout, num_layers, num_stages);
      if (read.joined)
        notes.push_back(
            fmt::format("--pipeline-model-parallel-layout: a part without layers is "
                        "joined to a neighbour, and {}",
                        one_chunk));
      return read.layers;
    } catch (const Error& error) {
      given.refuse("--pipeline-model-parallel-layout: {}", error.what());
    }
  }
  const std::optional<int> first = given.number<int>("decoder-first-pipeline-num-layers"),
                           last = given.number<int>("decoder-last-pipeline-num-layers");
  if (counted > num_layers && (first || last))
    given.refuse("--account-for-...-in-pipeline-split excludes --decoder-...-pipeline-num-layers");
  const std::int64_t rest = std::int64_t{counted} - first.value_or(0) - last.value_or(0);
  const int alike = num_stages - (first ? 1 : 0) - (last ? 1 : 0);
  if (alike < 0 || rest < alike || (alike == 0 ? rest != 0 : rest % alike != 0))
    given.refuse("{} layers do not go into {} stages that are alike{}", num_layers, num_stages,
                 first || last ? " but for the first and last" : "");
  std::vector<int> layers(std::size_t(num_stages), alike > 0 ? int(rest / alike) : 0);
  if (first) layers.front() = *first;
  if (last) layers.back() = *last;
  for (int& of_stage : layers) {
    if (of_stage % chunks != 0)
      given.refuse("{} layers of a stage do not go into {} chunks", of_stage, chunks);
    of_stage /= chunks;
  }
  std::vector<int> all;
  for (int i = 0; i < chunks; ++i) all.insert(all.end(), layers.begin(), layers.end());
  all.front() -= embedding;
  all.back() -= loss;
  return all;
}

int zero_level(GivenArguments& given) {
  const std::string strategy =
      given.text("data-parallel-sharding-strategy").value_or("optim_grads_params");
  given.text("ckpt-format");  // that of checkpoints, which FSDP asks for
  const bool fsdp = given.has("use-megatron-fsdp"), torch = given.has("use-torch-fsdp2"),
             sharded = given.has("use-distributed-optimizer");
  if (torch) return 3;
  if (!fsdp) return sharded ? 1 : 0;
  const std::string strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  const auto found = std::ranges::find(strategies, strategy);
  if (found == std::end(strategies))
    given.refuse("--data-parallel-sharding-strategy '{:.80}' is not known", strategy);
  return int(found - strategies);
}

/// Recomputed layers of a stage.
int ckpt_layers(GivenArguments& given, int layers, std::vector<std::string>& notes) {
  const std::string what = given.text("recompute-granularity").value_or("");
  if (given.has("recompute-activations") || what == "selective")
    notes.push_back("selective recomputation is left out: attention's scores are never kept here");
  if (what != "full") return 0;
  const int count = given.number<int>("recompute-num-layers").value_or(1);
  if (given.text("recompute-method") == "block") return std::min(count, layers);
  if (count > 1)
    notes.push_back(
        "--recompute-num-layers: each layer keeps its input here, not each group of them");
  return layers;
}

/// The exchange of ranks that divide experts: Stage::dispatch_tokens.
int dispatch_tokens(GivenArguments& given, const model::Config& model, const model::Split& split,
                    std::vector<std::string>& notes) {
  const std::string type = given.text("moe-token-dispatcher-type").value_or("allgather");
  if (type != "allgather" && type != "alltoall" && type != "flex")
    given.refuse("--moe-token-dispatcher-type {:.80}: Brume has allgather and alltoall", type);
  if (split.expert_data_ranks() == 1 || type == "allgather") return 0;
  model::Split sends = split;
  sends.dispatch_tokens = 1;
  if (!plan::dispatch_fault(model, sends).empty()) {
    notes.push_back("--moe-token-dispatcher-type " + type +
                    ": ranks gather tokens, as by allgather");
    return 0;
  }
  if (type != "alltoall")
    notes.push_back("--moe-token-dispatcher-type " + type + ": ranks send tokens, as by alltoall");
  return 1;
}

plan::Plan read_plan(GivenArguments& given, const deck::Deck& deck, const model::Config& model,
                     const hardware::Cluster& cluster, std::vector<std::string>& notes) {
  const int tp = given.number<int>("tensor-model-parallel-size").value_or(1);
  const int stages = given.number<int>("pipeline-model-parallel-size").value_or(1);
  const int ep = given.number<int>("expert-model-parallel-size").value_or(1);
  const int expert_tp = given.number<int>("expert-tensor-parallel-size").value_or(tp);
  const bool whole = expert_tp == 1 && ep % tp == 0, are_cut = ep == 1 && expert_tp == tp;
  if (model.num_experts > 0 && !whole && !are_cut)
    given.refuse(
        "--expert-model-parallel-size {} with --expert-tensor-parallel-size {}: in Brume the first "
        "is 1 and the second --tensor-model-parallel-size {}, or the first a multiple of that and "
        "the second 1",
        ep, expert_tp, tp);
  if (model.num_experts == 0 && ep != 1)
    given.refuse("--expert-model-parallel-size {}: the model has no experts", ep);
  const int cp = given.number<int>("context-parallel-size").value_or(1);
  const std::string exchange = given.text("cp-comm-type").value_or("p2p");
  const int gather_keys = cp > 1 && exchange != "a2a" ? 1 : 0;
  const int b = given.needed<int>("micro-batch-size");
  const int devices = cluster.devices(), per_node = deck.cluster.devices_per_node;
  if (std::int64_t{tp} * stages > devices || std::int64_t{tp} * stages * cp > devices ||
      devices % (tp * stages * cp) != 0)
    given.refuse(
        "tensor parallelism {} x pipeline {}{} does not go into {} devices: say how many there "
        "are by --set cluster.nodes=N and cluster.devices_per_node=N",
        tp, stages, cp > 1 ? fmt::format(" x context parallelism {}", cp) : "", devices);
  if (const std::string fault = plan::context_fault(
          model, {.tp = tp, .microbatch = b, .cp = cp, .gather_keys = gather_keys});
      !fault.empty())
    given.refuse("--context-parallel-size {}: {}", cp, fault);
  if (gather_keys == 1 && exchange != "all_gather")
    notes.push_back("--cp-comm-type " + exchange +
                    ": ranks gather keys and values here, as by all_gather");
  const int dp = devices / (tp * stages * cp), batch = deck.training.global_batch;
  if (batch % (std::int64_t{b} * dp) != 0)
    given.refuse(
        "--global-batch-size {} is no multiple of --micro-batch-size {} x {} data-parallel "
        "ranks",
        batch, b, dp);
  const int data_ranks = dp * cp, of_stage = data_ranks * tp;
  const plan::Stage divided{.dp = dp, .cp = cp, .tp = tp, .ep = ep};
  if (data_ranks % divided.expert_data_ranks() != 0)
    given.refuse("--expert-model-parallel-size {} does not divide the {} devices of a stage", ep,
                 of_stage);
  const int state_ranks = divided.state_ranks();
  const int sends = dispatch_tokens(given, model, divided.split(), notes);
  if (of_stage > per_node && of_stage % per_node != 0)
    given.refuse("a stage of {} devices is no whole number of nodes with {}", of_stage, per_node);
  const int asked_zero = data_ranks > 1 ? zero_level(given) : 0;
  const int zero = state_ranks > 1 ? asked_zero : 0;
  const int replicas = given.number<int>("num-distributed-optimizer-instances").value_or(1);
  if (data_ranks % replicas != 0)
    given.refuse("--num-distributed-optimizer-instances {} does not divide {} data-parallel ranks",
                 replicas, data_ranks);
  const double offloaded =
      given.has("optimizer-cpu-offload")
          ? given.number<double>("optimizer-offload-fraction", 0.0).value_or(1.0)
          : 0.0;
  plan::Plan plan{
      .global_batch = batch, .microbatches = int(batch / (std::int64_t{b} * dp)), .stages = {}};
  int first_layer = 0;
  const std::vector<int> all_layers = stage_layers(given, model.num_layers, stages, notes);
  plan.order.chunks = int(all_layers.size()) / stages;
  if (plan.order.chunks > 1) plan.order.run_ahead = 2;  // as its pipelines fill
  for (const int layers : all_layers) {
    const int recomputed = ckpt_layers(given, layers, notes);
    plan.stages.push_back({.first_layer = first_layer,
                           .layers = layers,
                           .nodes = std::max(1, of_stage / per_node),
                           .devices_per_node = std::min(per_node, of_stage),
                           .microbatch = b,
                           .dp = dp,
                           .cp = cp,
                           .gather_keys = gather_keys,
                           .tp = tp,
                           .ep = ep,
                           .dispatch_tokens = sends,
                           // One rank an instance shards nothing.
                           .zero_level = state_ranks > replicas ? zero : 0,
                           .replicas = zero > 0 && state_ranks > replicas ? replicas : 1,
                           .ckpt_layers = recomputed,
                           .stored_layers = layers - recomputed,  // it keeps what it does not drop
                           .optim_offload_ratio = offloaded});
    first_layer += layers;
  }
  if (!given.has("sequence-parallel") && tp > 1)
    notes.push_back("tensor parallelism is always with --sequence-parallel here");
  if (!given.has("overlap-grad-reduce") && data_ranks > 1)
    notes.push_back(
        "gradients are always reduced beside the backward here (--overlap-grad-reduce)");
  given.has("overlap-param-gather");
  given.has("use-precision-aware-optimizer");
  return plan;
}

}  // namespace

MegatronJob read_megatron(const std::string& path, const std::vector<std::string>& sets) {
  GivenArguments given(path);
  refuse_unlike(given);
  MegatronJob job;
  const DeckText text(given, job.notes);
  const auto sets_key = [&](const char* key) {
    return std::ranges::any_of(sets, [&](const std::string& set) { return set.starts_with(key); });
  };
  if (!given.has("vocab-size") && !given.has("padded-vocab-size") && !sets_key("model.vocab_size"))
    given.refuse("--vocab-size is missing: say it by --set model.vocab_size=N");
  if (!sets_key("cluster.machine") && !sets_key("cluster.memory_gib"))
    given.refuse("say which machine it runs on, for example by --set cluster.machine=dgx-h100");
  job.deck = deck::parse(text.text(), "the deck made of " + path, sets);
  const model::Config model = model::config(job.deck.model, job.deck.training.precision);
  if (!chooses_groups_alike(model))
    given.refuse(
        "--moe-router-group-topk {} with --moe-router-topk {}: Megatron-LM adds up {} "
        "scores of a group, Brume {}",
        model.groups_per_token, model.experts_per_token,
        model.experts_per_token / model.groups_per_token, added_scores(model));
  const hardware::Cluster cluster = hardware::cluster(job.deck.cluster);
  job.plan = read_plan(given, job.deck, model, cluster, job.notes);
  plan::check(job.plan, model, cluster);
  std::ranges::sort(job.notes);
  const auto same = std::ranges::unique(job.notes);
  job.notes.erase(same.begin(), same.end());
  if (const std::vector<std::string> others = given.others(); !others.empty())
    job.notes.push_back(
        fmt::format("unknown here, so not read: {}. Check that none changes the model or the plan",
                    fmt::join(others, " ")));
  if (const std::vector<std::string> perhaps = given.in_branches(); !perhaps.empty())
    job.notes.push_back(
        fmt::format("read as given, though branches (if, case, a loop or a test) decide: {}",
                    fmt::join(perhaps, " ")));
  return job;
}

}  // namespace brume::interop
