"""Asks the Transformers library about models that Brume exported, for mpi.transformers.

python exported.py same <directory> <directory>...     both of each pair load, and give the same logits
python exported.py loss <directory> <tokens>            prints the loss over all windows of tokens of 16 bits
python exported.py likely <directory> <lines>           prints each completion's log-likelihood and whether it is greedy
python exported.py expected <directory>...              each gives the loss of the tokens in its expected.json
"""

import json
import pathlib
import sys

import tokenizers
import torch
import torch.nn.functional as F
import transformers

transformers.logging.disable_progress_bar()


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager", output_loading_info=True)
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


def mean_loss(model, tokens):
    with open(tokens, "rb") as file:
        numbers = torch.frombuffer(bytearray(file.read()), dtype=torch.uint16).long()
    T = length(model)
    rows = torch.stack([numbers[w * T:w * T + T + 1] for w in range((len(numbers) - 1) // T)])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def pair(tokenizer, prompt, completion):
    """Tokens of a prompt and of its completion, which are encoded as one."""
    both = tokenizer.encode(prompt + completion, add_special_tokens=False)
    given = sum(end <= len(prompt) for _, end in both.offsets)
    return both.ids[:given], both.ids[given:]


def likelihood(model, prompt, completion):
    """What harnesses that evaluate models ask for, of tokens."""
    inputs = (prompt + completion)[:-1][-length(model):]
    with torch.no_grad():
        logits = model(torch.tensor([inputs])).logits[0, -len(completion):]
    chosen = logits.log_softmax(-1)[range(len(completion)), completion]
    greedy = logits.argmax(-1).tolist() == completion
    return dict(log_likelihood=chosen.sum().item(), is_greedy=greedy)


def likely(folder, lines):
    model = load(folder)
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    with open(lines) as file:
        for line in map(json.loads, file):
            print(json.dumps(likelihood(model, *pair(tokenizer, line["prompt"], line["completion"]))))


def expected(folders):
    """Checks all before it fails, so that one run names every model that differs."""
    wrong = []
    for folder in folders:
        said = json.loads(pathlib.Path(folder, "expected.json").read_text())
        tokens = torch.tensor(said["tokens"])
        try:
            model = load(folder)
            with torch.no_grad():
                found = F.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
            difference = abs(found / said["loss"] - 1.0)
            if not difference <= 1e-5:
                wrong.append(f"{said['model']}: ours {said['loss']}, Transformers {found}")
        except Exception as error:
            wrong.append(f"{said['model']}: {type(error).__name__}: {error}"[:500])
    print(len(folders), "models,", len(wrong), "wrong", *wrong, sep="\n")
    sys.exit(len(wrong) > 0)


if __name__ == "__main__":
    if sys.argv[1] == "expected":
        expected(sys.argv[2:])
    elif sys.argv[1] == "same":
        for pair in zip(sys.argv[2::2], sys.argv[3::2]):
            same(*pair)
    elif sys.argv[1] == "likely":
        likely(*sys.argv[2:])
    else:
        print(mean_loss(load(sys.argv[2]), sys.argv[3]))
