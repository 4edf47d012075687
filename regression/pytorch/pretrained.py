"""Small models of the Transformers library as it saves them, for unit.hugging_face.

Run:  python pretrained.py [model...]        (in any place; needs torch and transformers, no GPU)
It writes ../data/hugging_face/<model>/: config.json, safetensors in one file or several, and
expected.json with some sequences of tokens and the loss that the model gives each, computed in
float32 from the values in the files. gpt2 also gets a tokenizer.json, of bytes and two pairs of them,
and completions.jsonl: completions with their log-likelihoods behind prompts. The committed files were
made with torch 2.15.0 and transformers 5.23.0 on a CPU, those with experts with 5.24.0.

Sizes are no powers of two, all parameters are random, and the number formats differ.
"""

import json
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from exported import likelihood, load, pair

SEQUENCES, T, V = 6, 19, 67
BYTES = 259  # a vocabulary that text of bytes fits in
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "hugging_face"


def gpt2():
    return transformers.GPT2Config(
        n_layer=2, n_embd=45, n_head=3, n_positions=T, vocab_size=BYTES, n_inner=70, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0)


def llama_keys(**more):
    return dict(num_hidden_layers=2, hidden_size=45, num_attention_heads=9, intermediate_size=50,
                head_dim=6, max_position_embeddings=T, vocab_size=V, rms_norm_eps=1e-5) | more


def llama_grouped():
    rope = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                high_freq_factor=4.0, original_max_position_embeddings=16)
    return transformers.LlamaConfig(**llama_keys(
        num_key_value_heads=3, tie_word_embeddings=False, vocab_size=BYTES, rope_parameters=rope))


def llama_tied():
    return transformers.LlamaConfig(**llama_keys(num_key_value_heads=9, tie_word_embeddings=True))


def mistral():
    return transformers.MistralConfig(**llama_keys(
        num_key_value_heads=1, tie_word_embeddings=False, sliding_window=None))


def qwen2():
    return transformers.Qwen2Config(**llama_keys(num_key_value_heads=3, tie_word_embeddings=True))


def falcon_keys(**more):
    return dict(num_hidden_layers=2, hidden_size=36, num_attention_heads=6, vocab_size=V,
                ffn_hidden_size=50, max_position_embeddings=T, hidden_dropout=0.0,
                attention_dropout=0.0, alibi=False) | more


def falcon_one_key_head():
    return transformers.FalconConfig(**falcon_keys(
        multi_query=True, parallel_attn=True, bias=False, new_decoder_architecture=False))


def falcon_many_key_heads():
    return transformers.FalconConfig(**falcon_keys(
        multi_query=False, parallel_attn=True, bias=True, new_decoder_architecture=False))


def falcon_grouped():
    return transformers.FalconConfig(**falcon_keys(
        new_decoder_architecture=True, num_kv_heads=2, bias=True))


def qwen3():
    return transformers.Qwen3Config(**llama_keys(num_key_value_heads=3, tie_word_embeddings=False))


def mixtral():
    return transformers.MixtralConfig(**llama_keys(
        num_key_value_heads=3, tie_word_embeddings=False, intermediate_size=14,
        num_local_experts=4, num_experts_per_tok=2, sliding_window=7))


def qwen3_moe():
    return transformers.Qwen3MoeConfig(**llama_keys(
        num_key_value_heads=1, tie_word_embeddings=True, moe_intermediate_size=10,
        num_experts=5, num_experts_per_tok=3, norm_topk_prob=False))


def qwen3_moe_dense():
    return transformers.Qwen3MoeConfig(**llama_keys(
        num_key_value_heads=3, num_hidden_layers=3, tie_word_embeddings=False,
        moe_intermediate_size=10, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[0, 1]))


def qwen2_moe():
    return transformers.Qwen2MoeConfig(**llama_keys(
        num_key_value_heads=3, tie_word_embeddings=False, moe_intermediate_size=10,
        shared_expert_intermediate_size=14, num_experts=5, num_experts_per_tok=3))


def olmoe():
    return transformers.OlmoeConfig(**llama_keys(
        hidden_size=54, num_key_value_heads=3, tie_word_embeddings=False, intermediate_size=14,
        num_experts=4, num_experts_per_tok=2, pad_token_id=None))


def glm4_moe():
    rope = dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.7)
    return transformers.Glm4MoeConfig(**llama_keys(
        num_hidden_layers=3, num_key_value_heads=3, tie_word_embeddings=False, attention_bias=True,
        use_qk_norm=True, moe_intermediate_size=10, n_routed_experts=8, num_experts_per_tok=3,
        n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=2.5,
        first_k_dense_replace=1, num_mtp_layers=0, rope_parameters=rope))


def gpt_oss():
    rope = dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0,
                truncate=False, original_max_position_embeddings=8)
    return transformers.GptOssConfig(**llama_keys(
        num_key_value_heads=3, tie_word_embeddings=False, intermediate_size=14, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=7, rope_parameters=rope))


def gpt_oss_mxfp4():
    return transformers.GptOssConfig(**llama_keys(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        tie_word_embeddings=False, intermediate_size=32, num_local_experts=3,
        num_experts_per_tok=2, sliding_window=7))


def qwen3_moe_fp8():
    return transformers.Qwen3MoeConfig(**llama_keys(
        hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        tie_word_embeddings=False, moe_intermediate_size=16, num_experts=3,
        num_experts_per_tok=2, norm_topk_prob=True))


def deepseek_keys(**more):
    return llama_keys(
        num_hidden_layers=3, num_key_value_heads=9, tie_word_embeddings=False,
        moe_intermediate_size=10, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
        first_k_dense_replace=1, qk_nope_head_dim=4, qk_rope_head_dim=6, v_head_dim=7,
        kv_lora_rank=12) | more


def deepseek_v2():
    rope = dict(rope_type="yarn", rope_theta=1e4, factor=8.0, mscale=0.707, mscale_all_dim=0.707,
                original_max_position_embeddings=5)
    return transformers.DeepseekV2Config(**deepseek_keys(
        q_lora_rank=None, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        rope_parameters=rope))


def deepseek_v3():
    rope = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, mscale=1.0, mscale_all_dim=1.0,
                original_max_position_embeddings=5)
    return transformers.DeepseekV3Config(**deepseek_keys(
        q_lora_rank=16, n_group=4, topk_group=2, num_mtp_layers=0, rope_parameters=rope))


def mistral_window():
    return transformers.MistralConfig(**llama_keys(
        num_key_value_heads=1, tie_word_embeddings=True, sliding_window=7))


def qwen2_window():
    return transformers.Qwen2Config(**llama_keys(
        num_key_value_heads=3, num_hidden_layers=3, tie_word_embeddings=True, sliding_window=5,
        use_sliding_window=True, max_window_layers=1))


def gemma2():
    return transformers.Gemma2Config(**llama_keys(
        num_key_value_heads=3, num_hidden_layers=3, sliding_window=6, query_pre_attn_scalar=5,
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0))


def gemma3():
    return transformers.Gemma3TextConfig(**llama_keys(
        num_key_value_heads=1, num_hidden_layers=3, sliding_window=6, query_pre_attn_scalar=5,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0))))


def neox():
    return transformers.GPTNeoXConfig(
        num_hidden_layers=2, hidden_size=45, num_attention_heads=3, intermediate_size=50,
        vocab_size=V, max_position_embeddings=T, use_parallel_residual=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.4))


def neox_sequential():
    return transformers.GPTNeoXConfig(
        num_hidden_layers=2, hidden_size=36, num_attention_heads=6, intermediate_size=50,
        vocab_size=V, max_position_embeddings=T, use_parallel_residual=False,
        rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=1.0))


MODELS = {  # format of the values, largest file
    gpt2: (torch.float32, "60KB"),
    llama_grouped: (torch.bfloat16, "20KB"),
    llama_tied: (torch.float16, "1GB"),
    mistral: (torch.bfloat16, "1GB"),
    qwen2: (torch.bfloat16, "1GB"),
    qwen3: (torch.bfloat16, "1GB"),
    mixtral: (torch.bfloat16, "20KB"),
    qwen3_moe: (torch.float16, "1GB"),
    qwen3_moe_dense: (torch.bfloat16, "1GB"),
    qwen2_moe: (torch.bfloat16, "20KB"),
    olmoe: (torch.float16, "1GB"),
    glm4_moe: (torch.bfloat16, "20KB"),
    gpt_oss: (torch.bfloat16, "20KB"),
    gpt_oss_mxfp4: (torch.bfloat16, "1GB"),
    qwen3_moe_fp8: (torch.bfloat16, "1GB"),
    deepseek_v2: (torch.bfloat16, "1GB"),
    deepseek_v3: (torch.float16, "20KB"),
    mistral_window: (torch.bfloat16, "1GB"),
    qwen2_window: (torch.float16, "1GB"),
    gemma2: (torch.bfloat16, "20KB"),
    gemma3: (torch.bfloat16, "1GB"),
    neox: (torch.bfloat16, "20KB"),
    neox_sequential: (torch.float16, "1GB"),
    falcon_one_key_head: (torch.bfloat16, "1GB"),
    falcon_many_key_heads: (torch.float16, "1GB"),
    falcon_grouped: (torch.bfloat16, "10KB"),
}


def randomise(model):
    for name, parameter in model.named_parameters():
        norm = "norm" in name or "ln_" in name
        middle = 1.0 if norm and name.endswith("weight") else 0.0
        torch.nn.init.normal_(parameter, middle, 0.1 if parameter.dim() == 1 else 0.2)


def narrow(model, dtype):
    """Corrections of routers keep fp32, as in published files."""
    routers = [module for module in model.modules() if hasattr(module, "e_score_correction_bias")]
    corrections = [torch.randn_like(router.e_score_correction_bias) * 0.1 for router in routers]
    model = model.to(dtype)
    for router, correction in zip(routers, corrections):
        router.e_score_correction_bias = correction
    return model


def load_wide(folder):
    # Loaded anew: rotary frequencies must not have gone through the narrow format.
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager").eval()


def losses(model, tokens):
    logits = model(tokens[:, :-1]).logits
    return [F.cross_entropy(logits[i], tokens[i, 1:]).item() for i in range(len(tokens))]


def greedy(model, tokens):
    """The most likely tokens behind some, until the model is full."""
    all_tokens = tokens.tolist()
    while len(all_tokens) < T:
        all_tokens.append(model(torch.tensor([all_tokens])).logits[0, -1].argmax().item())
    return all_tokens[len(tokens):]


def write_tokenizer(folder):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("t", "h"), ("th", "e")]
    vocabulary = {token: i for i, token in enumerate(letters + [a + b for a, b in pairs])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    made.save(str(folder / "tokenizer.json"), pretty=False)
    return made


def write_completions(folder):
    """Some completions, and some that the model itself would say first, as far as they are text."""
    model, tokenizer = load(folder), write_tokenizer(folder)
    lines = [("int ", "main("), ("the", " theme"), ("e is ", "tha"), ("Grüße ", "an alle"),
             ("cut in t", "he"), ("a prompt that does not fit ", "in"), ("a", "b" * T)]
    for first in "aefq":
        tokens = tokenizer.encode(f"{first} is ").ids
        given = len(tokens)
        for _ in range(2):
            tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
            answer = tokenizer.decode(tokens[given:])
            if answer.isprintable() and pair(tokenizer, f"{first} is ", answer)[1] == tokens[given:]:
                lines.append((f"{first} is ", answer))
    with open(folder / "completions.jsonl", "w") as file:
        for prompt, completion in lines:
            said = likelihood(model, *pair(tokenizer, prompt, completion))
            print(json.dumps(dict(prompt=prompt, completion=completion) | said), file=file)


def write_mxfp4(folder):
    """Replaces the experts' weights by blocks of random codes; the library makes bf16 of them."""
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    path = folder / "model.safetensors"
    tensors = load_file(path)
    plain = dict(tensors)
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16)).to(torch.uint8)
        scales = torch.randint(121, 126, (experts, outputs, inputs // 32)).to(torch.uint8)
        tensors |= {name + "_blocks": blocks, name + "_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks, scales)
    model = load_wide(folder)
    model.load_state_dict({name: value.float() for name, value in plain.items()})
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="mxfp4")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return model


def write_fp8(folder):
    """Replaces the matrices of layers by 8-bit floats with a scale for each block of 8 x 16."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        rows, columns = tensors[name].shape
        codes = (torch.randn(rows, columns) * 30.0).to(torch.float8_e4m3fn)
        scales = torch.rand(rows // 8, columns // 16) * 0.01
        tensors |= {name: codes, name + "_scale_inv": scales}
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="fp8", weight_block_size=[8, 16])
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return load_wide(folder)


WRITERS = {gpt_oss_mxfp4: write_mxfp4, qwen3_moe_fp8: write_fp8}


def main():
    for make, (dtype, shard) in MODELS.items():
        if sys.argv[1:] and make.__name__ not in sys.argv[1:]:
            continue
        torch.manual_seed(sum(map(ord, make.__name__)))
        model = transformers.AutoModelForCausalLM.from_config(make())
        with torch.no_grad():
            randomise(model)
            model = narrow(model, dtype)
            folder = FOLDER / make.__name__
            shutil.rmtree(folder, ignore_errors=True)
            model.save_pretrained(folder, max_shard_size=shard)
            (folder / "generation_config.json").unlink(missing_ok=True)
            tokens = torch.randint(model.config.vocab_size, (SEQUENCES, T + 1))
            wide = WRITERS.get(make, load_wide)(folder)
            expected = dict(tokens=tokens.tolist(), losses=losses(wide, tokens))
            if make is gpt_oss:
                expected["greedy"] = [greedy(wide, row[:5]) for row in tokens]
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        if make is gpt2:
            write_completions(folder)
        print(make.__name__, expected["losses"][:2])


if __name__ == "__main__":
    main()
