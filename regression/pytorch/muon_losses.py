"""Reference numbers for unit.pytorch: 20 steps of the GPT of gpt_losses.py by Muon in PyTorch.

Run:  python muon_losses.py       (in any place; needs torch, no GPU)
It writes muon_losses.json beside itself, and says how far the float32 run, whose numbers it keeps,
lies from the same run in float64. The committed numbers were made with torch 2.15.0 on a CPU.

Matrices of layers take steps by Muon, with the iteration of Jordan et al. (2024) in the format of
the run and queries, keys and values apart; AdamW updates all else.
"""

import json
import math
import pathlib

import torch

import gpt_losses as gpt

MOMENTUM = 0.95
RUNS = [dict(scale=scale, nesterov=nesterov, tied_head=tied)
        for scale, nesterov, tied in (("moonshot", True, True), ("moonshot", False, False),
                                      ("jordan", True, False), ("spectral", True, True),
                                      ("rms", True, True))]
# Steps of the scales differ in length by more than they should.
LR_SCALE = dict(moonshot=1.0, spectral=0.2, jordan=2.0, rms=2.0)
SCALES = dict(
    moonshot=lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    spectral=lambda rows, columns: math.sqrt(max(rows, columns)),
    jordan=lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
    rms=lambda rows, columns: math.sqrt(rows / columns))


def orthogonal(direction):
    x = direction.mT if direction.size(-2) > direction.size(-1) else direction
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if direction.size(-2) > direction.size(-1) else x


def is_matrix(name):
    return name.startswith("layers.") and name.endswith("weight")


def train(dtype, scale, nesterov, tied_head):
    w = gpt.initial_weights(tied_head, dtype)
    matrices = {name: one for name, one in w.items() if is_matrix(name)}
    momenta = {name: torch.zeros_like(one) for name, one in matrices.items()}
    adamw = torch.optim.AdamW(
        [gpt.update_of(name, one, ()) for name, one in w.items() if name not in matrices],
        betas=(gpt.OPTIMIZER["beta1"], gpt.OPTIMIZER["beta2"]), eps=gpt.OPTIMIZER["eps"])
    losses, norms = [], []
    for step in range(gpt.STEPS):
        lr = LR_SCALE[scale] * gpt.learning_rate(step)
        for group in adamw.param_groups:
            group["lr"] = lr
        for one in w.values():
            one.grad = None
        loss = gpt.loss_of(w, *gpt.batch(step))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), gpt.OPTIMIZER["clip_norm"]).item())
        losses.append(loss.item())
        adamw.step()
        with torch.no_grad():
            for name, one in matrices.items():
                moment = momenta[name].lerp_(one.grad, 1.0 - MOMENTUM)
                direction = one.grad.lerp(moment, MOMENTUM) if nesterov else moment
                one.mul_(1.0 - lr * gpt.OPTIMIZER["weight_decay"])
                parts = zip(one, direction) if one.dim() > 2 else [(one, direction)]
                for weight, of_it in parts:
                    weight.sub_(lr * SCALES[scale](*weight.shape) * orthogonal(of_it))
    with torch.no_grad():
        final = gpt.loss_of(w, *gpt.batch(gpt.STEPS)).item()
    return dict(losses=losses, grad_norms=norms, final_loss=final)


def main():
    torch.set_num_threads(1)
    out = dict(torch=torch.__version__, global_batch=gpt.BATCH, steps=gpt.STEPS, model=gpt.MODEL,
               optimizer=gpt.OPTIMIZER | dict(momentum=MOMENTUM), runs=[])
    for run in RUNS:
        found, exact = train(torch.float32, **run), train(torch.float64, **run)
        print(f"{run}: loss {found['losses'][0]:.4f} to {found['losses'][-1]:.4f}; float32 against "
              f"float64, largest relative difference: "
              f"losses {gpt.spread(found['losses'], exact['losses']):.1e}, "
              f"norms {gpt.spread(found['grad_norms'], exact['grad_norms']):.1e}, "
              f"final loss {gpt.spread([found['final_loss']], [exact['final_loss']]):.1e}")
        out["runs"].append(run | dict(lr_scale=LR_SCALE[run["scale"]]) | found)
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
