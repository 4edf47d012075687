/// @file The model that arguments of Megatron-LM describe, as deck keys.
#include <algorithm>
#include <sstream>

#include "megatron_import_deck.hpp"
#include "model/model.hpp"

namespace brume::interop {
namespace {

/// The numbers of a sum of Python's lists: [0]*3+[1,1]*5. Nothing where it is another text, or
/// longer than `most`.
std::optional<std::string> numbers_of(const std::string& lists, int most) {
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

}  // namespace

void DeckText::add_family() {
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

void DeckText::add_model() {
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
  line<double>("model.norm_eps", given_.has("norm-epsilon") ? "norm-epsilon" : "layernorm-epsilon",
               0.0);
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

void DeckText::add_latent() {
  if (!given_.has("qk-layernorm"))
    given_.refuse("--multi-latent-attention: Brume norms latent features (--qk-layernorm)");
  for (const char* name : {"kv-channels", "num-query-groups", "no-rope-fusion"}) given_.text(name);
  const double eps = given_.number<double>("norm-epsilon", 0.0)
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

void DeckText::add_router(int experts_per_token) {
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

void DeckText::add_experts() {
  line("model.num_experts", given_.needed<int>("num-experts"));
  const int experts_per_token = given_.number<int>("moe-router-topk").value_or(2);
  line("model.experts_per_token", experts_per_token);
  line<std::int64_t>("model.expert_ffn_size", "moe-ffn-hidden-size", 1);
  add_router(experts_per_token);
  line<int>("model.shared_expert_ffn_size", "moe-shared-expert-intermediate-size", 1);
  if (given_.has("moe-shared-expert-gate")) line("model.shared_expert_gate", true);
  line<double>("model.z_loss", "moe-z-loss-coeff", 0.0);
  const double balance = given_.number<double>("moe-aux-loss-coeff", 0.0).value_or(0.0);
  const std::string balancing = given_.text("moe-router-load-balancing-type").value_or("aux_loss");
  if (balancing == "seq_aux_loss")
    line("model.balance_loss", balance);
  else if (balancing != "none" && (balancing != "aux_loss" || balance > 0.0))
    given_.refuse(
        "--moe-router-load-balancing-type {:.80}: Brume balances experts by seq_aux_loss or none",
        balancing);
  add_dense_layers();
  if (given_.text("moe-router-dtype") != "fp32")
    notes_.push_back("--moe-router-dtype: a router computes in fp32 in Brume");
  for (const char* way :
       {"moe-grouped-gemm", "moe-permute-fusion", "moe-shared-expert-overlap", "moe-router-fusion"})
    given_.has(way);
}

void DeckText::add_dense_layers() {
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

}  // namespace brume::interop
