"""Training steps of a GPT or Llama with PyTorch, on the cores of this machine or on a GPU, for perf_step.

Prints the time of each step after the first in seconds, one a line. Ranks are processes that
average their gradients (gloo).
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for y in self.qkv(self.norm1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.token = nn.Embedding(o.vocab, o.hidden)
        self.position = nn.Embedding(o.seq_len, o.hidden)
        self.layers = nn.ModuleList(Layer(o.hidden, o.heads, o.ffn) for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.hidden)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position.weight[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.norm(x) @ self.token.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def turned(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class LlamaLayer(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        queries, keys = o.heads * o.head_size, o.kv_heads * o.head_size
        self.norm1, self.norm2 = nn.RMSNorm(o.hidden), nn.RMSNorm(o.hidden)
        if o.family == "qwen3":
            self.q_norm, self.k_norm = nn.RMSNorm(o.head_size), nn.RMSNorm(o.head_size)
        self.qkv = nn.Linear(o.hidden, queries + 2 * keys, bias=False)
        self.out = nn.Linear(queries, o.hidden, bias=False)
        self.wide = nn.Linear(o.hidden, 2 * o.ffn, bias=False)
        self.narrow = nn.Linear(o.ffn, o.hidden, bias=False)

    def forward(self, x, cos, sin):
        o, (b, t, c) = self.o, x.shape
        y = self.qkv(self.norm1(x)).view(b, t, -1, o.head_size)
        q, k, v = y.split((o.heads, o.kv_heads, o.kv_heads), dim=2)
        if o.family == "qwen3":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(turned(q, cos, sin).to(v.dtype),
                                           turned(k, cos, sin).to(v.dtype), v, is_causal=True,
                                           enable_gqa=o.heads != o.kv_heads)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.wide(self.norm2(x)).chunk(2, dim=-1)
        return x + self.narrow(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.token = nn.Embedding(o.vocab, o.hidden)
        self.layers = nn.ModuleList(LlamaLayer(o) for _ in range(o.layers))
        self.norm = nn.RMSNorm(o.hidden)
        self.head = nn.Linear(o.hidden, o.vocab, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        if o.family == "qwen3":
            self.head.weight = self.token.weight
        half = o.head_size // 2
        angles = torch.arange(o.seq_len)[:, None] / 10000.0 ** (torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def mixture(o):
    """A model of the Transformers library whose products are grouped by expert."""
    import transformers
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        num_hidden_layers=o.layers, hidden_size=o.hidden, num_attention_heads=o.heads,
        num_key_value_heads=o.heads, head_dim=o.hidden // o.heads, num_experts=o.experts,
        num_experts_per_tok=o.chosen, moe_intermediate_size=o.expert_ffn, norm_topk_prob=False,
        vocab_size=o.vocab, tie_word_embeddings=True, use_cache=False))

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens, targets):
            return F.cross_entropy(self.model(tokens).logits.flatten(0, 1), targets.flatten())
    return Loss()


def train(rank, o):
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    kind = mixture if o.experts > 0 else Gpt if o.family == "gpt" else Llama
    model = kind(o).to(o.device)
    if o.adapter > 0:
        import peft
        peft.inject_adapter_in_model(
            peft.LoraConfig(r=o.adapter, lora_alpha=o.adapter,
                            target_modules=["qkv", "out", "wide", "narrow"]), model)
    if o.device == "cuda":
        torch.set_float32_matmul_precision("high")
    if o.compile:
        model = torch.compile(model)
    if o.ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=o.ranks)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.1, fused=True)
    shape = (o.batch // o.ranks, o.seq_len)
    low = torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.precision == "bf16")
    wait = torch.cuda.synchronize if o.device == "cuda" else lambda: None
    for step in range(o.steps + 1):
        tokens, targets = torch.randint(o.vocab, (2, *shape), device=o.device)
        wait()
        start = time.perf_counter()
        with low:
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        if rank == 0 and step > 0:
            print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, value in dict(layers=12, hidden=768, heads=12, kv_heads=12, head_size=64, ffn=3072,
                             vocab=50257, batch=4, seq_len=64, ranks=1, threads=1,
                             steps=3, adapter=0, experts=0, chosen=0, expert_ffn=0).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--family", choices=["gpt", "llama", "qwen3"], default="gpt")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if options.ranks == 1:
        train(0, options)
    else:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
        mp.spawn(train, args=(options,), nprocs=options.ranks)
