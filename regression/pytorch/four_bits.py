"""A small model in 4 bits as bitsandbytes stores it, for unit.hugging_face.

Run:  python four_bits.py        (in any place; needs torch, transformers and bitsandbytes, no GPU)
It writes ../data/hugging_face/<model>/: config.json, model.safetensors with the matrices of layers in
nf4, and expected.json with some sequences of tokens and the loss that a model with the dequantised
weights gives each, computed in float32. The scales of llama_nf4 are in float32, those of
llama_nf4_nested in 8 bits. The committed files were made with bitsandbytes 0.50.2, torch 2.15.0 and
transformers 5.24.0 on a CPU.
"""

import json
import shutil

import bitsandbytes.functional as F
import torch
import transformers
from safetensors.torch import save_file

from pretrained import FOLDER, SEQUENCES, T, llama_keys, losses, randomise

SIZES = llama_keys(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
                   head_dim=16, num_key_value_heads=2, tie_word_embeddings=True)


def main():
    for name, nested in [("llama_nf4", False), ("llama_nf4_nested", True)]:
        torch.manual_seed(sum(map(ord, name)))
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        with torch.no_grad():
            randomise(model)
            tensors = {}
            for key, value in model.state_dict().items():
                if key == "lm_head.weight":
                    continue
                if not key.endswith("_proj.weight"):
                    tensors[key] = value.clone()
                    continue
                codes, state = F.quantize_4bit(value, blocksize=64, quant_type="nf4",
                                               compress_statistics=nested)
                value.copy_(F.dequantize_4bit(codes, state))
                tensors[key] = codes
                for part, stored in state.as_dict(packed=True).items():
                    tensors[f"{key}.{part}"] = stored
            model.save_pretrained(folder)  # with the dequantised weights
            (folder / "generation_config.json").unlink(missing_ok=True)
            tokens = torch.randint(model.config.vocab_size, (SEQUENCES, T + 1))
            expected = dict(tokens=tokens.tolist(), losses=losses(folder, tokens))
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        print(name, expected["losses"][:2])


if __name__ == "__main__":
    main()
