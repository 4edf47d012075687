"""Generation with Transformers, for perf_generation: <model> <precision> <tokens> <threads>."""
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

PROMPT_TOKENS = 64


def main():
    name, precision, tokens, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    no_ends = dict(bos_token_id=None, eos_token_id=None)
    config = GPT2Config(**no_ends) if name == "gpt2" else LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True, **no_ends)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_config(config, torch_dtype=dtype).eval()
    for batch in (1, 4, 16):
        prompts = torch.randint(0, 255, (batch, PROMPT_TOKENS))

        def seconds(count):
            start = time.perf_counter()
            with torch.no_grad():
                model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False,
                               max_new_tokens=count, min_new_tokens=count, pad_token_id=0)
            return time.perf_counter() - start

        seconds(2)
        first = statistics.median(seconds(1) for _ in range(3))
        next_token = (seconds(tokens + 1) - first) / tokens
        print(f"Transformers, batch {batch}: prompts {first:.3f} s, next token {next_token:.4f} s, "
              f"{batch / next_token:.1f} tokens/s")


main()
