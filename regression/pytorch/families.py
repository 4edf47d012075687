"""Reference numbers for unit.transformers: small models of the Transformers library.

Run:  python families.py [run...]        (in any place; needs torch and transformers, no GPU)
It writes families.json beside itself, and says how far the float32 runs, whose numbers it keeps, lie
from the same runs in float64. The committed numbers were made with torch 2.15.0 and transformers
5.23.0 on a CPU.

Weights, tokens, batches and the optimizer are those of gpt_losses.py. A model computes with weights
in the names and shapes of src/model, which `to_*` only reorders, so gradients are theirs too.
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F
import transformers

import gpt_losses
from gpt_losses import BATCH, MODEL, OPTIMIZER, STEPS, batch, spread

L, C, H, T, V = (MODEL[key] for key in
                 ("num_layers", "hidden_size", "num_heads", "seq_len", "vocab_size"))
D = C // H
KEPT_VALUES = 24  # of each gradient


# --- the models -----------------------------------------------------------------------------------


def gpt2():
    return transformers.GPT2Config(
        n_layer=L, n_embd=C, n_head=H, n_positions=T, vocab_size=V, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, architectures=["GPT2LMHeadModel"])


def llama_keys(**more):
    return dict(num_hidden_layers=L, hidden_size=C, num_attention_heads=H, intermediate_size=112,
                max_position_embeddings=T, vocab_size=V, rms_norm_eps=1e-5) | more


def llama_grouped():
    # 16 tokens are 2.5 turns of the first angle: one frequency lies between the two factors.
    rope = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                high_freq_factor=4.0, original_max_position_embeddings=16)
    return transformers.LlamaConfig(**llama_keys(
        num_key_value_heads=2, tie_word_embeddings=False, rope_parameters=rope,
        architectures=["LlamaForCausalLM"]))


def llama_tied():
    rope = dict(rope_type="linear", rope_theta=500.0, factor=2.0)
    return transformers.LlamaConfig(**llama_keys(
        num_key_value_heads=4, tie_word_embeddings=True, head_dim=16, rope_parameters=rope,
        architectures=["LlamaForCausalLM"]))


def llama_yarn():
    # 24 tokens are 1 turn of an angle between the first two.
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=2.0, beta_slow=0.25,
                truncate=False, original_max_position_embeddings=6)
    return transformers.LlamaConfig(**llama_keys(
        num_key_value_heads=2, tie_word_embeddings=False, rope_parameters=rope,
        architectures=["LlamaForCausalLM"]))


def qwen2():
    return transformers.Qwen2Config(**llama_keys(
        num_key_value_heads=2, tie_word_embeddings=True, architectures=["Qwen2ForCausalLM"]))


def qwen3():
    return transformers.Qwen3Config(**llama_keys(
        num_key_value_heads=2, head_dim=10, tie_word_embeddings=False,
        architectures=["Qwen3ForCausalLM"]))


def mistral():
    return transformers.MistralConfig(**llama_keys(
        num_key_value_heads=2, sliding_window=7, tie_word_embeddings=False,
        architectures=["MistralForCausalLM"]))


def qwen2_window():
    return transformers.Qwen2Config(**llama_keys(
        num_key_value_heads=2, tie_word_embeddings=True, use_sliding_window=True,
        sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        architectures=["Qwen2ForCausalLM"]))


def mixtral():
    return transformers.MixtralConfig(**llama_keys(
        num_key_value_heads=2, tie_word_embeddings=False, intermediate_size=24,
        num_local_experts=4, num_experts_per_tok=2, architectures=["MixtralForCausalLM"]))


def qwen3_moe():
    return transformers.Qwen3MoeConfig(**llama_keys(
        num_key_value_heads=2, head_dim=10, tie_word_embeddings=False, moe_intermediate_size=20,
        num_experts=6, num_experts_per_tok=3, norm_topk_prob=False,
        architectures=["Qwen3MoeForCausalLM"]))


def qwen2_moe():
    return transformers.Qwen2MoeConfig(**llama_keys(
        num_key_value_heads=2, tie_word_embeddings=False, moe_intermediate_size=20,
        shared_expert_intermediate_size=28, num_experts=6, num_experts_per_tok=3,
        architectures=["Qwen2MoeForCausalLM"]))


def qwen2_moe_dense():
    config = qwen2_moe()
    config.mlp_only_layers = [0]
    return config


def gpt_oss():
    rope = dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0,
                truncate=False, original_max_position_embeddings=8)
    return transformers.GptOssConfig(**llama_keys(
        num_key_value_heads=2, head_dim=10, tie_word_embeddings=False, intermediate_size=20,
        num_local_experts=6, num_experts_per_tok=3, sliding_window=5, rope_parameters=rope,
        architectures=["GptOssForCausalLM"]))


# A token for padding would have no gradient from the embedding.
def olmoe():
    return transformers.OlmoeConfig(**llama_keys(
        num_key_value_heads=2, tie_word_embeddings=False, intermediate_size=24, num_experts=4,
        num_experts_per_tok=2, pad_token_id=None, architectures=["OlmoeForCausalLM"]))


def glm4_moe():
    rope = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)
    return transformers.Glm4MoeConfig(**llama_keys(
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False, attention_bias=True,
        use_qk_norm=True, moe_intermediate_size=20, n_routed_experts=8, num_experts_per_tok=3,
        n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=2.5,
        first_k_dense_replace=1, num_mtp_layers=0, rope_parameters=rope,
        architectures=["Glm4MoeForCausalLM"]))


def deepseek_keys(**more):
    return llama_keys(
        num_key_value_heads=4, tie_word_embeddings=False, moe_intermediate_size=20,
        n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1,
        qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, kv_lora_rank=20) | more


# Queries from the stream, and scores with yarn's factor.
def deepseek_v2():
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=2.0, beta_slow=0.25,
                mscale=0.707, mscale_all_dim=0.707, original_max_position_embeddings=6)
    return transformers.DeepseekV2Config(**deepseek_keys(
        q_lora_rank=None, routed_scaling_factor=1.5, rope_parameters=rope,
        architectures=["DeepseekV2ForCausalLM"]))


def deepseek_v3():
    return transformers.DeepseekV3Config(**deepseek_keys(
        q_lora_rank=28, n_group=4, topk_group=2, num_mtp_layers=0,
        architectures=["DeepseekV3ForCausalLM"]))


def gemma2():
    return transformers.Gemma2Config(**llama_keys(
        num_key_value_heads=2, head_dim=10, sliding_window=6, query_pre_attn_scalar=400,
        pad_token_id=None,
        attn_logit_softcapping=2.0, final_logit_softcapping=6.0, rms_norm_eps=1e-5,
        architectures=["Gemma2ForCausalLM"]))


def gemma3():
    return transformers.Gemma3TextConfig(**llama_keys(
        num_key_value_heads=1, head_dim=16, sliding_window=6, query_pre_attn_scalar=400,
        pad_token_id=None,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0)),
        architectures=["Gemma3ForCausalLM"]))


def neox(parallel, share):
    rope = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=share)
    return transformers.GPTNeoXConfig(
        num_hidden_layers=L, hidden_size=C, num_attention_heads=H, intermediate_size=112,
        max_position_embeddings=T, vocab_size=V, use_parallel_residual=parallel,
        tie_word_embeddings=False, rope_parameters=rope, architectures=["GPTNeoXForCausalLM"])


def falcon_keys(**more):
    return dict(num_hidden_layers=L, hidden_size=C, num_attention_heads=H, vocab_size=V,
                max_position_embeddings=T, hidden_dropout=0.0, attention_dropout=0.0, alibi=False,
                architectures=["FalconForCausalLM"]) | more


def falcon_one_key_head():
    return transformers.FalconConfig(**falcon_keys(
        multi_query=True, parallel_attn=True, bias=False, new_decoder_architecture=False))


def falcon_grouped():
    return transformers.FalconConfig(**falcon_keys(
        new_decoder_architecture=True, num_kv_heads=2, bias=True))


# --- names and shapes of src/model, in the order in which their elements are numbered -------------


def linear(name, shape, bias):
    return {name + ".weight": shape} | ({name + ".bias": shape[:-1]} if bias else {})


def shapes(family, kv, head_dim, ffn, norms, biases, tied, qk_norm=False, post_norms=0, experts=0,
           shared=0, dense=(), sigmoid=False, sinks=False,
           latent=None):
    """biases: of q, k and v; of the other linear layers. shared: width of a shared expert. dense:
    inner widths of the first layers, which have no experts. sigmoid: a router by sigmoids. latent:
    widths of q_down, or 0, of kv_down, and of turned features and values of a head."""
    layer_norm = family not in ("llama", "gemma", "gpt_oss")

    def norm(name):
        return {name + ".gain": (C,)} | ({name + ".bias": (C,)} if layer_norm else {})

    def layer(width, experts, shared):
        out = {}
        for i in range(norms):
            out |= norm(f"norm{i + 1}")
        for i in range(post_norms):
            out |= norm(f"post_norm{i + 1}")
        if qk_norm:
            joint = qk_norm == "joint"
            out |= {"attention.q_norm.gain": (H * head_dim if joint else head_dim,),
                    "attention.k_norm.gain": (kv * head_dim if joint else head_dim,)}
        if experts:
            out |= {"mlp.router.weight": (experts, C)}
        if experts and biases[1]:
            out |= {"mlp.router.bias": (experts,)}
        if experts and sigmoid:
            out |= {"mlp.router.correction": (experts,)}
        elif shared and not latent:
            out |= {"mlp.shared_expert_gate.weight": (1, C)}
        if latent:
            q_down, kv_down, turned, value = latent
            if q_down:
                out |= {"attention.q_down_norm.gain": (q_down,),
                        "attention.q_down.weight": (q_down, C)}
            out |= {"attention.kv_down_norm.gain": (kv_down,),
                    "attention.kv_down.weight": (kv_down, C),
                    "attention.k_turned.weight": (turned, C),
                    "attention.q.weight": (H * head_dim, q_down or C),
                    "attention.kv_up.weight": (H * (head_dim - turned + value), kv_down)}
        elif kv == H:
            out |= linear("attention.qkv", (3, H * head_dim, C), biases[0])
        else:
            out |= linear("attention.kv", (2, kv * head_dim, C), biases[0])
            out |= linear("attention.q", (H * head_dim, C), biases[0])
        if sinks:
            out |= {"attention.sinks.bias": (H,)}
        out |= linear("attention.out", (C, H * (value if latent else head_dim)), biases[1])
        if not experts:
            return (out | linear("mlp.in", (width, C) if layer_norm else (2, width, C), biases[1])
                    | linear("mlp.out", (C, width), biases[1]))
        out |= linear("mlp.experts.in", (experts, 2, width, C), biases[1])
        out |= linear("mlp.experts.out", (experts, C, width), biases[1])
        if shared:
            out |= {"mlp.shared.in.weight": (2, shared, C), "mlp.shared.out.weight": (C, shared)}
        return out

    all_shapes = {"embedding.token": (V, C)}
    if family == "gpt":
        all_shapes["embedding.position"] = (T, C)
    for i in range(L):
        of_layer = layer(dense[i], 0, 0) if i < len(dense) else layer(ffn, experts, shared)
        all_shapes |= {f"layers.{i}.{name}": shape for name, shape in of_layer.items()}
    all_shapes |= norm("head.norm")
    return all_shapes if tied else all_shapes | {"head.weight": (V, C)}


def parts_of(w, name):
    """q, k and v of a layer's weight or bias."""
    if "attention.qkv." + name in w:
        return tuple(w["attention.qkv." + name])
    return (w["attention.q." + name], *w["attention.kv." + name])


def to_gpt2(w, layer):
    out = {"ln_1.weight": w["norm1.gain"], "ln_1.bias": w["norm1.bias"],
           "ln_2.weight": w["norm2.gain"], "ln_2.bias": w["norm2.bias"]}
    for theirs, ours in (("attn.c_attn", "attention.qkv"), ("attn.c_proj", "attention.out"),
                         ("mlp.c_fc", "mlp.in"), ("mlp.c_proj", "mlp.out")):
        out[theirs + ".weight"] = w[ours + ".weight"].reshape(
            -1, w[ours + ".weight"].shape[-1]).T
        out[theirs + ".bias"] = w[ours + ".bias"].flatten()
    return {f"transformer.h.{layer}.{name}": value for name, value in out.items()}


def pairs_side_by_side(head, turned):
    """Rows of a head as DeepSeek has them: turned features last, and pairs side by side."""
    pairs = head[:turned].unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)
    return torch.cat([head[turned:], pairs])


def latent_attention(w):
    turned = w["attention.k_turned.weight"]
    q = torch.cat([pairs_side_by_side(head, len(turned))
                   for head in w["attention.q.weight"].chunk(H)])
    out = {"kv_a_layernorm": w["attention.kv_down_norm.gain"],
           "kv_a_proj_with_mqa": torch.cat([w["attention.kv_down.weight"],
                                            pairs_side_by_side(turned, len(turned))]),
           "kv_b_proj": w["attention.kv_up.weight"]}
    if "attention.q_down.weight" in w:
        out |= {"q_a_proj": w["attention.q_down.weight"],
                "q_a_layernorm": w["attention.q_down_norm.gain"], "q_b_proj": q}
    else:
        out["q_proj"] = q
    return {f"self_attn.{name}.weight": value for name, value in out.items()}


def attention_of_llama(w):
    out = {"input_layernorm.weight": w["norm1.gain"],
           "post_attention_layernorm.weight": w["norm2.gain"],
           "self_attn.o_proj.weight": w["attention.out.weight"]}
    if "attention.kv_up.weight" in w:
        out |= latent_attention(w)
    for name in ("weight", "bias"):
        if f"attention.kv.{name}" in w or f"attention.qkv.{name}" in w:
            for part, value in zip("qkv", parts_of(w, name)):
                out[f"self_attn.{part}_proj.{name}"] = value
    for norm in ("q_norm", "k_norm"):
        if f"attention.{norm}.gain" in w:
            out[f"self_attn.{norm}.weight"] = w[f"attention.{norm}.gain"]
    return out


def to_llama(w, layer):
    out = attention_of_llama(w)
    if "mlp.router.weight" in w:
        out |= {"mlp.gate.weight": w["mlp.router.weight"],
                "mlp.experts.gate_up_proj": w["mlp.experts.in.weight"].flatten(1, 2),
                "mlp.experts.down_proj": w["mlp.experts.out.weight"]}
        shared = "mlp.shared_expert"
        if "mlp.router.correction" in w:
            out["mlp.gate.e_score_correction_bias"] = w["mlp.router.correction"]
        if "mlp.shared_expert_gate.weight" in w:
            out["mlp.shared_expert_gate.weight"] = w["mlp.shared_expert_gate.weight"]
        else:
            shared += "s"
        if "mlp.shared.in.weight" in w:
            out |= {shared + ".gate_proj.weight": w["mlp.shared.in.weight"][0],
                    shared + ".up_proj.weight": w["mlp.shared.in.weight"][1],
                    shared + ".down_proj.weight": w["mlp.shared.out.weight"]}
    else:
        out |= {"mlp.gate_proj.weight": w["mlp.in.weight"][0],
                "mlp.up_proj.weight": w["mlp.in.weight"][1],
                "mlp.down_proj.weight": w["mlp.out.weight"]}
    return {f"model.layers.{layer}.{name}": value for name, value in out.items()}


def to_gpt_oss(w, layer):
    """Experts are transposed there, and gates and values take turns."""
    out = attention_of_llama(w) | {
        "self_attn.o_proj.bias": w["attention.out.bias"],
        "self_attn.sinks": w["attention.sinks.bias"],
        "mlp.router.weight": w["mlp.router.weight"],
        "mlp.router.bias": w["mlp.router.bias"],
        "mlp.experts.gate_up_proj": w["mlp.experts.in.weight"].permute(0, 3, 2, 1).flatten(2, 3),
        "mlp.experts.gate_up_proj_bias": w["mlp.experts.in.bias"].transpose(1, 2).flatten(1, 2),
        "mlp.experts.down_proj": w["mlp.experts.out.weight"].transpose(1, 2),
        "mlp.experts.down_proj_bias": w["mlp.experts.out.bias"]}
    return {f"model.layers.{layer}.{name}": value for name, value in out.items()}


def to_gemma(w, layer):
    prefix = f"model.layers.{layer}."
    return to_llama(w, layer) | {
        prefix + "pre_feedforward_layernorm.weight": w["norm2.gain"],
        prefix + "post_attention_layernorm.weight": w["post_norm1.gain"],
        prefix + "post_feedforward_layernorm.weight": w["post_norm2.gain"]}


def fused(q, k, v):
    """One row of heads for each key head: its query heads, its key, its value."""
    kv = k.shape[0] // D
    return torch.cat([x.reshape(kv, -1, *x.shape[1:]) for x in (q, k, v)], dim=1).flatten(0, 1)


def to_neox(w, layer):
    out = {}
    for name in ("weight", "bias"):
        out["attention.query_key_value." + name] = fused(*parts_of(w, name))
        for theirs, ours in (("attention.dense", "attention.out"),
                             ("mlp.dense_h_to_4h", "mlp.in"), ("mlp.dense_4h_to_h", "mlp.out")):
            out[f"{theirs}.{name}"] = w[f"{ours}.{name}"]
        for theirs, ours in (("input_layernorm", "norm1"), ("post_attention_layernorm", "norm2")):
            out[f"{theirs}.{name}"] = w[f"{ours}.{'gain' if name == 'weight' else 'bias'}"]
    return {f"gpt_neox.layers.{layer}.{name}": value for name, value in out.items()}


def to_falcon(w, layer):
    two = "norm2.gain" in w
    out = {}
    for norm, theirs in (("norm1", "ln_attn" if two else "input_layernorm"), ("norm2", "ln_mlp")):
        if norm + ".gain" in w:
            out |= {theirs + ".weight": w[norm + ".gain"], theirs + ".bias": w[norm + ".bias"]}
    for name in ("weight", "bias"):
        if "attention.kv." + name not in w:
            continue
        out["self_attention.query_key_value." + name] = fused(*parts_of(w, name))
        for theirs, ours in (("self_attention.dense", "attention.out"),
                             ("mlp.dense_h_to_4h", "mlp.in"), ("mlp.dense_4h_to_h", "mlp.out")):
            out[f"{theirs}.{name}"] = w[f"{ours}.{name}"]
    return {f"transformer.h.{layer}.{name}": value for name, value in out.items()}


ENDS = {  # table, positions, last norm
    "gpt": ("transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f"),
    "llama": ("model.embed_tokens.weight", None, "model.norm"),
    "gemma": ("model.embed_tokens.weight", None, "model.norm"),
    "gpt_oss": ("model.embed_tokens.weight", None, "model.norm"),
    "falcon": ("transformer.word_embeddings.weight", None, "transformer.ln_f"),
    "neox": ("gpt_neox.embed_in.weight", None, "gpt_neox.final_layer_norm"),
}


def to_library(family, w):
    table, positions, norm = ENDS[family]
    out = {table: w["embedding.token"], norm + ".weight": w["head.norm.gain"],
           "lm_head.weight": w.get("head.weight", w["embedding.token"])}
    if "head.norm.bias" in w:
        out[norm + ".bias"] = w["head.norm.bias"]
    if positions:
        out[positions] = w["embedding.position"]
    layer_of = dict(gpt=to_gpt2, llama=to_llama, falcon=to_falcon, neox=to_neox,
                    gemma=to_gemma, gpt_oss=to_gpt_oss)[family]
    for i in range(L):
        prefix = f"layers.{i}."
        out |= layer_of({name.removeprefix(prefix): value for name, value in w.items()
                         if name.startswith(prefix)}, i)
    return out


# --- training -------------------------------------------------------------------------------------


class Run:
    def __init__(self, config, family, dtype, **sizes):
        config._attn_implementation = config._experts_implementation = "eager"
        self.model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).train()
        self.family = family
        gpt_losses.shapes = lambda _: shapes(family, tied=config.tie_word_embeddings, **sizes)
        all_weights = gpt_losses.initial_weights(None, dtype)
        self.fixed = {name: all_weights.pop(name).detach() for name in list(all_weights)
                      if name.endswith(".correction")}
        self.weights = all_weights
        names = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        names |= {name for name, _ in self.model.named_buffers() if "correction" in name}
        given = set(self.tensors())
        assert names == given, f"{names ^ given} have no counterpart"

    def tensors(self):
        """Of the library's model, which computes with them."""
        return to_library(self.family, self.weights | self.fixed)

    def loss(self, inputs, targets):
        logits = torch.func.functional_call(
            self.model, self.tensors(), (inputs,), strict=False, tie_weights=False).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def first_gradients(self):
        """Of the loss on the first batch, by parameter: norm, and values evenly apart."""
        gradients = torch.autograd.grad(self.loss(*batch(0)), list(self.weights.values()))
        out = {}
        for name, gradient in zip(self.weights, gradients):
            flat = gradient.flatten()
            stride = max(1, len(flat) // KEPT_VALUES)
            out[name] = dict(norm=flat.norm().item(), stride=stride,
                             largest=flat.abs().max().item(),
                             values=flat[::stride][:KEPT_VALUES].tolist())
        return out

    def sequence_losses(self):
        inputs, targets = batch(0)
        with torch.no_grad():
            return [self.loss(inputs[b:b + 1], targets[b:b + 1]).item() for b in range(BATCH)]


def numbers(run):
    out = dict(sequence_losses=run.sequence_losses(), gradients=run.first_gradients())
    return out | gpt_losses.train_with(run.weights, run.loss)


RUNS = {
    "gpt2": (gpt2, "gpt", dict(kv=H, head_dim=D, ffn=4 * C, norms=2, biases=(True, True))),
    "llama_grouped": (llama_grouped, "llama",
                      dict(kv=2, head_dim=D, ffn=112, norms=2, biases=(False, False))),
    "llama_yarn": (llama_yarn, "llama",
                   dict(kv=2, head_dim=D, ffn=112, norms=2, biases=(False, False))),
    "llama_tied": (llama_tied, "llama",
                   dict(kv=4, head_dim=16, ffn=112, norms=2, biases=(False, False))),
    "qwen2": (qwen2, "llama", dict(kv=2, head_dim=D, ffn=112, norms=2, biases=(True, False))),
    "falcon_one_key_head": (falcon_one_key_head, "falcon",
                            dict(kv=1, head_dim=D, ffn=4 * C, norms=1, biases=(False, False))),
    "falcon_grouped": (falcon_grouped, "falcon",
                       dict(kv=2, head_dim=D, ffn=4 * C, norms=2, biases=(True, True))),
    "qwen3": (qwen3, "llama", dict(kv=2, head_dim=10, ffn=112, norms=2, biases=(False, False),
                                   qk_norm=True)),
    "mistral": (mistral, "llama",
                dict(kv=2, head_dim=D, ffn=112, norms=2, biases=(False, False))),
    "mixtral": (mixtral, "llama", dict(kv=2, head_dim=D, ffn=24, norms=2, biases=(False, False),
                                       experts=4)),
    "qwen3_moe": (qwen3_moe, "llama", dict(kv=2, head_dim=10, ffn=20, norms=2,
                                           biases=(False, False), qk_norm=True, experts=6)),
    "qwen2_moe": (qwen2_moe, "llama", dict(kv=2, head_dim=D, ffn=20, norms=2, biases=(True, False),
                                           experts=6, shared=28)),
    "qwen2_moe_dense": (qwen2_moe_dense, "llama",
                        dict(kv=2, head_dim=D, ffn=20, norms=2, biases=(True, False), experts=6,
                             shared=28, dense=[112])),
    "olmoe": (olmoe, "llama", dict(kv=2, head_dim=D, ffn=24, norms=2, biases=(False, False),
                                   qk_norm="joint", experts=4)),
    "glm4_moe": (glm4_moe, "llama",
                 dict(kv=2, head_dim=16, ffn=20, norms=2, biases=(True, False), qk_norm=True,
                      experts=8, shared=40, dense=[112], sigmoid=True)),
    "gpt_oss": (gpt_oss, "gpt_oss", dict(kv=2, head_dim=10, ffn=20, norms=2, biases=(True, True),
                                         experts=6, sinks=True)),
    "deepseek_v2": (deepseek_v2, "llama",
                    dict(kv=H, head_dim=10, ffn=20, norms=2, biases=(False, False), experts=8,
                         shared=40, dense=[112], latent=(0, 20, 4, 8))),
    "deepseek_v3": (deepseek_v3, "llama",
                    dict(kv=H, head_dim=10, ffn=20, norms=2, biases=(False, False), experts=8,
                         shared=40, dense=[112], sigmoid=True, latent=(28, 20, 4, 8))),
    "qwen2_window": (qwen2_window, "llama",
                     dict(kv=2, head_dim=D, ffn=112, norms=2, biases=(True, False))),
    "gemma2": (gemma2, "gemma", dict(kv=2, head_dim=10, ffn=112, norms=2, biases=(False, False),
                                     post_norms=2)),
    "gemma3": (gemma3, "gemma", dict(kv=1, head_dim=16, ffn=112, norms=2, biases=(False, False),
                                     qk_norm=True, post_norms=2)),
    "neox": (lambda: neox(True, 0.4), "neox",
             dict(kv=H, head_dim=D, ffn=112, norms=2, biases=(True, True))),
    "neox_sequential": (lambda: neox(False, 1.0), "neox",
                        dict(kv=H, head_dim=D, ffn=112, norms=2, biases=(True, True))),
}


def rounded(value):
    """Nine digits tell all float32 numbers apart."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def gradient_spread(a, b):
    return max(max(abs(x - y) for x, y in zip(a[name]["values"], b[name]["values"])) /
               b[name]["largest"] for name in a)


def write(path, versions, runs):
    """Writes the numbers of runs, or of those that the command line names.

    runs: by name, what describes a run, and a function that makes it for a number format.
    """
    torch.set_num_threads(1)
    out = dict(torch=torch.__version__, transformers=transformers.__version__, **versions,
               global_batch=BATCH, steps=STEPS, optimizer=OPTIMIZER, runs={})
    path = pathlib.Path(path).with_suffix(".json")
    if sys.argv[1:]:
        out["runs"] = json.loads(path.read_text())["runs"]
    for name, (described, make) in runs.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        run, exact = (numbers(make(dtype)) for dtype in (torch.float32, torch.float64))
        print(f"{name}: loss {run['losses'][0]:.4f} to {run['losses'][-1]:.4f}, norms "
              f"{min(run['grad_norms']):.3f} to {max(run['grad_norms']):.3f}; float32 against "
              f"float64, largest relative difference: "
              f"losses {spread(run['losses'], exact['losses']):.1e}, "
              f"norms {spread(run['grad_norms'], exact['grad_norms']):.1e}, "
              f"gradients {gradient_spread(run['gradients'], exact['gradients']):.1e}")
        out["runs"][name] = described | rounded(run)
    text = json.dumps(out, separators=(",", ":"))
    path.write_text(text.replace('},"', '},\n"') + "\n")


def main():
    def run(make, family, sizes):
        return dict(config=make().to_diff_dict()), lambda dtype: Run(make(), family, dtype, **sizes)

    write(__file__, {}, {name: run(*model) for name, model in RUNS.items()})


if __name__ == "__main__":
    main()
