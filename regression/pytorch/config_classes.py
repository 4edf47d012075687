"""Checks `class_keys` in src/families: the keys of config.json that each configuration class of the
Transformers library reads, with the value of a key that a file leaves out.

Run:  python config_classes.py                                             (needs transformers 5, no GPU)
It prints the keys of each architecture whose row differs, and fails if one does. For a new architecture, leave its
`class_keys` empty and paste the printed ones. The committed keys are those of transformers 5.24.0. mpi.transformers
compares them with the library that it finds.
"""

import dataclasses
import json
import pathlib
import re
import sys
import textwrap

import transformers

ROWS = pathlib.Path(__file__).parents[2] / "src/families"
ROW = re.compile(r'one\.name = "(\w+)";\s*one\.model_type = "(\w+)";\s*one\.class_keys =\s*R"\((.*?)\)"', re.S)
BASE = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
# No loss depends on these.
SILENT = {"use_cache", "pretraining_tp", "reorder_and_upcast_attn", "classifier_dropout", "is_decoder"}


def by_other_ways(name, made):
    """Keys that a class reads without a field of their own."""
    rope = getattr(made, "rope_parameters", None)
    if rope is None:
        return {}
    keys = {"rope_scaling": None, "original_max_position_embeddings": None}
    if name == "GPTNeoXForCausalLM":
        return keys | {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}
    keys |= {"partial_rotary_factor": rope.get("partial_rotary_factor")}
    if name in ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM"):
        keys |= {"head_dim": None}
    if name == "GptOssForCausalLM":
        keys |= {"rope_parameters": {key: value for key, value in rope.items() if key != "rope_theta"}}
    if name == "Gemma3ForCausalLM":
        return keys | {"rope_theta": rope["full_attention"]["rope_theta"],
                       "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
                       "sliding_window_pattern": made._sliding_window_pattern}
    return keys | {"rope_theta": rope["rope_theta"]}


def keys(name, model_type):
    kind = transformers.CONFIG_MAPPING[model_type]
    fields = {field.name: field.default for field in dataclasses.fields(kind)
              if field.name not in BASE | SILENT and not field.name.endswith("_token_id")
              and not field.name.startswith("summary_")}
    if "num_mtp_layers" in fields:  # the name within the library
        fields["num_nextn_predict_layers"] = fields.pop("num_mtp_layers")
    return fields | by_other_ways(name, kind())


def main():
    rows = [row for file in sorted(ROWS.glob("*.cpp")) for row in ROW.findall(file.read_text())]
    if not rows:
        sys.exit(f"{ROWS}: no architecture found")
    differ = False
    for name, model_type, found in rows:
        expected = json.loads(json.dumps(keys(name, model_type)))
        if json.loads(found or "{}") == expected:
            continue
        differ = True
        text = json.dumps(expected, sort_keys=True)[1:-1].replace('": ', '":~')  # a key stays with its value
        print(f"{name}:\n{textwrap.fill(text, 86, break_long_words=False).replace('~', ' ')}")
    sys.exit(differ)


if __name__ == "__main__":
    main()
