"""Reference numbers for unit.adapters: adapters of PEFT in small models of Transformers.

Run:  python adapters.py [run...]        (in any place; needs torch, transformers and peft, no GPU)
It writes adapters.json beside itself, and prints how far the float32 runs, whose numbers it keeps,
are from the same runs in float64. The committed numbers were made with torch 2.15.0, transformers
5.24.0 and peft 0.21.2 on a CPU.

Base models, tokens, batches and the optimizer are those of families.py. Both factors of an adapter
are random as weights are: if one were zero, the other one would have no gradient.
"""

import re
import warnings

import peft

import families
import gpt_losses
from families import C, H, L

GPT = {"attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "mlp.in": "mlp.c_fc",
       "mlp.out": "mlp.c_proj"}
LLAMA = {"attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj",
         "attention.v": "self_attn.v_proj", "attention.out": "self_attn.o_proj",
         "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.out": "mlp.down_proj"}
NEOX = {"attention.qkv": "attention.query_key_value", "attention.out": "attention.dense",
        "mlp.in": "mlp.dense_h_to_4h", "mlp.out": "mlp.dense_4h_to_h"}
MODULES = {  # the library's name of a layer, and of its linear layers by ours
    "gpt": ("transformer.h", GPT), "llama": ("model.layers", LLAMA),
    "gemma": ("model.layers", LLAMA), "neox": ("gpt_neox.layers", NEOX)}

# PEFT's words for our targets, if it is not a list of modules: None is its own default.
WORDS = {(): "all-linear", ("attention.q", "attention.v"): None, ("attention.qkv",): None}
RUNS = {  # name: model in families.py, rank, alpha, scaling, targets
    "llama_grouped": ("llama_grouped", 4, 8.0, "standard", ("attention.q", "attention.v")),
    "llama_tied": ("llama_tied", 3, 3.0, "standard", ()),
    "gpt2": ("gpt2", 8, 16.0, "standard", ("attention.qkv",)),
    "gpt2_all": ("gpt2", 5, 7.5, "standard", ()),
    "qwen3": ("qwen3", 16, 8.0, "rslora",
              ("attention.k", "attention.v", "attention.out", "mlp.out")),
    "gemma2": ("gemma2", 2, 4.0, "standard", ("attention.q", "attention.k", "mlp.gate", "mlp.up")),
    "neox": ("neox", 4, 6.0, "rslora", ()),
}


def factor_shapes(rank, targets, kv, head_dim, ffn):
    """Shapes in src/model, in the order in which elements are numbered."""
    q, k = H * head_dim, kv * head_dim
    sizes = {"attention.qkv": ((3, q), C), "attention.q": ((q,), C), "attention.k": ((k,), C),
             "attention.v": ((k,), C), "attention.out": ((C,), q), "mlp.in": ((ffn,), C),
             "mlp.gate": ((ffn,), C), "mlp.up": ((ffn,), C), "mlp.out": ((C,), ffn)}
    out = {}
    for i in range(L):
        for target in targets:
            outputs, inputs = sizes[target]
            out |= {f"layers.{i}.{target}.lora_a": (rank, inputs),
                    f"layers.{i}.{target}.lora_b": (*outputs, rank)}
    return out


class Run(families.Run):
    """The weights are those of the adapter; the base model keeps the values of its own."""

    def __init__(self, base, dtype, rank, alpha, scaling, targets):
        make, family, sizes = families.RUNS[base]
        super().__init__(make(), family, dtype, **sizes)
        self.model.load_state_dict(families.to_library(family, self.weights))
        self.prefix, self.modules = MODULES[family]
        words = WORDS.get(targets, [self.modules[target] for target in targets])
        self.model = peft.get_peft_model(self.model, peft.LoraConfig(
            r=rank, lora_alpha=alpha, use_rslora=scaling == "rslora", target_modules=words))

        base_shapes = gpt_losses.shapes(None)
        of_layer = {key: sizes[key] for key in ("kv", "head_dim", "ffn")}
        factors = factor_shapes(rank, targets or self.modules, **of_layer)
        gpt_losses.shapes = lambda _: base_shapes | factors
        weights = gpt_losses.initial_weights(None, dtype)
        self.weights = {name: weights[name] for name in factors}
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        given = set(self.tensors())
        assert trained == given, f"{trained ^ given} have no counterpart"

    def tensors(self):
        out = {}
        for name, value in self.weights.items():
            layer, target, factor = re.fullmatch(r"layers\.(\d+)\.(.*)\.lora_(.)", name).groups()
            if target == "attention.qkv" and factor == "b":
                value = families.fused(*value) if self.family == "neox" else value.flatten(0, 1)
            module = f"base_model.model.{self.prefix}.{layer}.{self.modules[target]}"
            out[f"{module}.lora_{factor.upper()}.default.weight"] = value
        return out


def main():
    # PEFT sets fan_in_fan_out for GPT-2 itself, and warns.
    warnings.filterwarnings("ignore", message="fan_in_fan_out")

    def run(base, rank, alpha, scaling, targets):
        adapter = dict(rank=rank, alpha=alpha, scaling=scaling, targets=targets)
        config = families.RUNS[base][0]().to_diff_dict()
        return dict(config=config, adapter=adapter), lambda dtype: Run(base, dtype, **adapter)

    families.write(__file__, dict(peft=peft.__version__),
                   {name: run(*described) for name, described in RUNS.items()})


if __name__ == "__main__":
    main()
