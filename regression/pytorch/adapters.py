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
from fnmatch import fnmatchcase

import peft

import families
import gpt_losses
from families import C, H, L

GPT = {"attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "mlp.in": "mlp.c_fc",
       "mlp.out": "mlp.c_proj"}
LLAMA = {"attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj",
         "attention.v": "self_attn.v_proj", "attention.out": "self_attn.o_proj",
         "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.out": "mlp.down_proj"}
EXPERTS = {"mlp.experts.in": "mlp.experts.gate_up_proj", "mlp.experts.out": "mlp.experts.down_proj"}
NEOX = {"attention.qkv": "attention.query_key_value", "attention.out": "attention.dense",
        "mlp.in": "mlp.dense_h_to_4h", "mlp.out": "mlp.dense_4h_to_h"}
MODULES = {  # the library's name of a layer, and of its linear layers by ours
    "gpt": ("transformer.h", GPT), "llama": ("model.layers", LLAMA),
    "gemma": ("model.layers", LLAMA), "neox": ("gpt_neox.layers", NEOX)}

# PEFT's words for our targets, if it is not a list of modules: None is its own default.
WORDS = {(): "all-linear", ("attention.q", "attention.v"): None, ("attention.qkv",): None}
RUNS = {  # name: model in families.py, rank, alpha, scaling, targets; groups, modules_to_save, layers
    "llama_grouped": ("llama_grouped", 4, 8.0, "standard", ("attention.q", "attention.v")),
    "llama_tied": ("llama_tied", 3, 3.0, "standard", ()),
    "gpt2": ("gpt2", 8, 16.0, "standard", ("attention.qkv",)),
    "gpt2_all": ("gpt2", 5, 7.5, "standard", ()),
    "qwen3": ("qwen3", 16, 8.0, "rslora",
              ("attention.k", "attention.v", "attention.out", "mlp.out")),
    "gemma2": ("gemma2", 2, 4.0, "standard", ("attention.q", "attention.k", "mlp.gate", "mlp.up")),
    "neox": ("neox", 4, 6.0, "rslora", ()),
    "qwen3_groups": ("qwen3", 4, 2.0, "rslora", (),
                     [dict(pattern="attention.[qv]", rank=6),
                      dict(pattern="attention.*", rank=3, alpha=1.0),
                      dict(pattern="mlp.up", alpha=1.5)]),
    "gpt2_groups": ("gpt2", 5, 7.5, "standard", (), [dict(pattern="mlp.*", rank=2, alpha=3.0)]),
    "llama_grouped_saved": ("llama_grouped", 4, 8.0, "standard", ("attention.q", "attention.v"),
                            [], ["embedding.token", "*norm*", "head"]),
    "gpt2_saved": ("gpt2", 8, 16.0, "standard", ("attention.qkv",), [], ["embedding.*", "norm2"]),
    "neox_saved": ("neox", 3, 6.0, "standard", (), [], ["head*"]),
    "qwen3_layers": ("qwen3", 4, 4.0, "standard", ("attention.k", "mlp.out"), [], ["head.norm"],
                     [1]),
    "qwen3_moe": ("qwen3_moe", 3, 6.0, "standard", ("attention.q", *EXPERTS)),
    "mixtral": ("mixtral", 4, 2.0, "rslora", ("mlp.experts.in",)),
}


def factor_shapes(ranks, kv, head_dim, ffn, experts=0):
    """Shapes in src/model, in the order in which elements are numbered. ranks: by target"""
    q, k = H * head_dim, kv * head_dim
    sizes = {"attention.qkv": ((3, q), C), "attention.q": ((q,), C), "attention.k": ((k,), C),
             "attention.v": ((k,), C), "attention.out": ((C,), q), "mlp.in": ((ffn,), C),
             "mlp.gate": ((ffn,), C), "mlp.up": ((ffn,), C), "mlp.out": ((C,), ffn),
             "mlp.experts.in": ((2, ffn), C), "mlp.experts.out": ((C,), ffn)}
    out = {}
    for i in range(L):
        for target, rank in ranks.items():
            outputs, inputs = sizes[target]
            each = (experts,) if target in EXPERTS else ()
            out |= {f"layers.{i}.{target}.lora_a": (*each, rank, inputs),
                    f"layers.{i}.{target}.lora_b": (*each, *outputs, rank)}
    return out


def module_of(name):
    """Of a parameter, the same in each layer."""
    return re.sub(r"^layers\.\d+\.|\.(gain|bias|weight)$", "", name)


class Run(families.Run):
    """The weights are those of the adapter, and of modules that are trained whole; the rest of the base
    model keeps the values of its own."""

    def __init__(self, base, dtype, rank, alpha, scaling, targets, groups, modules_to_save,
                 layers):
        make, family, sizes = families.RUNS[base]
        super().__init__(make(), family, dtype, **sizes)
        self.model.load_state_dict(families.to_library(family, self.weights))
        self.prefix, self.modules = MODULES[family]
        words = WORDS.get(targets, [self.modules[target] for target in targets if target not in EXPERTS])
        self.experts = [target for target in targets if target in EXPERTS]
        first = {target: next((group for group in groups if fnmatchcase(target, group["pattern"])), {})
                 for target in targets or self.modules}
        saved = [name for name in self.weights
                 if any(fnmatchcase(module_of(name), pattern) for pattern in modules_to_save)]
        # The library's tensors of modules that are trained whole; a tied table is two of them.
        self.saved = {theirs: name for theirs, value in families.to_library(family, self.weights).items()
                      for name in saved if value is self.weights[name]}
        self.model = peft.get_peft_model(self.model, peft.LoraConfig(
            r=rank, lora_alpha=alpha, use_rslora=scaling == "rslora", target_modules=words,
            target_parameters=[EXPERTS[target] for target in self.experts] or None,
            rank_pattern=self.pattern("rank", first), alpha_pattern=self.pattern("alpha", first),
            layers_to_transform=layers or None,
            modules_to_save=sorted({theirs.rpartition(".")[0] for theirs in self.saved}) or None,
            ensure_weight_tying=self.model.config.tie_word_embeddings))

        base_shapes = gpt_losses.shapes(None)
        of_layer = {key: sizes[key] for key in ("kv", "head_dim", "ffn", "experts") if key in sizes}
        factors = factor_shapes({target: group.get("rank", rank) for target, group in first.items()},
                                **of_layer)
        gpt_losses.shapes = lambda _: base_shapes | factors
        weights = gpt_losses.initial_weights(None, dtype)
        kept = [name for name in factors if not layers or int(name.split(".")[1]) in layers]
        self.weights = {name: weights[name] for name in saved + kept}
        parameters = self.model.named_parameters(remove_duplicate=False)
        trained = {name for name, p in parameters if p.requires_grad}
        given = set(self.tensors())
        assert trained == given, f"{trained ^ given} have no counterpart"

    def pattern(self, key, groups):
        return {self.modules[target]: group[key] for target, group in groups.items() if key in group}

    def tensors(self):
        out = {}
        for theirs, name in self.saved.items():
            module, _, kind = theirs.rpartition(".")
            out[f"base_model.model.{module}.modules_to_save.default.{kind}"] = self.weights[name]
        for name, value in self.weights.items():
            if name in self.saved.values():
                continue
            layer, target, factor = re.fullmatch(r"layers\.(\d+)\.(.*)\.lora_(.)", name).groups()
            if target == "attention.qkv" and factor == "b":
                value = families.fused(*value) if self.family == "neox" else value.flatten(0, 1)
            theirs = self.modules.get(target)
            if target in EXPERTS:
                # Of two wrappers the inner one has the first products. Of B the expert is the fastest.
                inner = target == "mlp.experts.in" and len(self.experts) > 1
                theirs = "mlp.experts.base_layer" if inner else "mlp.experts"
                value = value.flatten(0, 1) if factor == "a" else (
                    value.flatten(1, -2).permute(1, 2, 0).flatten(1))
            module = f"base_model.model.{self.prefix}.{layer}.{theirs}"
            out[f"{module}.lora_{factor.upper()}.default.weight"] = value
        return out


def main():
    # PEFT sets fan_in_fan_out for GPT-2 itself, and warns.
    warnings.filterwarnings("ignore", message="fan_in_fan_out")

    def run(base, rank, alpha, scaling, targets, groups=(), modules_to_save=(), layers=()):
        adapter = dict(rank=rank, alpha=alpha, scaling=scaling, targets=targets, groups=groups,
                       modules_to_save=modules_to_save, layers=layers)
        config = families.RUNS[base][0]().to_diff_dict()
        return dict(config=config, adapter=adapter), lambda dtype: Run(base, dtype, **adapter)

    families.write(__file__, dict(peft=peft.__version__),
                   {name: run(*described) for name, described in RUNS.items()})


if __name__ == "__main__":
    main()
