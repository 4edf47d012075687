#!/usr/bin/env python3
"""Compares packed conversations with what Transformers makes of them: tokens, and which of them are an answer's.

  conversations.py BRUME TOKENIZERS FOLDER

Conversations of random words go through each tokenizer.json of TOKENIZERS, with a template that has `generation` blocks and with
the same one without them. All token ids and all marks must be equal.
"""

import json
import pathlib
import random
import struct
import subprocess
import sys

from transformers import PreTrainedTokenizerFast

WORDS = "the quick brown fox don't jump über Zwölf 12345 é 漢字 \n  hello, world! ok? <b> {x}".split(" ")
TEMPLATE = """
{%- for m in messages %}
    {{- '<tool>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ '<|end|>' }}{% endgeneration %}
    {%- else %}{{- m.content + '<|end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<tool>assistant\\n' }}{%- endif %}"""


def conversation(random_):
    def say(role):
        return {"role": role, "content": " ".join(random_.choice(WORDS) for _ in range(random_.randrange(1, 30)))}
    messages = [say("system")] if random_.random() < 0.3 else []
    for _ in range(random_.randrange(1, 5)):
        messages += [say("user"), say("assistant")]
    return messages


def packed(path):
    """Tokens and marks of each document of a token file of version 4 (src/data/README.md)."""
    bytes_ = path.read_bytes()
    width, = struct.unpack("<I", bytes_[12:16])
    count, = struct.unpack("<Q", bytes_[24:32])
    parts, = struct.unpack("<Q", bytes_[40:48])
    at = 64 + (width * count + 31) // 32 * 32
    tokens = struct.unpack(f"<{count}{'H' if width == 2 else 'I'}", bytes_[64:64 + width * count])
    ends = struct.unpack(f"<{parts}Q", bytes_[at:at + 8 * parts])
    answers = struct.unpack(f"<{parts}Q", bytes_[at + 8 * parts:])
    documents, first = [], 0
    for end, answer in zip(ends, answers):
        if answer >> 63 == 0:
            documents.append(([], []))
        answer &= (1 << 63) - 1
        documents[-1][0].extend(tokens[first:end])
        documents[-1][1].extend(int(i >= answer) for i in range(first, end))
        first = end
    return documents


def main(brume, tokenizers, folder):
    random_ = random.Random(5)
    conversations = [conversation(random_) for _ in range(100)]
    lines = folder / "chats.jsonl"
    lines.write_text("".join(json.dumps({"messages": one}) + "\n" for one in conversations))
    template = folder / "template.jinja"
    for name in ("qwen", "gpt2", "llama3", "llama2"):
        file = tokenizers / f"{name}.json"
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file))
        expected = []
        for one in conversations:
            made = tokenizer.apply_chat_template(one, chat_template=TEMPLATE, tokenize=True, return_dict=True,
                                                 return_assistant_tokens_mask=True)
            expected.append((made["input_ids"], made["assistant_masks"]))
        for blocks in (True, False):
            text = TEMPLATE if blocks else TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
            template.write_text(text)
            subprocess.run([brume, "import", "tokens", lines, "--tokenizer", file, "--chat-template", template,
                            "--valid", "0", "-o", folder / "out"], check=True)
            found = packed(folder / "out/train.tok")
            wrong = sum(tuple(a) != tuple(b) for a, b in zip(found, expected))
            if wrong or len(found) != len(expected):
                sys.exit(f"{name}: {wrong} of {len(expected)} conversations are packed otherwise")
            print(f"{name}: {len(found)} conversations, {sum(len(ids) for ids, _ in found)} tokens are equal")


main(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
