"""Reference numbers for unit.pytorch: 20 AdamW steps of a small GPT in PyTorch.

Run:  python gpt_losses.py        (in any place; needs torch, no GPU)
It writes gpt_losses.json beside itself, and says how far the float32 run, whose numbers it keeps,
lies from the same run in float64. The committed numbers were made with torch 2.15.0 on a CPU.

Weights and tokens are formulas of integers, exact in double and then rounded to float32, which
the test computes too. Nothing else is shared with the test than what the JSON file holds.
"""

import json
import math
import pathlib
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F

BATCH, STEPS = 4, 20
MODEL = dict(num_layers=3, hidden_size=48, num_heads=4, ffn_size=192, seq_len=24, vocab_size=61)
# The clip norm lies between the smallest and the largest gradient norm of the run.
OPTIMIZER = dict(lr=3e-3, min_lr_ratio=0.1, warmup_steps=3, beta1=0.9, beta2=0.95, eps=1e-8,
                 weight_decay=0.1, clip_norm=1.5)
# A parameter is in the first group whose pattern fits; without weight_decay it decays as all do.
GROUPS = [dict(pattern="layers.1.*", lr_scale=0.5, weight_decay=0.0),
          dict(pattern="*.bias", lr_scale=2.0, weight_decay=0.3),
          dict(pattern="layers.*.mlp.*", lr_scale=0.0),
          dict(pattern="embedding.*", lr_scale=0.25, weight_decay=1.0)]
# Patterns of what has no gradient: the first blocks, parts of all blocks, and both.
FROZEN = [["embedding.*", "layers.[01].*"], ["*norm*", "layers.*.mlp.*"],
          ["embedding.*", "layers.0.*", "*.bias", "head.*"]]


# --- what both sides compute ----------------------------------------------------------------------


def mix(n):
    """A whole number in [0, 65521) that looks random: a parabola modulo a prime."""
    n %= 65521
    return (n * n + 31 * n + 7) % 65521


def shapes(tied):
    """Name and shape of each parameter, in the order in which their elements are numbered."""
    C, F_, T, V = (MODEL[key] for key in ("hidden_size", "ffn_size", "seq_len", "vocab_size"))
    layer = {
        "norm1.gain": (C,), "norm1.bias": (C,), "norm2.gain": (C,), "norm2.bias": (C,),
        "attention.qkv.weight": (3, C, C), "attention.qkv.bias": (3, C),
        "attention.out.weight": (C, C), "attention.out.bias": (C,),
        "mlp.in.weight": (F_, C), "mlp.in.bias": (F_,),
        "mlp.out.weight": (C, F_), "mlp.out.bias": (C,),
    }
    all_shapes = {"embedding.token": (V, C), "embedding.position": (T, C)}
    for i in range(MODEL["num_layers"]):
        all_shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    all_shapes |= {"head.norm.gain": (C,), "head.norm.bias": (C,)}
    return all_shapes if tied else all_shapes | {"head.weight": (V, C)}


def initial_weights(tied, dtype):
    """Gains near 1, biases near 0, matrices wide enough that no part of the model stays linear."""
    weights, first = {}, 0
    for name, shape in shapes(tied).items():
        count = math.prod(shape)
        middle = 1.0 if name.endswith("gain") else 0.0
        width = 0.1 if name.endswith(("gain", "bias")) else 0.2
        values = [middle + width * (2.0 * mix(first + i) / 65521.0 - 1.0) for i in range(count)]
        rounded = torch.tensor(values, dtype=torch.float64).float().reshape(shape)
        weights[name] = rounded.to(dtype).requires_grad_()
        first += count
    return weights


def tokens(first, count):
    """A cycle of seven with noise: something to learn, and some of the 61 tokens never come up."""
    return [8 * (i % 7) + mix(i) % 3 for i in range(first, first + count)]


def batch(step):
    """Inputs and targets [B, T]: consecutive windows of T + 1 tokens, T apart."""
    T = MODEL["seq_len"]
    rows = torch.tensor([tokens((step * BATCH + b) * T, T + 1) for b in range(BATCH)])
    return rows[:, :-1], rows[:, 1:]


def document_ends():
    """The ends of packed documents of 1 to 40 tokens, up to the last token of all batches."""
    last, ends = (STEPS + 1) * BATCH * MODEL["seq_len"] + 1, [0]
    while ends[-1] < last:
        ends.append(min(ends[-1] + 1 + mix(len(ends)) % 40, last))
    return ends[1:]


def packed_batch(step):
    """The same batch of packed documents: targets within documents, positions [B, T] from their
    first tokens or the window's, and a mask [B, 1, T, T] of keys in a query's document."""
    inputs, targets = batch(step)
    T, ends = MODEL["seq_len"], document_ends()
    first = torch.tensor([(step * BATCH + b) * T for b in range(BATCH)])
    place = first[:, None] + torch.arange(T + 1)
    document = torch.bucketize(place, torch.tensor(ends), right=True)
    inside = document[:, 1:] == document[:, :-1]
    begins = torch.tensor([0] + ends)[document[:, :-1]]
    positions = place[:, :-1] - torch.maximum(begins, first[:, None])
    own = document[:, :-1, None] == document[:, None, :-1]
    return inputs, targets.where(inside, -100), positions, torch.tril(own)[:, None]


# --- the model and its training -------------------------------------------------------------------


def loss_of(w, inputs, targets, positions=None, mask=None):
    C, H, T = MODEL["hidden_size"], MODEL["num_heads"], MODEL["seq_len"]

    def norm(x, name):
        return F.layer_norm(x, (C,), w[name + ".gain"], w[name + ".bias"], eps=1e-5)

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    table = w["embedding.position"]
    x = w["embedding.token"][inputs] + (table if positions is None else table[positions])
    for i in range(MODEL["num_layers"]):
        layer = f"layers.{i}."
        h = norm(x, layer + "norm1")
        q, k, v = (
            F.linear(h, weight, bias).view(-1, T, H, C // H).transpose(1, 2)
            for weight, bias in zip(w[layer + "attention.qkv.weight"],
                                    w[layer + "attention.qkv.bias"]))
        attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + linear(attended.transpose(1, 2).reshape(-1, T, C), layer + "attention.out")
        h = linear(norm(x, layer + "norm2"), layer + "mlp.in")
        x = x + linear(F.gelu(h, approximate="tanh"), layer + "mlp.out")
    logits = F.linear(norm(x, "head.norm"), w.get("head.weight", w["embedding.token"]))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(step):
    """Linear warm-up, then a cosine from lr to min_lr_ratio lr, reached at the last step."""
    lr, ratio, warmup = (OPTIMIZER[key] for key in ("lr", "min_lr_ratio", "warmup_steps"))
    if step < warmup:
        return lr * (step + 1) / warmup
    cosine = 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (STEPS - 1 - warmup)))
    return lr * (ratio + (1.0 - ratio) * cosine)


def train(tied, dtype, groups=(), frozen=()):
    w = initial_weights(tied, dtype)
    for name, parameter in w.items():
        parameter.requires_grad_(not any(fnmatchcase(name, pattern) for pattern in frozen))
    return train_with(w, lambda inputs, targets: loss_of(w, inputs, targets), groups)


def train_packed(dtype):
    w = initial_weights(True, dtype)
    return train_with(w, lambda *packed: loss_of(w, *packed), batch_of=packed_batch)


def update_of(name, parameter, groups):
    decay = 0.0 if name.endswith(("gain", "bias")) else OPTIMIZER["weight_decay"]
    usual = dict(params=[parameter], weight_decay=decay, lr_scale=1.0)
    first = next((group for group in groups if fnmatchcase(name, group["pattern"])), {})
    return usual | {key: first[key] for key in ("lr_scale", "weight_decay") if key in first}


def train_with(w, loss_of_batch, groups=(), batch_of=batch):
    """Loss and gradient norm of each step, then the loss on a further batch."""
    optimizer = torch.optim.AdamW(
        [update_of(name, parameter, groups) for name, parameter in w.items()],
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["eps"])
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = group["lr_scale"] * learning_rate(step)
        optimizer.zero_grad()
        loss = loss_of_batch(*batch_of(step))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), OPTIMIZER["clip_norm"]).item())
        losses.append(loss.item())
        optimizer.step()
    with torch.no_grad():
        return dict(losses=losses, grad_norms=norms, final_loss=loss_of_batch(*batch_of(STEPS)).item())


def spread(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def main():
    torch.set_num_threads(1)
    out = dict(torch=torch.__version__, global_batch=BATCH, steps=STEPS, model=MODEL,
               optimizer=OPTIMIZER, runs=[])
    for tied in (True, False):
        run, exact = train(tied, torch.float32), train(tied, torch.float64)
        print(f"tied_head {tied}: loss {run['losses'][0]:.4f} to {run['losses'][-1]:.4f}, norms "
              f"{min(run['grad_norms']):.3f} to {max(run['grad_norms']):.3f}; float32 against "
              f"float64, largest relative difference: "
              f"losses {spread(run['losses'], exact['losses']):.1e}, "
              f"norms {spread(run['grad_norms'], exact['grad_norms']):.1e}, "
              f"final loss {spread([run['final_loss']], [exact['final_loss']]):.1e}")
        out["runs"].append(dict(tied_head=tied) | run)
    out["grouped"] = dict(groups=GROUPS) | train(True, torch.float32, GROUPS)
    packed, exact = train_packed(torch.float32), train_packed(torch.float64)
    print(f"packed: float32 against float64: losses {spread(packed['losses'], exact['losses']):.1e}, "
          f"norms {spread(packed['grad_norms'], exact['grad_norms']):.1e}")
    # The test's bound is near the distance of both, so it has the exact run.
    out["packed"] = dict(document_ends=document_ends()) | exact
    out["frozen"] = [dict(tied_head=tied, patterns=patterns) |
                     train(tied, torch.float32, frozen=patterns)
                     for patterns in FROZEN for tied in (True, False)]
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
