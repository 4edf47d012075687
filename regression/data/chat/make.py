#!/usr/bin/env python3
"""Makes cases.json: texts that the reference library makes of templates.

Needs `jinja2` (cases.json names the version that was used). Templates come from this folder:
each line of expressions.txt is one expression; templates.txt has templates between lines of "===".
They are rendered as Transformers renders chat templates: with its options, its tojson and its functions.
"""

import itertools
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
CALL = {"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [1, 2.5, None, True]}}}
TOOL = {"type": "function",
        "function": {"name": "get", "description": "d",
                     "parameters": {"type": "object", "required": ["x"],
                                    "properties": {"x": {"type": "string", "enum": ["a", "b"]}}}}}
VALUES = {
    "messages": [
        {"role": "system", "content": "You are é nice."},
        {"role": "user", "content": "Hi 'there' \"x\"\n<b>"},
        {"role": "assistant", "content": " Hello! ", "tool_calls": [CALL]},
        {"role": "user", "content": [{"type": "text", "text": "part1"}, {"type": "image"}]},
    ],
    "tools": [TOOL], "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "n": 7, "f": 2.0,
    "l": [3, 1, 2], "d": {"b": 1, "a": 2}, "s": "Hello World", "e": [], "none": None,
}


class Generation(jinja2.ext.Extension):
    """Blocks that say what a model answers; `spans` has the places of their text in the rendered one."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    @staticmethod
    def mark(caller):
        return "\x02" + caller() + "\x03"


def raise_exception(message):
    raise jinja2.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception


def case(template):
    """A template with its text, "\x02" and "\x03" around answers; or without a text, if there is an error."""
    try:
        return {"template": template, "text": environment.from_string(template).render(**VALUES)}
    except Exception:  # of any kind, as templates raise them
        return {"template": template}


def templates():
    for line in (HERE / "expressions.txt").read_text().splitlines():
        yield "{{ " + line + " }}"
    yield from (HERE / "templates.txt").read_text().removesuffix("\n").split("\n===\n")
    for begin, end in itertools.product(("{%", "{%-", "{%+"), ("%}", "-%}", "+%}")):
        for before, behind in itertools.product(("a\n  ", " a ", "\n\n\t"), ("\n\n b", "  \nb", " b")):
            yield f"{before}{begin} if true {end}{behind}{begin} endif {end}\n\n"
            yield f"{before}{begin} if true {end}{behind}".replace("%", "#")
    for begin, end in itertools.product(("{{", "{{-"), ("}}", "-}}")):
        yield f"a\n  {begin} n {end}\n b"


(HERE / "cases.json").write_text(json.dumps(
    {"jinja2": jinja2.__version__, "values": VALUES, "cases": [case(one) for one in templates()]},
    ensure_ascii=False, indent=1) + "\n")
