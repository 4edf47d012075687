"""Prints src/model/config_classes.hpp: the keys of config.json that each configuration class of the
Transformers library reads, with the value of a key that a file leaves out.

Run:  python config_classes.py > ../../src/model/config_classes.hpp        (needs transformers 5, no GPU)
The committed file was made with transformers 5.24.0. mpi.transformers compares it with the library that it finds.
"""

import dataclasses
import json
import textwrap

import transformers

CLASSES = {
    "GPT2LMHeadModel": transformers.GPT2Config,
    "LlamaForCausalLM": transformers.LlamaConfig,
    "MistralForCausalLM": transformers.MistralConfig,
    "Qwen2ForCausalLM": transformers.Qwen2Config,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
    "FalconForCausalLM": transformers.FalconConfig,
    "GPTNeoXForCausalLM": transformers.GPTNeoXConfig,
    "Gemma2ForCausalLM": transformers.Gemma2Config,
    "Gemma3ForCausalLM": transformers.Gemma3TextConfig,
}
BASE = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
# No loss depends on these.
SILENT = {"use_cache", "pretraining_tp", "reorder_and_upcast_attn", "classifier_dropout", "is_decoder"}


def by_other_ways(name):
    """Keys that a class reads without a field of their own."""
    made = CLASSES[name]()
    if name == "GPT2LMHeadModel":
        return {}
    rope = made.rope_parameters
    keys = {"rope_scaling": None, "original_max_position_embeddings": None}
    if name == "GPTNeoXForCausalLM":
        return keys | {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}
    keys |= {"partial_rotary_factor": None}
    if name == "Qwen2ForCausalLM":
        keys |= {"head_dim": None}
    if name == "Gemma3ForCausalLM":
        return keys | {"rope_theta": rope["full_attention"]["rope_theta"],
                       "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
                       "sliding_window_pattern": made._sliding_window_pattern}
    return keys | {"rope_theta": rope["rope_theta"]}


def keys(name):
    fields = {field.name: field.default for field in dataclasses.fields(CLASSES[name])
              if field.name not in BASE | SILENT and not field.name.endswith("_token_id")
              and not field.name.startswith("summary_")}
    return fields | by_other_ways(name)


def main():
    tables = []
    for name in CLASSES:
        text = json.dumps(keys(name), sort_keys=True).replace('": ', '":~')  # a key stays with its value
        text = textwrap.fill(f'  "{name}": {text}', 99, subsequent_indent="    ", break_long_words=False)
        tables.append(text.replace("~", " "))
    print("""/// @file Keys that the configuration classes of the Transformers library read, with the value of a
/// key that a file leaves out: printed by regression/pytorch/config_classes.py.
#pragma once

namespace brume::model {

/// JSON: an object for each architecture.
inline constexpr const char* config_classes = R"({""")
    print(",\n".join(tables))
    print("""})";

}  // namespace brume::model""")


if __name__ == "__main__":
    main()
