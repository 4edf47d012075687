"""Reference numbers for unit.pytorch_preference: 20 steps of DPO of a small Llama in PyTorch.

Run:  python preference.py       (in any place; needs torch and transformers, no GPU)
It writes preference.json beside itself with the numbers of float64, and says how far the same runs
in float32 lie from them, and, if TRL is installed, those of its DPOTrainer. The committed numbers were
made with torch 2.15.0, transformers 5.24.0 and TRL 1.16.0 on a CPU.

Model, weights and optimizer are those of the run llama_grouped of families.py. Tokens are formulas of
integers, which the test computes too.
"""

import copy
import json
import pathlib
import tempfile

import torch
import torch.nn.functional as F
import transformers

import gpt_losses
from families import RUNS as MODELS
from families import T, V, Run, rounded
from gpt_losses import OPTIMIZER, STEPS, learning_rate, mix, spread

PAIRS, BATCH, END = 24, 4, 60  # END ends an answer
RUNS = [dict(beta=0.1, loss="sigmoid", label_smoothing=0.0),
        dict(beta=0.2, loss="sigmoid", label_smoothing=0.05),
        dict(beta=0.1, loss="ipo", label_smoothing=0.0)]


# --- what both sides compute ----------------------------------------------------------------------


def pair(p):
    """The prompt, the chosen answer, which goes on in its cycle, and the rejected one."""
    def cycle(i):
        return 8 * ((p + i) % 7) + mix(100 * p + i) % 3

    given = 2 + mix(p) % 8
    prompt = [cycle(i) for i in range(given)]
    chosen = [cycle(given + i) for i in range(mix(p + 1000) % 14)] + [END]
    rejected = [mix(5000 + 100 * p + i) % 60 for i in range(mix(p + 2000) % 30)] + [END]
    return prompt, chosen, rejected


def batch(step):
    """Inputs and targets [B, T] of sequences of T + 1 tokens, cut or filled; -100: not learned."""
    inputs, targets = [], []
    for k in range(BATCH // 2):
        prompt, *answers = pair((step * BATCH // 2 + k) % PAIRS)
        for answer in answers:
            tokens = (prompt + answer)[:T + 1]
            learned = ([-100] * len(prompt) + answer)[:T + 1]
            tokens += [0] * (T + 1 - len(tokens))
            learned += [-100] * (T + 1 - len(learned))
            inputs.append(tokens[:-1])
            targets.append(learned[1:])
    return torch.tensor(inputs), torch.tensor(targets)


# --- the loss and the training --------------------------------------------------------------------


class Preference(Run):
    def __init__(self, dtype, beta, loss, label_smoothing):
        make, family, sizes = MODELS["llama_grouped"]
        super().__init__(make(), family, dtype, **sizes)
        self.initial = {name: one.detach().clone() for name, one in self.weights.items()}
        self.beta, self.kind, self.smoothing = beta, loss, label_smoothing
        self.accuracies, self.margins = [], []

    def log_probabilities(self, inputs, targets):
        logits = torch.func.functional_call(
            self.model, self.tensors(), (inputs,), strict=False, tie_weights=False).logits
        return -F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").sum(1)

    def loss(self, inputs, targets):
        policy = self.log_probabilities(inputs, targets)
        trained, self.weights = self.weights, self.initial
        with torch.no_grad():
            reference = self.log_probabilities(inputs, targets)
        self.weights = trained
        ratios = policy - reference
        h = self.beta * (ratios[0::2] - ratios[1::2])
        self.accuracies.append((h > 0).double().mean().item())
        self.margins.append(h.mean().item())
        if self.kind == "ipo":
            ratios = ratios / (targets >= 0).sum(1)
            return ((ratios[0::2] - ratios[1::2] - 0.5 / self.beta) ** 2).mean()
        e = self.smoothing
        return (-(1.0 - e) * F.logsigmoid(h) - e * F.logsigmoid(-h)).mean()


def train(dtype, **run):
    model = Preference(dtype, **run)
    gpt_losses.batch = batch
    return gpt_losses.train_with(model.weights, model.loss) | dict(
        accuracies=model.accuracies, margins=model.margins)


# --- TRL ------------------------------------------------------------------------------------------


def train_by_trl(folder, beta, loss, **_):
    """Losses of TRL's DPOTrainer on the same pairs as texts, a word a token."""
    import datasets
    import tokenizers
    import trl

    words = {f"<{i}>": i for i in range(V)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<0>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token=f"<{END}>", pad_token="<0>")

    def text(tokens):
        return "".join(f" <{token}>" for token in tokens if token != END)

    rows = [dict(zip(("prompt", "chosen", "rejected"), map(text, pair(p % PAIRS))))
            for p in range(STEPS * BATCH // 2)]
    made = Preference(torch.float32, beta, loss, 0.0)
    made.model.load_state_dict({name: one.detach() for name, one in made.tensors().items()})
    optimizer = torch.optim.AdamW(
        [dict(params=[one], weight_decay=0.0 if "norm" in name else OPTIMIZER["weight_decay"])
         for name, one in made.model.named_parameters()],
        lr=1.0, betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["eps"])
    losses = []

    class Trainer(trl.DPOTrainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, *arguments, **more):
            found = super().compute_loss(*arguments, **more)
            losses.append((found[0] if isinstance(found, tuple) else found).item())
            return found

    config = trl.DPOConfig(
        output_dir=folder, beta=beta, loss_type=loss, max_length=T + 1, num_train_epochs=1,
        per_device_train_batch_size=BATCH // 2, max_grad_norm=OPTIMIZER["clip_norm"],
        gradient_checkpointing=False, bf16=False, use_cpu=True, report_to=[], save_strategy="no",
        disable_tqdm=True, logging_steps=1000)
    Trainer(model=made.model, ref_model=copy.deepcopy(made.model), args=config,
            processing_class=tokenizer,
            train_dataset=datasets.Dataset.from_list(rows),
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate))
            ).train()
    return losses


def main():
    torch.set_num_threads(1)
    out = dict(torch=torch.__version__, transformers=transformers.__version__, pairs=PAIRS,
               global_batch=BATCH, steps=STEPS, optimizer=OPTIMIZER, runs=[])
    for run in RUNS:
        found, exact = train(torch.float32, **run), train(torch.float64, **run)
        print(f"{run}: loss {found['losses'][0]:.4f} to {found['losses'][-1]:.4f}; float32 against "
              f"float64, largest relative difference: "
              f"losses {spread(found['losses'], exact['losses']):.1e}, "
              f"norms {spread(found['grad_norms'], exact['grad_norms']):.1e}")
        out["runs"].append(run | rounded(exact))
        if run["label_smoothing"] == 0.0:  # TRL's sigmoid has none
            try:
                with tempfile.TemporaryDirectory() as folder:
                    theirs = train_by_trl(folder, **run)
            except ImportError:
                continue
            print(f"  against TRL's, of {len(theirs)} losses: "
                  f"{spread(theirs, exact['losses']):.1e}")
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
