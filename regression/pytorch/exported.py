"""Asks the Transformers library about models that Brume exported, for mpi.transformers.

python exported.py same <directory> <directory>...     both of each pair load, and give the same logits
python exported.py loss <directory> <tokens> <windows>  prints the loss over the first windows of a token file
"""

import sys

import torch
import torch.nn.functional as F
import transformers

HEADER_BYTES = 64  # of a token file, see src/data/README.md


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {what: names for what, names in info.items() if names}
    assert not wrong, f"{folder}: {wrong}"
    return model.eval()


def length(model):
    config = model.config
    return getattr(config, "n_positions", None) or config.max_position_embeddings


def same(folder, other):
    a, b = load(folder), load(other)
    torch.manual_seed(1)
    tokens = torch.randint(a.config.vocab_size, (3, length(a)))
    with torch.no_grad():
        assert torch.equal(a(tokens).logits, b(tokens).logits), f"{folder} and {other} differ"
    print(folder, "and", other, "give the same logits")


def loss(folder, tokens, windows):
    model = load(folder)
    with open(tokens, "rb") as file:
        numbers = torch.frombuffer(bytearray(file.read()[HEADER_BYTES:]), dtype=torch.uint16).long()
    T = length(model)
    rows = torch.stack([numbers[w * T:w * T + T + 1] for w in range(windows)])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    print(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item())


if __name__ == "__main__":
    if sys.argv[1] == "same":
        for pair in zip(sys.argv[2::2], sys.argv[3::2]):
            same(*pair)
    else:
        loss(sys.argv[2], sys.argv[3], int(sys.argv[4]))
