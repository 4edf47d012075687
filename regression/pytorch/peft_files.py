"""Asks PEFT about adapters of models in a directory, for mpi.peft: a line of standard input each.

python peft_files.py make <models>  < "name rank alpha rslora module,module,... [more]"
    writes name/peft, and tokens of 16 bits for all; more: keys of LoraConfig as JSON without spaces
python peft_files.py check <models>  < "name"
    name/adapter and name/merged give the same logits; prints the losses with name/adapter and name/peft
"""

import json
import random
import struct
import sys
import warnings

import peft
import safetensors.torch
import torch

from exported import length, load, mean_loss

# PEFT sets fan_in_fan_out for GPT-2 itself, and warns.
warnings.filterwarnings("ignore", message="fan_in_fan_out")


def adapted(folder, adapter):
    """PEFT only warns about factors that it does not find in the file."""
    model = peft.PeftModel.from_pretrained(load(folder), adapter)
    read = safetensors.torch.load_file(f"{adapter}/adapter_model.safetensors")
    found = peft.get_peft_model_state_dict(model)
    assert found.keys() == read.keys(), f"{adapter}: {found.keys() ^ read.keys()}"
    assert all(torch.equal(found[name], read[name]) for name in read)
    return model.eval()


def make(folder, name, rank, alpha, rslora, modules, more="{}"):
    torch.manual_seed(2)
    model = peft.get_peft_model(load(folder), peft.LoraConfig(
        r=int(rank), lora_alpha=float(alpha), use_rslora=rslora == "1", task_type="CAUSAL_LM",
        target_modules=modules.split(","), **({"lora_dropout": 0.1} | json.loads(more))))
    for name_of, parameter in model.named_parameters():
        if "lora_" in name_of:
            torch.nn.init.normal_(parameter, std=0.2)
        elif parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(f"{name}/peft")


def write_tokens():
    """Eight windows of 19 tokens, and one token more."""
    random.seed(3)
    numbers = [random.randrange(67) if random.random() < 0.3 else i % 9 for i in range(8 * 19 + 1)]
    with open("few.u16", "wb") as file:
        file.write(struct.pack(f"<{len(numbers)}H", *numbers))


def check(folder, name):
    apart, together = adapted(folder, f"{name}/adapter"), load(f"{name}/merged")
    torch.manual_seed(1)
    inputs = torch.randint(together.config.vocab_size, (3, length(together)))
    with torch.no_grad():
        base = load(folder)(inputs).logits
        a, b = apart(inputs).logits, together(inputs).logits
    scale = a.abs().max()
    difference, change = (a - b).abs().max() / scale, (a - base).abs().max() / scale
    print(f"{name}: logits change by {change:.1e}, merged ones differ by {difference:.1e}",
          file=sys.stderr)
    assert difference <= 1e-5 and change > 1e-3
    print(mean_loss(apart, "few.u16"), mean_loss(adapted(folder, f"{name}/peft"), "few.u16"))


if __name__ == "__main__":
    verb, models = sys.argv[1:]
    if verb == "make":
        write_tokens()
    for line in sys.stdin:
        name, *rest = line.split()
        dict(make=make, check=check)[verb](f"{models}/{name}", name, *rest)
